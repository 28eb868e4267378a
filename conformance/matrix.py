"""Every recorded stream through its reader, through every writer, and into the vendors' own clients over a real socket.

``python -m conformance.matrix CORPUS [--writer NAME] [--reader NAME] [--node] [--page FILE]``. A stream came through when
the client raised nothing of its own and understood the same text, reasoning, refusal, calls, finish and usage; where the
stream ended in an error, when the client reported one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import streamglot
from streamglot.messages import ReasoningPart, RefusalPart, Response, ResponseChoice, TextPart, ToolCallPart

from .oracles import ORACLES, Oracle, Reading
from .streams import DIALECTS, parsed

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from clients.node import NodeClients, missing
from clients.server import StreamServer

FINISH: dict[str, dict[str, str]] = {
    "openai_chat": {"length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter", "": "stop"},
    "openai_responses": {"length": "incomplete", "content_filter": "incomplete", "": "completed"},
    "anthropic": {
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "content_filter": "refusal",
        "refusal": "refusal",
        "pause": "pause_turn",
        "stop_sequence": "stop_sequence",
        "": "end_turn",
    },
    "gemini": {"length": "MAX_TOKENS", "content_filter": "SAFETY", "refusal": "SAFETY", "": "STOP"},
    "ollama": {"length": "length", "": "stop"},
    "openai_completions": {"length": "length", "content_filter": "content_filter", "": "stop"},
}
"""The word that each dialect has for our reason; "" for all others."""

NODE: dict[str, list[str]] = {
    "openai_chat": ["openai-chat", "ai-sdk-openai-compatible-6", "ai-sdk-openai-compatible-7"],
    "openai_responses": ["openai-responses", "ai-sdk-openai-responses"],
    "anthropic": ["anthropic", "ai-sdk-anthropic"],
    "gemini": ["google-genai"],
    "ollama": ["ollama"],
    "agui": ["ag-ui"],
    "vercel_ui": ["ai-6", "ai-7"],
}
"""The clients in Node that read each dialect."""

NO_REASONING = {"openai_completions"}
NO_CALLS = {"openai_completions"}
REFUSAL_IS_TEXT = {"anthropic", "gemini", "ollama", "openai_completions"}


def expected(response: Response, writer: str) -> Reading:
    """What a client of this dialect should understand."""
    choice = next((choice for choice in response.choices if choice.index == 0), ResponseChoice(0))
    reading = Reading()
    for part in choice.parts:
        match part:
            case TextPart():
                reading.text += part.text
            case RefusalPart() if writer in REFUSAL_IS_TEXT:
                reading.text += part.text
            case RefusalPart():
                reading.refusal += part.text
            case ReasoningPart() if writer not in NO_REASONING:
                reading.reasoning += part.text
            case ToolCallPart(kind="function") if writer not in NO_CALLS:
                reading.calls.append((part.name, parsed(part.arguments)))
            case ToolCallPart(kind="custom") if writer not in NO_CALLS:
                wrapped = writer in ("anthropic", "gemini", "ollama")
                reading.calls.append((part.name, {"input": part.arguments} if wrapped else part.arguments))
    words = FINISH[writer]
    reading.finish = words.get(choice.stop_reason or "", words[""])
    if response.usage.input_tokens is not None or response.usage.output_tokens is not None:
        reading.usage = (response.usage.input_tokens or 0, response.usage.output_tokens or 0)
    if response.error is not None:
        reading.error = response.error.message
    return reading


def difference(got: Reading, want: Reading) -> list[str]:
    if want.error is not None or got.error is not None:
        return [] if want.error is not None and got.error is not None else [f"error: {got.error!r}, wanted {want.error!r}"]
    faults = []
    for name in ("text", "reasoning", "refusal", "finish"):
        mine, theirs = getattr(got, name), getattr(want, name)
        if mine != theirs:
            faults.append(f"{name}: {mine!r:.120} is not {theirs!r:.120}")
    calls = [(name, parsed(arguments) if isinstance(arguments, str) else arguments) for name, arguments in got.calls]
    wanted = [(name, parsed(arguments) if isinstance(arguments, str) else arguments) for name, arguments in want.calls]
    if calls != wanted:
        faults.append(f"calls: {calls!r:.200} are not {wanted!r:.200}")
    if want.usage is not None and got.usage is not None and got.usage != want.usage:
        faults.append(f"usage: {got.usage} is not {want.usage}")
    return faults


def skips(client: str, response: Response) -> bool:
    """What a client cannot read at all, whoever writes it."""
    custom = any(isinstance(part, ToolCallPart) and part.kind == "custom" for choice in response.choices for part in choice.parts)
    broken = any(
        isinstance(part, ToolCallPart) and part.kind == "function" and isinstance(parsed(part.arguments), str)
        for choice in response.choices
        for part in choice.parts
    )
    return (custom and client in ("openai (helper)", "openrouter")) or (broken and client == "anthropic (helper)")


def rows(corpus: Path, reader: str | None) -> Iterator[tuple[str, str, bytes]]:
    root = corpus / "streams"
    for index in ("index.open.jsonl", "index.mutated.open.jsonl"):
        for line in (root / index).open():
            row = json.loads(line)
            dialect = DIALECTS.get(row["dialect"])
            if dialect in streamglot.DIALECTS and reader in (None, dialect):
                yield dialect, row["file"], (root / row["file"]).read_bytes()


def node_oracle(clients: NodeClients, name: str) -> Oracle:
    def read(url: str) -> Reading:
        said = clients.read(name, url)
        if said["error"] and said["rejected"]:
            raise RuntimeError(said["error"])
        usage = said["usage"] or {}
        return Reading(
            said["text"],
            said["reasoning"],
            "",
            [(call["name"], call["arguments"]) for call in said["toolCalls"]],
            None,
            (usage["input"], usage["output"]) if "input" in usage and "output" in usage else None,
            said["error"],
        )

    return read


class Matrix:
    """One cell for each reader, writer and client."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str, str], Counter[str]] = {}

    def note(self, reader: str, writer: str, client: str, file: str, faults: list[str]) -> None:
        count = self.cells.setdefault((reader, writer, client), Counter())
        count["streams"] += 1
        if faults:
            count["wrong"] += 1
            print(f"WRONG {reader} -> {writer}, read by {client}: {file}", *faults, sep="\n    ")

    def page(self) -> str:
        lines = ["| reader | writer | client | streams | came through |", "|---|---|---|---|---|"]
        for (reader, writer, client), count in sorted(self.cells.items()):
            lines.append(f"| {reader} | {writer} | {client} | {count['streams']} | {count['streams'] - count['wrong']} |")
        return "\n".join([*lines, ""])


def run(corpus: Path, only_reader: str | None, only_writer: str | None, node: bool) -> Matrix:
    matrix = Matrix()
    with ExitStack() as stack:
        server = stack.enter_context(StreamServer())
        oracles: dict[str, dict[str, Oracle]] = {writer: dict(clients) for writer, clients in ORACLES.items()}
        if node:
            process = stack.enter_context(NodeClients())
            for writer, names in NODE.items():
                for name in names:
                    oracles.setdefault(writer, {})[f"{name} (node)"] = node_oracle(process, name)
        for reader, file, body in rows(corpus, only_reader):
            box = streamglot.reader(reader)
            events = box.feed(body) + box.close()
            response = streamglot.collect(events)
            for writer, clients in oracles.items():
                if writer not in streamglot.DIALECTS or only_writer not in (None, writer):
                    continue
                out = streamglot.writer(writer)
                url = server.serve(out.feed(events) + out.close(), streamglot.DIALECTS[writer].media_type)
                want = expected(response, writer)
                for client, oracle in clients.items():
                    if not skips(client, response):
                        matrix.note(reader, writer, client, file, judge(oracle, url, want))
                server.forget()
    return matrix


def judge(oracle: Oracle, url: str, want: Reading) -> list[str]:
    try:
        return difference(oracle(url), want)
    except Exception as error:  # whatever a client throws is the finding here
        return [f"{type(error).__name__}: {error!s:.300}"]


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("corpus", type=Path)
    options.add_argument("--writer")
    options.add_argument("--reader")
    options.add_argument("--node", action="store_true")
    chosen: Any = options.parse_args()
    if chosen.node and missing():
        sys.exit(f"cannot run the clients in Node: {missing()}")
    matrix = run(chosen.corpus, chosen.reader, chosen.writer, chosen.node)
    print(matrix.page())
    return 1 if any(count["wrong"] for count in matrix.cells.values()) else 0


_: Callable[..., Any] = main
if __name__ == "__main__":
    sys.exit(main())
