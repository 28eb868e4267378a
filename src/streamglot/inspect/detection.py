"""Reads streams whose dialect the user may leave out: the first lines show it."""

from __future__ import annotations

from typing import Final, Protocol

from ..dialects import dialect
from ..errors import ConfigError
from ..events import Event, decode
from ..framing.lines import Lines
from ..limits import DEFAULT_LIMITS
from .marks import ANY, EVENTS, MARKS

LOOKED_AT_BYTES: Final = 8192
"""Bytes at the beginning of a stream: longer than the first event of any dialect, and short enough to wait for."""


class EventReader(Protocol):
    def feed(self, chunk: bytes, /) -> list[Event]: ...
    def close(self) -> list[Event]: ...


def open_reader(source: str) -> EventReader:
    """The reader for a dialect or for ``events``. If ``source`` is empty, the reader detects the dialect."""
    if not source:
        return RecognisingReader()
    return EventLineReader() if source == EVENTS else dialect(source).reader()


def recognise(line: bytes | bytearray) -> str:
    """The dialect of a stream that contains this line; empty if the line does not show it."""
    written = line.replace(b": ", b":")
    return next((name for mark, name in MARKS if mark in written), "")


class RecognisingReader:
    """Holds the first bytes until a whole line (or a whole binary frame) shows the dialect.

    It only examines whole lines, so the result does not depend on how the input is cut.
    """

    def __init__(self) -> None:
        self._reader: EventReader | None = None
        self._held = bytearray()
        self._looked = 0

    def feed(self, chunk: bytes) -> list[Event]:
        if self._reader is not None:
            return self._reader.feed(chunk)
        self._held += chunk
        name = ""
        while not name and (end := self._line_end()):
            name = recognise(self._held[self._looked : end])
            self._looked = end
        if not name and len(self._held) < LOOKED_AT_BYTES:
            return []
        return self._begin(name or recognise(self._held[self._looked : LOOKED_AT_BYTES]))

    def close(self) -> list[Event]:
        if self._reader is not None:
            return self._reader.close()
        events = self._begin(recognise(self._held[self._looked :]) if self._held.strip() else ANY)
        assert self._reader is not None
        return [*events, *self._reader.close()]

    def _line_end(self) -> int:
        """The end of the next line; 0 if the line is incomplete. A binary frame begins with its length."""
        if self._held[:1] == b"\0":
            size = int.from_bytes(self._held[:4], "big")
            return size if self._looked < size <= min(len(self._held), LOOKED_AT_BYTES) and len(self._held) >= 4 else 0
        return self._held.find(b"\n", self._looked, LOOKED_AT_BYTES) + 1

    def _begin(self, name: str) -> list[Event]:
        if not name:
            raise ConfigError(
                "the dialect of this stream cannot be recognised by its first bytes: name it (on the command line with --from)"
            )
        self._reader = open_reader(name)
        return self._reader.feed(bytes(self._held))


class EventLineReader:
    """Reads streamglot events, one JSON object per line."""

    def __init__(self) -> None:
        self._lines = Lines(DEFAULT_LIMITS)

    def feed(self, chunk: bytes) -> list[Event]:
        return self._events(self._lines.feed(chunk))

    def close(self) -> list[Event]:
        return self._events(self._lines.close())

    def _events(self, lines: list[bytes]) -> list[Event]:
        try:
            events = [decode(line) for line in lines if line.strip()]
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"this is not a recording of events: {error}") from None
        if self._lines.error is not None:
            raise self._lines.error
        return events
