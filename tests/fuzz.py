"""Random and broken input for any time: ``python -m tests.fuzz SECONDS [SEED]``. Stops at the first fault."""

from __future__ import annotations

import os
import random
import re
import sys
import time
from pathlib import Path

import streamglot
from streamglot import DIALECTS

LIMITS = streamglot.Limits(
    line_bytes=20_000,
    event_bytes=20_000,
    event_lines=200,
    response_bytes=200_000,
    block_chars=50_000,
    blocks=200,
    held_blocks=20,
    extra_bytes=5_000,
    media_chars=5_000,
)
PIECES = [
    b"{",
    b"}",
    b'"',
    b"\\",
    b"\n\n",
    b"\r",
    b"data: ",
    b"null",
    b"-1",
    b"[]",
    b"{}",
    b'""',
    b"\xff",
    b"\\ud83d",
    b"[DONE]",
    b"1e999",
]
VALUE = re.compile(rb'(?<=:)\s*(?:"[^"\\]*"|-?\d+|true|false|null|\{\}|\[\])')


def seeds() -> list[bytes]:
    found = [path.read_bytes() for path in sorted(Path(__file__).parents[1].glob("examples/*")) if path.is_file()]
    corpus = os.environ.get("STREAMGLOT_CORPUS")
    if corpus:
        paths = sorted(path for path in Path(corpus).glob("streams/corpus/**/*") if path.is_file())
        found += [path.read_bytes()[:30_000] for path in paths]
    return found


def mutated(data: bytes, others: list[bytes], source: random.Random) -> bytes:
    for _ in range(source.randint(1, 6)):
        place = source.randrange(len(data) + 1)
        match source.randrange(7):
            case 0:
                data = data[:place] + source.choice(PIECES) + data[place:]
            case 1:
                data = data[:place] + data[place + source.randrange(60) :]
            case 2:
                data = data[:place]
            case 3:
                data = data[:place] + data[max(0, place - source.randrange(2000)) :]
            case 4:
                other = source.choice(others)
                data = data[:place] + other[source.randrange(len(other) + 1) :]
            case 5:
                data = VALUE.sub(lambda match: source.choice(PIECES[7:]) if source.random() < 0.02 else match[0], data)
            case _:
                data = bytes(byte if source.random() > 0.002 else source.randrange(256) for byte in data[:5000]) + data[5000:]
    return data[:100_000]


def try_one(dialect: str, data: bytes, source: random.Random) -> None:
    whole = streamglot.reader(dialect, limits=LIMITS)
    events = whole.feed(data) + whole.close()
    streamglot.check(events)
    cut = streamglot.reader(dialect, limits=LIMITS)
    again: list[streamglot.Event] = []
    position = 0
    while position < len(data):
        size = source.choice((1, 5, 40, 1000))
        again += cut.feed(data[position : position + size])
        position += size
    assert again + cut.close() == events, "other events when cut"
    response = streamglot.collect(events)
    streamglot.check(streamglot.replay(response))
    for name, target in DIALECTS.items():
        if target.has_writer:
            box = streamglot.writer(name)
            assert box.feed(events) + box.close(), name
        if target.has_writer and target.has_response:
            target.build_response(response)


def run(seconds: float, seed: int) -> int:
    source = random.Random(seed)
    samples = seeds()
    readers = [name for name, entry in DIALECTS.items() if entry.has_reader]
    end = time.monotonic() + seconds
    tried = 0
    while time.monotonic() < end:
        dialect = source.choice(readers)
        data = mutated(source.choice(samples), samples, source)
        try:
            try_one(dialect, data, source)
        except Exception:
            fault = Path(f"fuzz-{dialect}-{seed}-{tried}.bin")
            fault.write_bytes(data)
            print(f"{dialect}: the input is in {fault}", file=sys.stderr)
            raise
        tried += 1
    return tried


if __name__ == "__main__":
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    chosen = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(2**32)
    print(f"{run(limit, chosen)} inputs, seed {chosen}: nothing but events and errors of ours")
