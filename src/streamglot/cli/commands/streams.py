"""``streamglot translate`` and ``replay``: recorded and live streams, written in another dialect, at once or with their timing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final, Protocol, get_args

import click
import msgspec

from ... import Event, collect, writer
from ...errors import BadCall, ConfigError
from ...events import StreamError, encode
from ...inspect.detection import EventReader, InBandReader, PlainTextReader, open_reader
from .. import completion
from ..options import (
    FILE,
    Command,
    completed,
    declared_tools,
    read_file,
    shown,
    text,
)
from ..output.printers import DisplayOptions
from ..output.terminal import print_error

TEXT: Final = "text"
"""The name for plain text in place of a dialect."""
_READ_BYTES: Final = 65_536
READ_BYTES: Final = 2**16
"""Bytes of one read of a recording without times."""
TIMES_BYTES: Final = 2**26
"""Bytes of the largest list of times: enough for more than a million lines."""
LONGEST_SECONDS: Final = 7 * 86_400.0
"""Seconds of the longest recording: a week."""
LARGEST_PIECE_BYTES: Final = 2**26
"""Bytes of the largest read in a list of times: no connection delivers more at once."""
DIALECTS = completed(completion.dialects)


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


@click.command(
    cls=Command,
    examples=(
        "streamglot translate --to openai_chat recording.sse",
        "streamglot translate --to response < recording.sse     # the whole answer",
        "streamglot translate --from text --inband hermes out.txt",
    ),
)
@click.argument("file", type=FILE, required=False)
@click.option(
    "--from",
    "source",
    type=text,
    default="",
    help="The dialect of the input, `events`, or `text`. By default it is recognised by the first bytes.",
    shell_complete=DIALECTS,
)
@click.option(
    "--to",
    "target",
    type=text,
    default="events",
    show_default=True,
    help="A dialect; `events`, one a line; or `response`, the whole answer as one JSON object.",
    shell_complete=DIALECTS,
)
@click.option("--strict/--no-strict", default=False, help="Write only the fields of the dialect's specification.")
@click.option("--inband", type=text, help="The format of calls and reasoning inside the text (see `streamglot formats`).")
@click.option("--tools", type=FILE, help="A JSON list of the tools that were declared, for --inband.")
@click.option(
    "--bad-call",
    type=click.Choice(get_args(BadCall)),
    default="incomplete",
    show_default=True,
    help="What to do with a call that --inband cannot parse: an incomplete call and an error, text, or an error at once.",
)
def translate(
    file: Path | None, source: str, target: str, strict: bool, inband: str | None, tools: Path | None, bad_call: BadCall
) -> int:
    """Read a stream in one dialect and write it in another, live.

    FILE is a recorded stream; by default standard input. The exit status is 1 if the stream ended in an error.
    """
    box: EventReader = PlainTextReader() if source == TEXT else open_reader(source)
    if inband is not None or source == TEXT:
        box = InBandReader(box, inband or "none", declared_tools(tools), bad_call)
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
    """The events of each read as it arrives. It stops reading after an error, because the input may have no end."""
    while chunk := os.read(stream.fileno(), _READ_BYTES):
        events = box.feed(chunk)
        yield events
        if events and isinstance(events[-1], StreamError):
            return
    yield box.close()


# --- recordings with their times


@click.command(
    cls=Command,
    examples=(
        "streamglot replay recording.sse",
        "streamglot replay recording.sse --as anthropic --speed 2x",
    ),
)
@click.argument("file", type=FILE)
@click.option(
    "--as",
    "target",
    type=text,
    default="text",
    show_default=True,
    help="A dialect; `events`; or `text`, the answer as `query` shows it.",
    shell_complete=DIALECTS,
)
@click.option(
    "--from",
    "source",
    type=text,
    default="",
    help="The dialect of the recording. By default it is recognised by the first bytes.",
    shell_complete=DIALECTS,
)
@click.option(
    "--speed", type=text, default="1x", show_default=True, help="1x is the recorded speed, 2x twice as fast, 0 without pauses."
)
def replay(file: Path, source: str, target: str, speed: str) -> int:
    """Play a recorded stream with its timing, in any dialect.

    FILE has the bytes of a stream. Their times are read from FILE.times if it exists.
    """
    pace = _pace(speed)
    box = open_reader(source)
    failure: StreamError | None = None
    printer = DisplayOptions().printer() if target == "text" else None
    sink = None if target in ("text", "events") else writer(target, include_usage=True)
    out = sys.stdout.buffer
    try:
        for events in _events(box, _paced(pieces(file), pace)):
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
        print_error(failure.message)
    return 1 if failure is not None else 0


def pieces(file: Path) -> Iterator[tuple[float, bytes]]:
    """The pieces of a recording with their times. The times come from the list beside it; without a list all are 0."""
    try:
        with file.open("rb") as recording:
            when = 0.0
            for when, size in _times(file.with_name(f"{file.name}.times")):
                yield when, recording.read(size)
            while rest := recording.read(READ_BYTES):
                yield when, rest
    except (OSError, ValueError) as error:  # a ValueError is a NUL in the name
        raise ConfigError(f"{shown(file)} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _times(path: Path) -> list[tuple[float, int]]:
    if not path.is_file():
        return []
    found = []
    try:
        for line in read_file(path, TIMES_BYTES, "the list of times").decode().splitlines():
            when, size = line.split()
            found.append((_within(float(when), LONGEST_SECONDS), int(_within(int(size), LARGEST_PIECE_BYTES))))
    except ValueError:
        raise ConfigError(f"{shown(path)} is not a list of `SECONDS BYTES` lines") from None
    return found


def _within(value: float, limit: float) -> float:
    if not 0 <= value <= limit:
        raise ValueError(f"{value} is out of range")
    return value


def _paced(given: Iterable[tuple[float, bytes]], pace: float) -> Iterator[bytes]:
    began = time.monotonic()
    for when, piece in given:
        wait = began + when / pace - time.monotonic() if pace else 0.0
        if wait > 0:
            time.sleep(wait)
        yield piece


def _events(box: EventReader, given: Iterator[bytes]) -> Iterator[list[Event]]:
    """The events of each piece, up to an error. Input after an error is not read."""
    for piece in given:
        events = box.feed(piece)
        if events:
            yield events
        if events and isinstance(events[-1], StreamError):
            return
    yield box.close()


def _pace(speed: str) -> float:
    try:
        pace = float(speed.strip().lower().removesuffix("x"))
    except ValueError:
        pace = -1.0
    if not 0 <= pace < float("inf"):
        raise ConfigError(f"the speed {speed!r} is not valid; write a factor such as 2x or 0.5x, or 0 for no pauses")
    return pace
