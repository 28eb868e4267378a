"""An answer for other programs: one JSON object at the end, or one event a line as they come."""

from __future__ import annotations

from typing import BinaryIO

import msgspec

from ..events import Event, StreamError, encode
from ..stages import Collect


class EventPrinter:
    """Our events, one JSON object a line."""

    def __init__(self, out: BinaryIO) -> None:
        self.error: StreamError | None = None
        self._out = out

    def feed(self, event: Event) -> None:
        if isinstance(event, StreamError):
            self.error = event
        self._out.write(encode(event) + b"\n")
        self._out.flush()

    def close(self) -> None:
        self._out.flush()


class JsonPrinter:
    """The whole answer, with its usage and its error, if it had one."""

    def __init__(self, out: BinaryIO) -> None:
        self.error: StreamError | None = None
        self._out = out
        self._box = Collect()

    def feed(self, event: Event) -> None:
        if isinstance(event, StreamError):
            self.error = event
        self._box.feed(event)

    def close(self) -> None:
        self._out.write(msgspec.json.encode(self._box.close()[0]) + b"\n")
        self._out.flush()
