"""``streamglot replay``: a recording played again, with its timing, in any dialect."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from .. import Event, reader, writer
from ..errors import ConfigError
from ..events import StreamError, decode, encode
from .answer import Look
from .terminal import complain

_MARKS: Final = (
    (b'"type":"stream_start"', "events"),
    (b"event: message_start", "anthropic"),
    (b"event:message_start", "anthropic"),
    (b"response.created", "openai_responses"),
    (b"chat.completion.chunk", "openai_chat"),
    (b"text_completion", "openai_completions"),
    (b'"candidates"', "gemini"),
    (b"content-delta", "cohere"),
    (b"message-start", "cohere"),
    (b":event-type", "bedrock_converse"),
    (b'"done":', "ollama"),
    (b'"choices"', "openai_chat"),
)
"""What the beginning of a stream gives away."""
LOOKED_AT: Final = 8192


class _Box(Protocol):
    def feed(self, chunk: bytes, /) -> list[Event]: ...
    def close(self) -> list[Event]: ...


def guess(data: bytes) -> str:
    """The dialect of a recording, by its first bytes."""
    start = data[:LOOKED_AT].replace(b'": ', b'":')
    for mark, name in _MARKS:
        if mark in start:
            return name
    raise ConfigError("the dialect of this recording cannot be guessed: say it with --from")


def run(file: Path, source: str, target: str, speed: str) -> int:
    pace = _pace(speed)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None
    source = source or guess(data)
    box: _Box = _EventLines() if source == "events" else reader(source)
    failure: StreamError | None = None
    printer = Look().printer() if target == "text" else None
    sink = None if target in ("text", "events") else writer(target)
    out = sys.stdout.buffer
    try:
        for events in _events(box, _paced(pieces(file, data), pace)):
            failure = next((event for event in events if isinstance(event, StreamError)), failure)
            if printer is not None:
                for event in events:
                    printer.feed(event)
                continue
            written = b"".join(encode(event) + b"\n" for event in events) if sink is None else sink.feed(events)
            if written:
                out.write(written)
                out.flush()
        if sink is not None:
            out.write(sink.close())
            out.flush()
    finally:
        if printer is not None:
            printer.close()
    if failure is not None:
        complain(failure.message)
    return 1 if failure is not None else 0


def pieces(file: Path, data: bytes) -> list[tuple[float, bytes]]:
    """The recording as it came: by the times beside it, or line by line if there are none."""
    times = file.with_name(f"{file.name}.times")
    if not times.is_file():
        return [(0.0, line) for line in data.splitlines(keepends=True)]
    found: list[tuple[float, bytes]] = []
    position = 0
    try:
        for line in times.read_text().splitlines():
            when, size = line.split()
            found.append((float(when), data[position : position + int(size)]))
            position += int(size)
    except ValueError:
        raise ConfigError(f"{times} is not a list of `SECONDS BYTES` lines") from None
    if position < len(data):
        found.append((found[-1][0] if found else 0.0, data[position:]))
    return found


def _paced(given: list[tuple[float, bytes]], pace: float) -> Iterator[bytes]:
    began = time.monotonic()
    for when, piece in given:
        wait = began + when / pace - time.monotonic() if pace else 0.0
        if wait > 0:
            time.sleep(wait)
        yield piece


def _events(box: _Box, given: Iterator[bytes]) -> Iterator[list[Event]]:
    for piece in given:
        events = box.feed(piece)
        if events:
            yield events
    yield box.close()


def _pace(speed: str) -> float:
    try:
        pace = float(speed.strip().lower().removesuffix("x"))
    except ValueError:
        pace = -1.0
    if not 0 <= pace < float("inf"):
        raise ConfigError(f"the speed {speed!r} is no number of times, such as 2x, 0.5x or 0")
    return pace


class _EventLines:
    """A recording of our own events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Event]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        try:
            return [decode(line) for line in lines if line.strip()]
        except ValueError as error:
            raise ConfigError(f"this is no recording of events: {error}") from None

    def close(self) -> list[Event]:
        return self.feed(b"\n")
