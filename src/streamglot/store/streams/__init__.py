"""Resumable streams: the numbered events that were written to a client, stored until the client may no longer resume.

The producer opens a stream, appends chunks of numbered events, and ends it. None of these calls waits. A reader in any process
gets every chunk after a given number, live until the end. If a part is missing, the reader gets an error that says why.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from msgspec import Struct, field

from ...errors import RequestError, StreamglotError
from ..turns import minted_at
from ..writer import Report

STREAM_BYTES: Final = 16 * 2**20
"""Bytes stored per stream; older chunks are trimmed. This is a hundred times the longest answer."""
KEEP_SECONDS: Final = 3600.0
"""How long an ended stream can be resumed, in seconds."""
WATCH_SECONDS: Final = 0.4
"""Seconds between two checks for stop requests of other processes."""
HEARTBEAT_SECONDS: Final = 5.0
LOST_SECONDS: Final = 20.0
"""Seconds without a heartbeat after which a producer counts as dead, unless its process is known to live."""
POLL_SECONDS: Final = 0.05
IDLE_SECONDS: Final = 0.5
"""Upper limit of the pause between two polls, in seconds. A reader of another process's stream polls less and less often."""
OPEN_SECONDS: Final = 0.5
"""How long a reader waits for an unknown stream, in seconds. A stream that was just opened may not be committed yet."""
WANTED_SECONDS: Final = 3.0
"""Seconds between two notices of a reader that it still reads. After twice this time without a notice the stream has no
reader."""


class Chunk(Struct, frozen=True):
    """The events from ``first`` to ``last``, as they were written to the client."""

    first: int
    last: int
    data: bytes


class StreamBuffer(Protocol):
    def open(
        self, stream_id: str, caller: str, on_stop: Callable[[], None], on_reader: Callable[[], None], head: str = ""
    ) -> None:
        """Opens a stream. ``on_stop`` is called once when any process asks for the stream to stop. ``on_reader`` is called when a
        reader waits for events that were not appended yet. ``head`` is what readers must know before they read."""

    async def claim(self, stream_id: str, caller: str, head: str) -> bool:
        """Reserves a stream for this process, which then opens it. Returns False if another process has it, or if the stream has
        ended with events. If several processes ask at once, one gets True."""
        ...

    def has_reader(self, stream_id: str) -> bool:
        """Whether a client reads the stream while it runs. If not, the producer may collect events before it appends them."""
        ...

    def append(self, stream_id: str, first: int, last: int, data: bytes) -> None:
        """Appends the next events. The first event of a stream has the number 1."""

    def end(self, stream_id: str, head: str | None = None) -> None:
        """Ends the stream. ``head`` takes the place of the one that it was opened with."""

    def read(self, stream_id: str, after: int = 0, caller: str | None = None) -> AsyncIterator[Chunk]:
        """All chunks with events after this number, until the end. Raises if the stream does not exist or a part is lost."""
        ...

    async def head(self, stream_id: str, caller: str | None = None, *, wait: bool = True) -> str:
        """The ``head`` that the stream was opened with. Raises if the stream does not exist. ``wait``: allow for a stream that
        another process has only just opened."""
        ...

    async def stop(self, stream_id: str, caller: str | None = None) -> bool:
        """Asks the producer to stop. Returns False if the stream does not exist."""
        ...

    async def expire(self) -> None:
        """Deletes the streams that can no longer be resumed."""

    def report(self) -> Report | None:
        """The state of the buffer's own queue; None if the buffer writes through the store's writer."""
        ...

    async def close(self) -> None: ...


class LiveStream(Struct):
    """A stream that this process produces."""

    caller: str
    on_stop: Callable[[], None]
    on_reader: Callable[[], None]
    started: float
    head: str
    last: int = 0
    bytes: int = 0
    stopped: bool = False
    wanted: float = 0.0
    has_reader_until: float = 0.0
    written: float = field(default_factory=time.monotonic)
    sizes: deque[tuple[int, int]] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, last: int, size: int, max_bytes: int) -> int:
        """Counts a chunk. Returns the number of the last event that must be trimmed now, or 0."""
        self.last = last
        self.bytes += size
        self.sizes.append((last, size))
        if self.bytes <= max_bytes:
            return 0
        trimmed = 0
        while self.bytes > max_bytes * 3 // 4 and len(self.sizes) > 1:
            trimmed, size_trimmed = self.sizes.popleft()
            self.bytes -= size_trimmed
        return trimmed

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self.on_stop()

    def wake(self) -> None:
        """Wakes the readers that wait in this process."""
        self.changed.set()
        self.changed = asyncio.Event()

    def reader_seen(self) -> None:
        """Records that a client reads the stream while it runs."""
        self.has_reader_until = time.monotonic() + 2 * WANTED_SECONDS
        self.on_reader()


def next_pause(seconds: float) -> float:
    """The pause after a pause of this length, for a reader that polls."""
    return min(seconds * 1.2, IDLE_SECONDS)


def opened_until(stream_id: str, lost: float) -> float:
    """The time of the monotonic clock up to which a reader waits for a stream that it does not find. A new id says when it was
    made. Until its producer would count as dead, the stream may be on its way from a busy process or to a busy database."""
    left = minted_at(stream_id) + lost - time.time()
    return time.monotonic() + (min(left, lost) if OPEN_SECONDS < left < 2 * lost else OPEN_SECONDS)


def unknown(stream_id: str) -> RequestError:
    return RequestError(f"you have no stream {stream_id!r} to resume", code="stream_not_found", status=404)


def incomplete(stream_id: str, after: int) -> StreamglotError:
    message = f"the stream {stream_id!r} is no longer complete after event {after}; send the request again"
    return StreamglotError(message, code="stream_incomplete", status=410)


def beyond(stream_id: str, after: int, last: int) -> RequestError:
    message = f"the stream {stream_id!r} has {last} events and none after number {after}; resume after {last} or an earlier event"
    return RequestError(message, code="no_such_event", detail={"events": last})


def lost(stream_id: str) -> StreamglotError:
    message = f"the process that produced the stream {stream_id!r} ended before the stream did; send the request again"
    return StreamglotError(message, code="stream_lost", status=502, retryable=True)
