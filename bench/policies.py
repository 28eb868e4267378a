"""Cost and held text of policies, as ratios within one run. ``python -m bench.policies``.

- CPU for each chunk through reader and writer: no policy, and ``redact`` with all named detectors;
- characters held on recorded streams, beside the least that any scanner could hold;
- growth of the time on patterns that make backtracking engines explode;
- word lists beside the same words as one expression;
- recorded events that ``policies replay`` judges in a second on one core.
"""

from __future__ import annotations

import json
import math
import random
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import streamglot
from streamglot import Event
from streamglot.events import Choice, StreamEnd, StreamStart, TextDelta, TextEnd, TextStart, decode
from streamglot.patterns.detectors import detectors, patterns_of
from streamglot.patterns.scanner import PatternMatch
from streamglot.policies import Pattern, PatternSet, load_policies, policy_stage
from streamglot.policies.trial import RecordedTurn, replay_policies, try_policies
from streamglot.stages.stage import ExchangeContext, StageFactory

from .pattern_oracle import least_hold
from .streams import HEAD, chat_end

ROOT = Path(__file__).parents[1]
ALL = [{"use": "redact", "detectors": list(detectors())}]
CHUNKS = 100
REPEATS = 30
STREAMS = 20
MAX_GROWTH = 1.25
"""CPU per chunk in a burst with ``redact`` and all detectors, as a multiple of that without."""
LEAST_EVENTS = 100_000
"""Recorded events that a replay judges in a second on one core."""
ORACLE_STREAMS = 5
"""Recorded streams, those with the most deltas, of which the oracle sees the beginning."""
ORACLE_CHARS = 100
"""Characters of each. The oracle follows every possible match character by character: 150 take it a second."""


def prose(words: int, seed: int = 1) -> list[str]:
    """Pieces of text as models write it, about four characters each."""
    vocabulary = re.findall(r"\S+\s*", (ROOT / "README.md").read_text() + (ROOT / "ARCHITECTURE.md").read_text())
    source = random.Random(seed)
    start = source.randrange(max(1, len(vocabulary) - words))
    text = "".join(vocabulary[start : start + words])
    pieces, at = [], 0
    while at < len(text):
        size = source.choice((2, 3, 4, 5, 6))
        pieces.append(text[at : at + size])
        at += size
    return pieces


def frames(pieces: Sequence[str]) -> list[bytes]:
    body = [f'data: {HEAD}{{"content":{json.dumps(piece)}}},"finish_reason":null}}]}}\n\n'.encode() for piece in pieces]
    return [*body, *chat_end("stop")]


def pass_on(reads: list[bytes], build: StageFactory | None) -> None:
    """One stream through reader, policies and writer, as the engine runs it."""
    read, write = streamglot.reader("openai_chat"), streamglot.writer("openai_chat")
    stage = None if build is None else build(ExchangeContext())
    for data in (*reads, None):
        events: list[Event] = read.close() if data is None else read.feed(data)
        if stage is not None and events:
            events = stage.feed(events)  # type: ignore[assignment]  # these policies ask nothing
        write.feed(events)
    write.close()


def cpu(run: Callable[[], object]) -> float:
    begin = time.process_time()
    for _ in range(STREAMS):
        run()
    return time.process_time() - begin


def cost() -> None:
    print(
        f"CPU for each chunk through reader and writer, streams of {CHUNKS} chunks of prose; medians of {REPEATS} interleaved runs"
    )
    builds = {"no stage": None, "no policy": policy_stage([]), "redact, all detectors": policy_stage(load_policies(ALL))}
    for frames_a_read in (CHUNKS, 10, 1):
        streams = [frames(prose(CHUNKS, seed)[:CHUNKS]) for seed in range(5)]
        cut = [[b"".join(each[at : at + frames_a_read]) for at in range(0, len(each), frames_a_read)] for each in streams]
        spent: dict[str, list[float]] = {name: [] for name in builds}
        for repeat in range(REPEATS):
            for name, build in builds.items():
                reads = cut[repeat % len(cut)]
                spent[name].append(cpu(lambda: pass_on(reads, build)))  # noqa: B023  # run at once
        base = statistics.median(spent["no stage"])
        name = "burst" if frames_a_read == CHUNKS else f"{frames_a_read} a read"
        for what, seconds in spent.items():
            ratio = statistics.median(one / other for one, other in zip(seconds, spent["no stage"], strict=True))
            target = f"  at most {MAX_GROWTH}" if what.startswith("redact") and name == "burst" else ""
            print(f"  {name:10} {what:24} {base * ratio / STREAMS / CHUNKS * 1e6:6.2f} µs  ratio {ratio:.2f}{target}")


def recorded_streams() -> dict[str, list[Event]]:
    """The recordings of the tests that have text, as events, in the pieces in which they came."""
    streams: dict[str, list[Event]] = {}
    for path in sorted((ROOT / "tests/corpus").glob("*/*.events.jsonl")):
        events = [decode(line) for line in path.read_text().split("\n") if line]
        if any(isinstance(event, TextDelta) for event in events) and not any(isinstance(event, Choice) for event in events):
            streams[f"{path.parent.name}/{path.name.removesuffix('.events.jsonl')}"] = events
    return streams


def pieces_of(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, TextDelta)]


def held() -> None:
    streams = recorded_streams()
    print(f"characters held after each delta of {len(streams)} recorded streams; least: what no scanner can do without (oracle)")
    print(f"  {'detector':18} {'mean':>6} {'most':>6} {'in matches':>11}   on a part: {'mean':>6} {'least':>6}")
    for name in (*detectors(), "all"):
        patterns = patterns_of(detectors() if name == "all" else [name])
        compiled = PatternSet(patterns)
        sizes: list[int] = []
        matched = 0
        for events in streams.values():
            scanner = compiled.scanner()
            for piece in pieces_of(events):
                matched += sum(len(segment.text) for segment in scanner.feed(piece) if isinstance(segment, PatternMatch))
                sizes.append(len(scanner.held))
        expressions = {str(number): each.expression for number, each in enumerate(patterns)}
        ours, least = against_oracle(compiled, expressions, list(map(pieces_of, streams.values())))
        assert ours == least, "more is held than necessary"
        mean = statistics.mean(sizes)
        print(f"  {name:18} {mean:6.2f} {max(sizes):6} {matched:11}   {'':10} {ours:6.2f} {least:6.2f}")
    for use in ("redact", "block_patterns"):
        policies = load_policies([{"use": use, "detectors": list(detectors())}])
        trials = [try_policies([(0.0, [event]) for event in events], policies) for events in streams.values()]
        sizes = [len(step.held) for trial in trials for step in trial.steps]
        print(f"  {use}, all detectors, in all blocks: mean {statistics.mean(sizes):.2f}, most {max(sizes)} characters")


def against_oracle(compiled: PatternSet, patterns: dict[str, str], streams: list[list[str]]) -> tuple[float, float]:
    """Characters held on average after the first deltas of some recorded streams, and the least that must be held there."""
    ours, least = [], []
    for pieces in sorted(streams, key=len, reverse=True)[:ORACLE_STREAMS]:
        scanner = compiled.scanner()
        released, text = 0, ""
        for piece in pieces:
            if len(text) + len(piece) > ORACLE_CHARS:
                break
            text += piece
            for segment in scanner.feed(piece):
                released += len(segment if isinstance(segment, str) else segment.raw)  # type: ignore[union-attr]  # no overflow
            ours.append(len(scanner.held))
            least.append(len(text) - least_hold(patterns, text, released))
    return statistics.mean(ours), statistics.mean(least)


def growth() -> None:
    print("growth on patterns that make backtracking engines explode: seconds for n and 10 n characters in 4-character pieces")
    cases = [
        (r"(a+)+$", "a" * 2000 + "!"),
        (r"(a|aa)+b", "a" * 2500 + " "),
        (r"(?:a?){30}a{30}!", "a" * 1000 + " "),
        (r"\b[a-z]+@[a-z]+\.[a-z]+", "ab@ab."),
        (r"(x+x+)+y", "x" * 3000 + " "),
    ]
    for pattern, unit in cases:
        spent = []
        for size in (50_000, 500_000):
            text = (unit * (size // len(unit) + 1))[:size]
            scanner = PatternSet([Pattern("p", pattern)]).scanner()
            begin = time.process_time()
            for at in range(0, size, 4):
                scanner.feed(text[at : at + 4])
            scanner.close()
            spent.append(time.process_time() - begin)
        print(f"  {pattern:28} {spent[0]:7.3f} {spent[1]:7.3f}  exponent {math.log10(spent[1] / spent[0]):.2f}")


def words() -> None:
    source = random.Random(2)
    listed = ["".join(source.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(source.randrange(5, 12))) for _ in range(1000)]
    pieces = prose(4000)
    spent = {}
    for name, compiled in (
        ("word list", PatternSet([], {"words": listed})),
        ("expression", PatternSet([Pattern("words", rf"(?i)\b(?:{'|'.join(listed[:180])})\b")])),
    ):
        scanner = compiled.scanner()
        for piece in pieces:
            scanner.feed(piece)
        begin = time.process_time()
        for piece in pieces:
            scanner.feed(piece)
        spent[name] = (time.process_time() - begin) / len(pieces) * 1e6
    print(
        f"1,000 words as a list: {spent['word list']:.1f} µs a piece; 180 of them as one expression: {spent['expression']:.1f} µs"
    )


def replays(turns: int = 1000) -> None:
    print("policies replay, all detectors, one core")
    texts = [prose(400, seed) for seed in range(10)]
    streams: list[list[Event]] = [
        [StreamStart("r", "m", 1), TextStart(), *map(TextDelta, pieces), TextEnd(), StreamEnd()] for pieces in texts
    ]
    for what, made in (
        ("streams as they came", [RecordedTurn(str(number), events=streams[number % 10]) for number in range(turns)]),
        (
            "stored answers",
            [RecordedTurn(str(number), response=streamglot.collect(streams[number % 10])) for number in range(turns)],
        ),
    ):
        begin = time.process_time()
        report = replay_policies(made, ALL, processes=1)
        spent = time.process_time() - begin
        chars = turns * statistics.mean(sum(map(len, pieces)) for pieces in texts)
        speed = f"{report.events / spent:10,.0f} events/s, at least {LEAST_EVENTS:,}"
        print(f"  {what:22} {speed}; {chars / spent / 1e6:.1f} million characters/s")


if __name__ == "__main__":
    cost()
    held()
    growth()
    words()
    replays()
