"""``streamglot translate``: a file or standard input from one dialect to another."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from .. import Event, collect, reader, writer
from ..events import StreamError, encode

_READ_BYTES = 65_536


class _Sink(Protocol):
    def feed(self, events: list[Event]) -> bytes: ...
    def close(self) -> bytes: ...


class _EventLines:
    """One event a line."""

    def feed(self, events: list[Event]) -> bytes:
        return b"".join(encode(event) + b"\n" for event in events)

    def close(self) -> bytes:
        return b""


class _WholeResponse:
    """The answer as one JSON object, at the end."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def feed(self, events: list[Event]) -> bytes:
        self._events += events
        return b""

    def close(self) -> bytes:
        return msgspec.json.encode(collect(self._events)) + b"\n"


def run(file: Path | None, source: str, target: str, strict: bool) -> int:
    box = reader(source)
    sink: _Sink
    if target == "events":
        sink = _EventLines()
    elif target == "response":
        sink = _WholeResponse()
    else:
        sink = writer(target, strict=strict)
    failed = False
    out = sys.stdout.buffer
    with ExitStack() as stack:
        stream = stack.enter_context(file.open("rb")) if file else sys.stdin.buffer
        for events in _read(stream, box):
            failed = failed or any(isinstance(event, StreamError) for event in events)
            out.write(sink.feed(events))
            out.flush()
    out.write(sink.close())
    out.flush()
    return 1 if failed else 0


class _Reader(Protocol):
    def feed(self, chunk: bytes) -> list[Event]: ...
    def close(self) -> list[Event]: ...


def _read(stream: BinaryIO, box: _Reader) -> Iterator[list[Event]]:
    """What is there is read at once: a slow stream is translated as it comes."""
    while chunk := os.read(stream.fileno(), _READ_BYTES):
        yield box.feed(chunk)
    yield box.close()
