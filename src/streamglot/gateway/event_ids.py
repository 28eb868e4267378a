"""Numbers the events of a stream the way a client counts them, so that a client can resume after any event.

One event is a frame of server-sent events, a line of JSON, an element of a streamed array, or the bracket that closes the array.
Comments do not count, because clients do not see them.
"""

from __future__ import annotations

import re
from typing import Final, Protocol


class EventIds(Protocol):
    def count(self, data: bytes) -> int:
        """The number of events in these bytes, which begin and end between two events."""
        ...

    def rest(self, data: bytes, skipped: int) -> bytes:
        """The bytes after the first ``skipped`` events."""
        ...


class Frames:
    """Server-sent events. Each frame that the gateway writes has exactly one data line; comments have none."""

    def count(self, data: bytes) -> int:
        return data.count(b"\ndata:") + data.startswith(b"data:")

    def rest(self, data: bytes, skipped: int) -> bytes:
        at = 0
        while skipped:
            skipped -= not data.startswith(b":", at)
            at = data.index(b"\n\n", at) + 2
        return data[at:]

    def numbered(self, data: bytes, before: int) -> tuple[bytes, int]:
        """Adds an id to each frame, counting on from ``before``. Returns the frames and the last id."""
        out = []
        for frame in data.split(b"\n\n")[:-1]:
            if frame.startswith(b":"):
                out.append(b"%b\n\n" % frame)
            else:
                before += 1
                out.append(b"id: %d\n%b\n\n" % (before, frame))
        return b"".join(out), before


class NdjsonLines:
    def count(self, data: bytes) -> int:
        return data.count(b"\n")

    def rest(self, data: bytes, skipped: int) -> bytes:
        return data.split(b"\n", skipped)[skipped]


class Elements:
    _begin: Final = re.compile(rb"\A\[\{|,\r\n\{|\]\Z")
    """An element begins with its comma. The first element begins with the bracket of the array."""

    def count(self, data: bytes) -> int:
        return len(self._begin.findall(data))

    def rest(self, data: bytes, skipped: int) -> bytes:
        begins = [match.start() for match in self._begin.finditer(data)]
        return data[begins[skipped] :] if skipped < len(begins) else b""


FRAMES: Final = Frames()
EVENT_IDS: Final[dict[str, EventIds]] = {
    "text/event-stream": FRAMES,
    "application/x-ndjson": NdjsonLines(),
    "application/json": Elements(),
}
"""The event counter for each media type of a body."""
