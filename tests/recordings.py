"""The streams of tests/corpus, one directory per dialect, each with the events that it must give."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import streamglot
from streamglot.events import Event, decode, encode
from streamglot.framing.aws_eventstream import frame

FOLDER = Path(__file__).parent / "corpus"
GOLDEN = ".events.jsonl"


class Recording(NamedTuple):
    dialect: str
    name: str
    body: bytes
    golden: Path

    def events(self, provider: str | None = None) -> list[Event]:
        """``provider``: as a gateway calls the upstream."""
        box = streamglot.reader(self.dialect, provider=provider)
        return box.feed(self.body) + box.close()

    def expected(self) -> list[Event]:
        return [decode(line) for line in self.golden.read_text(encoding="utf-8").split("\n") if line]


def recordings() -> list[Recording]:
    return list(_found())


def _found() -> Iterator[Recording]:
    for path in sorted(FOLDER.glob("*/*")):
        if not path.name.endswith(GOLDEN):
            body = framed(path.read_text(encoding="utf-8")) if path.suffix == ".frames" else path.read_bytes()
            yield Recording(path.parent.name, path.stem, body, path.with_name(path.stem + GOLDEN))


def framed(lines: str) -> bytes:
    """Binary frames, stored as readable lines: ``{"event name": payload}``, an exception with a ``!`` before it."""
    return b"".join(_frame(*next(iter(json.loads(line).items()))) for line in lines.split("\n") if line)


def _frame(name: str, payload: Any) -> bytes:
    body = json.dumps(payload).encode()
    if name.startswith("!"):
        headers = {":exception-type": name[1:], ":content-type": "application/json", ":message-type": "exception"}
    else:
        headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    if name == "chunk":
        body = json.dumps({"bytes": base64.b64encode(body).decode()}).encode()
    return frame(body, headers)


def main() -> None:
    for recording in recordings():
        recording.golden.write_bytes(b"".join(encode(event) + b"\n" for event in recording.events()))


if __name__ == "__main__":
    main()
