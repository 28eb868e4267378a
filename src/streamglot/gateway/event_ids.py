"""The events of a stream by number, as whoever reads it would count them, so that it can be gone on with after any of them.

A frame of server-sent events, a line of JSON and an element of a streamed array are each one event; so is the bracket that
closes the array. Comments are none: no client sees them.
"""

from __future__ import annotations

import re
from typing import Final, Protocol


class EventIds(Protocol):
    def count(self, data: bytes) -> int:
        """How many events these bytes hold; they begin and end between two events."""
        ...

    def rest(self, data: bytes, skipped: int) -> bytes:
        """What follows so many of their events."""
        ...


class Frames:
    """Each of ours has one line of data. Comments have none."""

    def count(self, data: bytes) -> int:
        return data.count(b"\ndata:") + data.startswith(b"data:")

    def rest(self, data: bytes, skipped: int) -> bytes:
        at = 0
        while skipped:
            skipped -= not data.startswith(b":", at)
            at = data.index(b"\n\n", at) + 2
        return data[at:]

    def numbered(self, data: bytes, before: int) -> tuple[bytes, int]:
        """The same frames with their numbers in them, and the last of these; ``before`` is the one before them."""
        out = []
        for frame in data.split(b"\n\n")[:-1]:
            if frame.startswith(b":"):
                out.append(b"%b\n\n" % frame)
            else:
                before += 1
                out.append(b"id: %d\n%b\n\n" % (before, frame))
        return b"".join(out), before


class Lines:
    def count(self, data: bytes) -> int:
        return data.count(b"\n")

    def rest(self, data: bytes, skipped: int) -> bytes:
        return data.split(b"\n", skipped)[skipped]


class Elements:
    _begin: Final = re.compile(rb"\A\[\{|,\r\n\{|\]\Z")
    """An element begins with its comma, the first one with the bracket of the array."""

    def count(self, data: bytes) -> int:
        return len(self._begin.findall(data))

    def rest(self, data: bytes, skipped: int) -> bytes:
        begins = [match.start() for match in self._begin.finditer(data)]
        return data[begins[skipped] :] if skipped < len(begins) else b""


FRAMES: Final = Frames()
EVENT_IDS: Final[dict[str, EventIds]] = {
    "text/event-stream": FRAMES,
    "application/x-ndjson": Lines(),
    "application/json": Elements(),
}
"""By the type of the body."""
