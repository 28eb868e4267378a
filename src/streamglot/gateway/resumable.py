"""Copies one stream into the stream buffer, and numbers its events the way a client counts them, so that a client can resume
after any event.

One event is a frame of server-sent events, a line of JSON, an element of a streamed array, or the bracket that closes the array.
Comments do not count, because clients do not see them.

Copying runs for each write and is most of the cost of recording. It therefore collects the bytes in a list, and passes them on
when a reader wants them, when the stream ends or when the list is long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from ..store import StreamBuffer
DIALECT: Final = "dialect"
"""Key in the stored headers: the dialect of the stream."""
RESPONSE_ID: Final = "response_id"
"""Key in the stored headers: the response id, for a writer that must end the stream in place of the first one."""
CUT: Final = "cut"
"""Key in the stored headers of a stream after whose end the connection is cut."""
PIECES: Final = 250
"""Writes that are collected before they are passed on. Enough to make the cost of each write small."""
LARGE_BYTES: Final = 4096
"""Bytes. A write larger than this is passed on at once, so that the list does not hold much memory."""


class StreamRecorder:
    """Records one stream.

    ``numbered``: clients of this dialect accept ids in the frames. ``awaited``: a client will come back for the stream, so little
    may be lost if the process ends. A stream that is neither is ``plain``: the writer appends to ``pieces`` itself and calls
    ``look`` from time to time. ``cut``: the end of the stream is no success, and a client that resumes it must see that.
    """

    __slots__ = (
        "_awaited",
        "_buffer",
        "_headers",
        "_id",
        "_kept",
        "_numbered",
        "_numbering",
        "_written",
        "cut",
        "pieces",
        "plain",
    )

    def __init__(
        self,
        buffer: StreamBuffer,
        id: str,
        caller: str,
        stop: Callable[[], None],
        headers: Mapping[str, str],
        *,
        numbered: bool,
        awaited: bool,
    ) -> None:
        self._buffer = buffer
        self._id = id
        self._numbering = EVENT_IDS[headers["content-type"]]
        self._numbered = numbered
        self._awaited = awaited
        self._written = self._kept = 0
        self._headers = headers
        self.cut = False
        self.pieces: list[bytes] = []
        buffer.open(id, caller, stop, self.hand_over, msgspec.json.encode(headers).decode())
        self.plain = self._is_plain()

    def _is_plain(self) -> bool:
        return not self._numbered and not self._awaited and not self._buffer.has_reader(self._id)

    def wrote(self, data: bytes) -> bytes:
        """Records bytes and returns them as they go to the client, with event ids if the dialect has them."""
        if self._numbered:
            data, self._written = FRAMES.numbered(data, self._written)
        self.pieces.append(data)
        if len(self.pieces) > PIECES or self._awaited or self._buffer.has_reader(self._id):
            self.hand_over()
        return data

    def look(self) -> None:
        pieces = self.pieces
        if len(pieces) > PIECES or (pieces and len(pieces[-1]) > LARGE_BYTES):
            self.hand_over()

    def end(self) -> None:
        self.hand_over()
        self._buffer.end(self._id, msgspec.json.encode({**self._headers, CUT: "1"}).decode() if self.cut else None)

    def hand_over(self) -> None:
        """Passes the collected bytes to the buffer.

        A comment waits for the event after it, so that a client that resumes there gets both.
        """
        pieces, ready = self.pieces, len(self.pieces)
        while ready and pieces[ready - 1].startswith(b":") and not self._numbering.count(pieces[ready - 1]):
            ready -= 1
        data = b"".join(pieces[:ready])
        count = self._numbering.count(data)
        if count:
            self._buffer.append(self._id, self._kept + 1, self._kept + count, data)
            self._kept += count
            del pieces[:ready]
        self.plain = self._is_plain()


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
