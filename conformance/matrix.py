"""Every recorded stream through its reader, through every writer, and into the vendors' own clients over a real socket.

``python -m conformance.matrix CORPUS [--writer NAME] [--reader NAME] [--client NAME] [--node] [--page FILE]``. A stream
came through when the client raised nothing of its own and understood the same text, reasoning, refusal, calls, finish and
usage; where the stream ended in an error, when the client reported one. What a client cannot read is in ``limits.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import streamglot
from streamglot import Event

from .expected import difference, expected
from .limits import limit_of
from .oracles import ORACLES, Oracle, Reading
from .page import cells_of, conformance_page
from .state import MAKER
from .streams import DIALECTS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from clients.node import NodeClients, missing
from clients.server import StreamServer

NODE: Final[dict[str, list[str]]] = {
    "openai_chat": ["openai-chat", "ai-sdk-openai-compatible-6", "ai-sdk-openai-compatible-7"],
    "openai_responses": ["openai-responses", "ai-sdk-openai-responses"],
    "anthropic": ["anthropic", "ai-sdk-anthropic"],
    "gemini": ["google-genai"],
    "ollama": ["ollama"],
    "agui": ["ag-ui"],
    "vercel_ui": ["ai-6", "ai-7"],
}
"""The clients in Node that read each dialect."""
ASKS: Final[dict[str, dict[str, str]]] = {"openrouter": {"reasoning_field": "reasoning"}}
"""What a client has to ask a gateway for, because it reads another field than most."""


class Matrix:
    """One cell for each reader, writer and client. ``report`` receives every stream that failed."""

    def __init__(self, report: Callable[[str], None] = print) -> None:
        self.cells: dict[tuple[str, str, str], Counter[str]] = {}
        self._report = report

    def note(self, reader: str, writer: str, client: str, file: str, faults: list[str] | None) -> None:
        """``faults`` is None where the client cannot read such a stream at all."""
        count = self.cells.setdefault((reader, writer, client), Counter())
        if faults is None:
            count["skipped"] += 1
            return
        count["streams"] += 1
        if faults:
            count["wrong"] += 1
            self._report("\n    ".join([f"WRONG {reader} -> {writer}, read by {client}: {file}", *faults]))

    @property
    def wrong(self) -> int:
        return sum(count["wrong"] for count in self.cells.values())


class Clients:
    """All clients of all dialects, with the server from which they read. ``only`` chooses one by its name."""

    def __init__(self, node: bool, only: str | None = None) -> None:
        self._stack = ExitStack()
        self._node = node
        self._only = only

    def __enter__(self) -> Self:
        self._server = self._stack.enter_context(StreamServer())
        self._process = self._stack.enter_context(NodeClients()) if self._node else None
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def run(self, matrix: Matrix, reader: str, file: str, events: list[Event], only_writer: str | None = None) -> None:
        """One stream through every writer into every client. Those in Node read while those in Python do."""
        response = streamglot.collect(events)
        asked: list[tuple[str, str]] = []
        waiting: list[tuple[str, str, str, Oracle]] = []
        for writer in dict.fromkeys([*ORACLES, *NODE]):
            if only_writer not in (None, writer):
                continue
            url = self._serve(writer, events)
            for name in NODE.get(writer, ()) if self._process else ():
                client = f"{name} (node)"
                if limit_of(client, response) is not None:
                    matrix.note(reader, writer, client, file, None)
                elif self._only in (None, client) and self._process is not None:
                    self._process.ask(name, url)
                    asked.append((writer, client))
            for client, oracle in ORACLES.get(writer, {}).items():
                if limit_of(client, response) is not None:
                    matrix.note(reader, writer, client, file, None)
                elif self._only in (None, client):
                    asks = ASKS.get(client)
                    waiting.append((writer, client, self._serve(writer, events, **asks) if asks else url, oracle))
        for writer, client, url, oracle in waiting:
            faults = judged(lambda oracle=oracle, url=url: oracle(url), expected(response, reader, writer, client))  # type: ignore[misc]  # a default binds the variable
            matrix.note(reader, writer, client, file, faults)
        for writer, client in asked:
            assert self._process is not None
            answer = self._process.answer()
            faults = judged(lambda answer=answer: node_reading(answer), expected(response, reader, writer, client))  # type: ignore[misc]  # a default binds the variable
            matrix.note(reader, writer, client, file, faults)
        self._server.forget()

    def _serve(self, writer: str, events: list[Event], **options: object) -> str:
        out = streamglot.DIALECTS[writer].writer(include_usage=True, **options)
        return self._server.serve(out.feed(events) + out.close(), streamglot.DIALECTS[writer].media_type)


def judged(read: Callable[[], Reading], want: Reading) -> list[str]:
    try:
        return difference(read(), want)
    except Exception as error:  # any exception of a client is a finding
        return [f"{type(error).__name__}: {error!s:.300}"]


def node_reading(said: dict[str, Any]) -> Reading:
    if said["error"] and said["rejected"]:
        raise RuntimeError(said["error"])
    usage = said["usage"] or {}
    return Reading(
        said["text"],
        said["reasoning"],
        said.get("refusal", ""),
        [(call["name"], call["arguments"]) for call in said["toolCalls"] if not call.get("server")],
        said["finish"],
        (usage.get("input", 0), usage.get("output", 0)) if usage else None,
        said["error"],
    )


def rows(corpus: Path, reader: str | None, damaged: bool = True) -> Iterator[tuple[str, str, bytes]]:
    """``damaged``: those too that were changed so that a part of them is wrong."""
    root = corpus / "streams"
    for index in ("index.open.jsonl", *(["index.mutated.open.jsonl"] if damaged else [])):
        for line in (root / index).open():
            row = json.loads(line)
            dialect = DIALECTS.get(row["dialect"])
            if dialect is not None and dialect in streamglot.DIALECTS and reader in (None, dialect):
                yield dialect, row["file"], (root / row["file"]).read_bytes()


def run(streams: Iterable[tuple[str, str, bytes]], clients: Clients, only_writer: str | None = None) -> Matrix:
    matrix = Matrix()
    for reader, file, body in streams:
        box = streamglot.reader(reader, provider=MAKER)
        clients.run(matrix, reader, file, box.feed(body) + box.close(), only_writer)
    return matrix


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("corpus", type=Path)
    options.add_argument("--writer")
    options.add_argument("--reader")
    options.add_argument("--client")
    options.add_argument("--node", action="store_true")
    options.add_argument("--page", type=Path)
    chosen = options.parse_args()
    if chosen.page and (chosen.reader or chosen.writer or chosen.client or not chosen.node):
        sys.exit("a page is made of the whole run: give --node, and choose nothing")
    if chosen.node and missing():
        sys.exit(f"cannot run the clients in Node: {missing()}")
    with Clients(chosen.node, chosen.client) as clients:
        matrix = run(rows(chosen.corpus, chosen.reader), clients, chosen.writer)
    for (reader, writer, client), count in sorted(matrix.cells.items()):
        right, skipped = count["streams"] - count["wrong"], count["skipped"]
        print(f"{reader:20} {writer:20} {client:34} {right:4} of {count['streams']:4}" + (f", {skipped} skipped" * bool(skipped)))
    if chosen.page:
        chosen.page.write_text(conformance_page(cells_of(matrix.cells)))
    return 1 if matrix.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
