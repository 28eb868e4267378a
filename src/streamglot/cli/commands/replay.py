"""``streamglot replay``: plays a recording with its timing, in any dialect."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ... import Event, writer
from ...errors import ConfigError
from ...events import StreamError, encode
from ...inspect.detection import EventReader, open_reader
from ..answer import DisplayOptions
from ..files import read_file, shown
from ..output.terminal import print_error

READ_BYTES: Final = 2**16
"""Bytes of one read of a recording without times."""
TIMES_BYTES: Final = 2**26
"""Bytes of the largest list of times: enough for more than a million lines."""
LONGEST_SECONDS: Final = 7 * 86_400.0
"""Seconds of the longest recording: a week."""
LARGEST_PIECE_BYTES: Final = 2**26
"""Bytes of the largest read in a list of times: no connection delivers more at once."""


def run(file: Path, source: str, target: str, speed: str) -> int:
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
    """Yields the pieces of a recording with their times. The times come from the list beside it; without a list all are 0."""
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
    """Yields the events of each piece, up to an error. Input after an error is not read."""
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
