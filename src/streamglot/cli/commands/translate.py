"""``streamglot translate``: converts a file or standard input from one dialect to another."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec

from ... import Event, collect, writer
from ...errors import BadCall, ConfigError
from ...events import StreamError, encode
from ...inspect.detection import EventReader, open_reader
from ...inspect.reading import InBandReader, PlainTextReader
from ...json_types import JsonValue
from ..files import SETTINGS_BYTES, read_file, read_json, shown

TEXT: Final = "text"
"""The name for plain text in place of a dialect."""
_READ_BYTES: Final = 65_536


class _Sink(Protocol):
    def feed(self, events: list[Event]) -> bytes: ...
    def close(self) -> bytes: ...


class _EventLines:
    """Writes one event a line."""

    def feed(self, events: list[Event]) -> bytes:
        return b"".join(encode(event) + b"\n" for event in events)

    def close(self) -> bytes:
        return b""


class _WholeResponse:
    """Writes the answer as one JSON object at the end."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def feed(self, events: list[Event]) -> bytes:
        self._events += events
        return b""

    def close(self) -> bytes:
        return msgspec.json.encode(collect(self._events)) + b"\n"


def declared_tools(path: Path | None) -> list[JsonValue] | None:
    """Returns the tool definitions in this file: a JSON list, as in chat requests."""
    if path is None:
        return None
    tools = read_json(read_file(path, SETTINGS_BYTES, "the tools file"), f"the tools file {shown(path)}")
    if not isinstance(tools, list):
        raise ConfigError(f"the tools file {shown(path)} must contain a JSON list of tool definitions")
    return tools


def run(
    file: Path | None,
    source: str,
    target: str,
    strict: bool,
    format: str | None = None,
    tools: Path | None = None,
    bad_call: BadCall = "incomplete",
) -> int:
    """``source`` is a dialect, ``events``, ``text`` (plain text, read by the in-band parser for ``format``), or empty: then the
    dialect is recognised."""
    box: EventReader = PlainTextReader() if source == TEXT else open_reader(source)
    if format is not None or source == TEXT:
        box = InBandReader(box, format or "none", declared_tools(tools), bad_call)
    sink: _Sink
    if target == "events":
        sink = _EventLines()
    elif target == "response":
        sink = _WholeResponse()
    else:
        sink = writer(target, strict=strict, include_usage=True)  # a recording loses nothing
    failed = False
    out = sys.stdout.buffer
    with ExitStack() as stack:
        stream = stack.enter_context(_opened(file)) if file else sys.stdin.buffer
        for events in _read(stream, box):
            failed = failed or any(isinstance(event, StreamError) for event in events)
            out.write(sink.feed(events))
            out.flush()
    out.write(sink.close())
    out.flush()
    return 1 if failed else 0


def _opened(file: Path) -> BinaryIO:
    try:
        return file.open("rb")
    except (OSError, ValueError) as error:  # a ValueError is a NUL in the name
        raise ConfigError(f"{shown(file)} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _read(stream: BinaryIO, box: EventReader) -> Iterator[list[Event]]:
    """Yields the events of each read as it arrives. It stops reading after an error, because the input may have no end."""
    while chunk := os.read(stream.fileno(), _READ_BYTES):
        events = box.feed(chunk)
        yield events
        if events and isinstance(events[-1], StreamError):
            return
    yield box.close()
