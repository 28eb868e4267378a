"""Every recorded stream through its reader: ``python -m conformance.streams CORPUS [--dialect NAME] [--verbose]``.

A row counts as right when the events are the same whole, byte by byte and in random cuts, pass the grammar, and add up to
what the corpus says of the stream (text, reasoning, refusal, tool calls with arguments equal as JSON, finish, usage). A
damaged stream must give the same answer, or an error with the partial answer kept, as its operation demands.

Streams that we decide otherwise are listed, with the reason, in ``exceptions.toml``. Those under ``accepted`` were decided and
do not count. More than 2.5 % of others in one dialect, or one stream that is wrong and not listed, fail the run.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import streamglot
from streamglot.messages import ReasoningPart, RefusalPart, Response, ResponseChoice, TextPart, ToolCallPart

DIALECTS = {
    "openai-chat": "openai_chat",
    "openai-responses": "openai_responses",
    "anthropic-messages": "anthropic",
    "gemini-generate": "gemini",
    "ollama-chat": "ollama",
    "ollama-generate": "ollama",
    "qwen-web": "qwen_web",
    "bedrock-converse": "bedrock_converse",
    "bedrock-invoke": "bedrock_invoke",
    "cohere-v2": "cohere",
    "openai-completions": "openai_completions",
}
ALLOWED = 0.025
"""The share of listed exceptions that were not accepted, in each dialect."""
EXCEPTIONS = Path(__file__).with_name("exceptions.toml")


def events_of(dialect: str, pieces: Iterator[bytes]) -> list[streamglot.Event]:
    reader = streamglot.reader(dialect)
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.close()


def random_cuts(body: bytes, source: random.Random) -> Iterator[bytes]:
    position = 0
    while position < len(body):
        size = source.choice((1, 2, 3, 7, 30, 200, 1400))
        yield body[position : position + size]
        position += size


def parsed(arguments: str | None) -> Any:
    if not arguments:
        return {}
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def joined(choice: ResponseChoice, kind: type) -> str:
    return "".join(part.text for part in choice.parts if type(part) is kind)  # type: ignore[union-attr]  # a kind with text


def compare(response: Response, wanted: dict[str, Any], refused: bool = False) -> list[str]:
    """The differences between the answer and the corpus. ``refused``: the official client reported an error."""
    faults = []
    choices = {choice.index: choice for choice in response.choices}
    for want in wanted["choices"]:
        choice = choices.get(want["choice"], ResponseChoice(want["choice"]))
        for name, kind in (("text", TextPart), ("reasoning", ReasoningPart), ("refusal", RefusalPart)):
            if joined(choice, kind) != (want.get(name) or ""):
                faults.append(f"{name}: {joined(choice, kind)[:60]!r} is not {(want.get(name) or '')[:60]!r}")
        calls = [
            (part.name, parsed(part.arguments))
            for part in choice.parts
            if isinstance(part, ToolCallPart) and part.kind != "server"
        ]
        told = [(call["name"], parsed(call["arguments"])) for call in want["tool_calls"]]
        if calls != told:
            faults.append(f"tool calls: {calls!r:.200} are not {told!r:.200}")
        if refused and response.error:
            continue
        if str(choice.raw_stop_reason) != str(want["finish_reason"]):
            faults.append(f"finish: {choice.raw_stop_reason!r} is not {want['finish_reason']!r} ({response.error!r:.120})")
        if want["finish_reason"] and response.error:
            faults.append(f"error: {response.error!r:.200}")
    return faults + compare_usage(response, wanted.get("usage"))


def compare_usage(response: Response, told: dict[str, Any] | None) -> list[str]:
    """Totals by the arithmetic of each vendor's words, worked out here a second time."""
    if not told:
        return []
    inner = told.get("tokens") if isinstance(told.get("tokens"), dict) else told
    assert isinstance(inner, dict)

    def count(*names: str) -> float:
        return sum(float(inner[name]) for name in names if isinstance(inner.get(name), (int, float)))

    if "promptTokenCount" in told or "candidatesTokenCount" in told:
        want = (count("promptTokenCount", "toolUsePromptTokenCount"), count("candidatesTokenCount", "thoughtsTokenCount"))
    elif "prompt_token_count" in told or "candidates_token_count" in told:
        read, written = ("prompt_token_count", "tool_use_prompt_token_count"), ("candidates_token_count", "thoughts_token_count")
        want = (count(*read), count(*written))
    elif "prompt_tokens" in told or "completion_tokens" in told:
        want = (count("prompt_tokens"), count("completion_tokens"))
    elif "prompt_eval_count" in told or "eval_count" in told:
        want = (count("prompt_eval_count"), count("eval_count"))
    elif "cacheReadInputTokenCount" in told and "cacheReadInputTokens" not in told:
        names = ("inputTokenCount", "inputTokens", "cacheReadInputTokenCount", "cacheWriteInputTokenCount")
        want = (count(*names), count("outputTokenCount", "outputTokens"))
    elif "inputTokens" in told:
        want = (count("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens"), count("outputTokens"))
    else:
        want = (count("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"), count("output_tokens"))
    got = (response.usage.input_tokens or 0, response.usage.output_tokens or 0)
    return [] if got == want else [f"usage: {got} is not {want} ({told!r:.160})"]


def compare_broken(response: Response, base: dict[str, Any] | None) -> list[str]:
    faults = [] if response.error else ["a broken stream was reported as finished"]
    for want in (base or {}).get("choices", []):
        for choice in response.choices:
            if choice.index == want["choice"] and not (want["text"] or "").startswith(joined(choice, TextPart)):
                faults.append("the partial text is no beginning of the whole one")
    return faults


def check(row: dict[str, Any], root: Path, summaries: dict[str, dict[str, Any]]) -> list[str]:
    dialect = DIALECTS[row["dialect"]]
    body = (root / row["file"]).read_bytes()
    whole = events_of(dialect, iter([body]))
    faults = []
    if events_of(dialect, (body[i : i + 1] for i in range(len(body)))) != whole:
        faults.append("byte by byte gives other events")
    if events_of(dialect, random_cuts(body, random.Random(row["file"]))) != whole:
        faults.append("random cuts give other events")
    try:
        streamglot.check(whole)
    except streamglot.GrammarError as error:
        faults.append(f"grammar: {error}")
    response = streamglot.collect(whole)
    must = row.get("must") or {}
    if "stream_ended_early" in must or "error_event" in must:
        return faults + compare_broken(response, summaries.get(row.get("base", "")))
    wanted = row.get("reference") or row.get("summary") or summaries.get(row.get("base", ""))
    if must.get("both_equal_base"):
        first = summaries[row["base"]]["choices"][0]
        wanted = {"choices": [{**first, "choice": index} for index in range(must["choices"])]}
    if wanted and "choices" not in wanted and row.get("summary"):
        summary = row["summary"]
        wanted = {"choices": [{**summary["choices"][0], **wanted}], "usage": summary.get("usage")}
    refused = (row.get("expected") or {}).get("ok") is False
    if not wanted or "choices" not in wanted:
        return faults + (["the official client fails here, and we report no error"] if refused and not response.error else [])
    return faults + compare(response, wanted, refused)


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("corpus", type=Path)
    options.add_argument("--dialect")
    options.add_argument("--verbose", action="store_true")
    chosen = options.parse_args()
    root = chosen.corpus / "streams"
    tables: dict[str, dict[str, str]] = tomllib.loads(EXCEPTIONS.read_text(encoding="utf-8"))
    accepted, listed = tables["accepted"], tables["listed"]
    rows = [json.loads(line) for line in (root / "index.open.jsonl").open()]
    summaries = {row["file"]: row.get("reference") or row.get("summary") for row in rows}
    rows += [json.loads(line) for line in (root / "index.mutated.open.jsonl").open()]
    tally: dict[str, Counter[str]] = {}
    for row in rows:
        dialect = DIALECTS.get(row["dialect"])
        if dialect not in streamglot.DIALECTS or (chosen.dialect and dialect != chosen.dialect):
            continue
        faults = check(row, root, summaries)
        kind = "damaged" if row["provenance"] == "mutated" else "recorded"
        count = tally.setdefault(f"{dialect} {kind}", Counter())
        count["streams"] += 1
        if faults and row["file"] in accepted:
            count["accepted"] += 1
        elif faults and row["file"] in listed:
            count["listed"] += 1
        elif faults:
            count["wrong"] += 1
            print(f"WRONG {row['file']}", *faults, sep="\n    ")
        elif chosen.verbose:
            print(f"right {row['file']}")
    dialects: dict[str, Counter[str]] = {}
    for name, count in sorted(tally.items()):
        right = count["streams"] - count["wrong"] - count["accepted"] - count["listed"]
        exceptions = f"{count['accepted']} accepted and {count['listed']} listed exceptions"
        print(f"{name:32} {right:4} right of {count['streams']:4}, {exceptions}, {count['wrong']} wrong")
        dialects.setdefault(name.split()[0], Counter()).update(count)
    return 1 if any(count["wrong"] or count["listed"] > ALLOWED * count["streams"] for count in dialects.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
