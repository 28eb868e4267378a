"""Prints an answer for other programs: one JSON object at the end, or events as they arrive, one a line."""

from __future__ import annotations

import re
from typing import BinaryIO, Final

import msgspec

from ...events import Event, StreamError, encode
from ...stages import Collect

_NOT_SEEN: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that JSON allows unescaped and that control a terminal."""


def seen(line: bytes) -> bytes:
    """Returns the same JSON with these characters escaped."""
    return _NOT_SEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", line.decode()).encode()


class EventPrinter:
    """Prints events, one JSON object a line."""

    def __init__(self, out: BinaryIO) -> None:
        self.error: StreamError | None = None
        self._out = out

    def feed(self, event: Event) -> None:
        if isinstance(event, StreamError):
            self.error = event
        self._out.write(seen(encode(event)) + b"\n")
        self._out.flush()

    def close(self) -> None:
        self._out.flush()


class JsonPrinter:
    """Prints the whole answer with its usage and its error, if any."""

    def __init__(self, out: BinaryIO) -> None:
        self.error: StreamError | None = None
        self._out = out
        self._box = Collect()

    def feed(self, event: Event) -> None:
        if isinstance(event, StreamError):
            self.error = event
        self._box.feed(event)

    def close(self) -> None:
        self._out.write(seen(msgspec.json.encode(self._box.close()[0])) + b"\n")
        self._out.flush()
