"""Streams that can be resumed: what was written to a client, by number, for as long as it may come back for it.

The producer opens a stream, appends chunks of numbered events, and ends it; none of that waits. A reader, in any process, gets every
chunk after a number, live until the end. A stream that cannot be given whole is refused with the reason.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec
from msgspec import Struct, field
from sqlalchemy import Connection, Row, delete, func, select, update

from ..errors import RequestError, StreamglotError
from ..tasks import TaskSupervisor, WriteLine
from . import schema
from .database import Database, StoreUnavailable, Watch, within
from .processes import is_alive
from .rows import ChunkEntry, StreamEntry, TrimEntry, unpacked
from .turn import minted_at
from .writer import Report, Writer

T = TypeVar("T")

STREAM_BYTES: Final = 16 * 2**20
"""As much of one stream is kept, the newest: a hundred times the longest answer."""
KEEP_SECONDS: Final = 3600.0
"""A client that is away for longer than this asks anew."""
WATCH_SECONDS: Final = 0.4
"""How soon a stop from another process is seen."""
BEAT_SECONDS: Final = 5.0
LOST_SECONDS: Final = 20.0
"""Seconds without a heartbeat after which a producer is dead, unless its process is known to live."""
POLL_SECONDS: Final = 0.05
IDLE_SECONDS: Final = 0.5
"""Who waits for another process asks less and less often, but at least so often."""
OPEN_SECONDS: Final = 0.5
"""A stream that was opened a moment ago may not be there yet."""
LATE_SECONDS: Final = 5.0
"""Nor one that was opened so long ago, if the database has much to do."""
WANTED_SECONDS: Final = 3.0
"""A reader says so often that it is still there; one that was not heard of for twice as long is not."""
PAGE: Final = 64
_chunks = msgspec.msgpack.Decoder(list[tuple[int, bytes]])


class Chunk(Struct, frozen=True):
    """The events from ``first`` to ``last``, as they were written."""

    first: int
    last: int
    data: bytes


class StreamBuffer(Protocol):
    def open(self, stream_id: str, caller: str, on_stop: Callable[[], None], on_want: Callable[[], None], head: str = "") -> None:
        """A stream begins. ``on_stop`` is called once if somebody, anywhere, asks for it to stop, ``on_want`` when somebody
        waits for what was not appended yet. ``head`` is what its readers must know before they read."""

    def wanted(self, stream_id: str) -> bool:
        """Does somebody read it while it runs? If not, what is written may come together before it is appended."""
        ...

    def append(self, stream_id: str, first: int, last: int, data: bytes) -> None:
        """The next events; the first has the number 1."""

    def end(self, stream_id: str) -> None:
        """No more will come."""

    def read(self, stream_id: str, after: int = 0, caller: str | None = None) -> AsyncIterator[Chunk]:
        """All chunks with events after this number, until the end. Raises if there is no such stream or a part is lost."""
        ...

    async def head(self, stream_id: str, caller: str | None = None, *, wait: bool = True) -> str:
        """What it was opened with. Raises if there is no such stream. ``wait``: one may only just have been opened elsewhere."""
        ...

    async def stop(self, stream_id: str, caller: str | None = None) -> bool:
        """Asks the producer to stop; False if there is no such stream."""
        ...

    async def expire(self) -> None:
        """Forgets what nobody will come back for."""

    def report(self) -> Report | None:
        """How its writing is doing, where it does not go through the store's writer."""
        ...

    async def close(self) -> None: ...


class Live(Struct):
    """A stream that this process produces."""

    caller: str
    on_stop: Callable[[], None]
    on_want: Callable[[], None]
    started: float
    head: str
    last: int = 0
    bytes: int = 0
    stopped: bool = False
    wanted: float = 0.0
    lively_until: float = 0.0
    told: float = field(default_factory=time.monotonic)
    sizes: deque[tuple[int, int]] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, last: int, size: int, most: int) -> int:
        """Counts a chunk. The number up to which events are too much now, or 0."""
        self.last = last
        self.bytes += size
        self.sizes.append((last, size))
        if self.bytes <= most:
            return 0
        trimmed = 0
        while self.bytes > most * 3 // 4 and len(self.sizes) > 1:
            trimmed, gone = self.sizes.popleft()
            self.bytes -= gone
        return trimmed

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self.on_stop()

    def wake(self) -> None:
        """There is something for those who wait."""
        self.news.set()
        self.news = asyncio.Event()

    def want(self) -> None:
        """Somebody reads it while it runs."""
        self.lively_until = time.monotonic() + 2 * WANTED_SECONDS
        self.on_want()


def unknown(stream_id: str) -> RequestError:
    return RequestError(f"there is no stream {stream_id!r} of yours to resume", code="stream_not_found", status=404)


def incomplete(stream_id: str, after: int) -> StreamglotError:
    message = f"the stream {stream_id!r} is not kept whole after number {after}; send the request again"
    return StreamglotError(message, code="stream_incomplete", status=410)


def beyond(stream_id: str, after: int, last: int) -> RequestError:
    message = f"the stream {stream_id!r} has {last} events and none after number {after}; ask for what follows {last} or less"
    return RequestError(message, code="no_such_event", detail={"events": last})


def lost(stream_id: str) -> StreamglotError:
    message = f"the process that produced the stream {stream_id!r} ended before the stream did; send the request again"
    return StreamglotError(message, code="stream_lost", status=502, retryable=True)


class DatabaseBuffer:
    """In the database of the store, through its writer."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        *,
        bytes: int = STREAM_BYTES,
        keep: float = KEEP_SECONDS,
        lost: float = LOST_SECONDS,
        say: WriteLine | None = None,
    ) -> None:
        self._database, self._writer = database, writer
        self._tasks = TaskSupervisor(say)
        self._bytes, self._keep, self._lost = bytes, keep, lost
        self._live: dict[str, Live] = {}
        self._watch: asyncio.Task[None] | None = None
        self._expiry = 0.0
        self._closing = asyncio.Event()

    # --- the producer

    def open(self, stream_id: str, caller: str, on_stop: Callable[[], None], on_want: Callable[[], None], head: str = "") -> None:
        self._live[stream_id] = Live(caller, on_stop, on_want, time.time(), head)
        self._tell(stream_id)
        if self._watch is None or self._watch.done():
            self._watch = self._tasks.start("stream watch", self._watching)

    def wanted(self, stream_id: str) -> bool:
        return self._live[stream_id].lively_until > time.monotonic()

    def append(self, stream_id: str, first: int, last: int, data: bytes) -> None:
        entry = ChunkEntry(kind="chunks", weight=len(data) + 128, stream_id=stream_id, first=first, last=last, data=data)
        self._writer.put(entry)
        live = self._live[stream_id]
        trimmed = live.add(last, len(data), self._bytes)
        live.wake()
        if trimmed:
            self._writer.put(TrimEntry(kind="streams", stream_id=stream_id, number=trimmed))

    def end(self, stream_id: str) -> None:
        live = self._live.get(stream_id)
        if live is not None:
            self._tell(stream_id, live.last)
            del self._live[stream_id]
            live.wake()

    def _tell(self, stream_id: str, last: int | None = None) -> None:
        live = self._live[stream_id]
        row = {
            "id": stream_id,
            "caller": live.caller,
            "started": live.started,
            "seen": time.time(),
            "last": last,
            "stopped": False,
        }
        row |= {"head": live.head, "wanted": 0.0}
        self._writer.put(StreamEntry(kind="streams", row=row))

    async def _watching(self) -> None:
        """Looks for stops and readers elsewhere while there is a stream."""
        table = schema.streams
        asked_for = Watch(self._database, select(table.c.id, table.c.stopped, table.c.wanted).where(schema.ASKED_FOR))
        beat = time.monotonic()
        while self._live and not await within(self._closing, WATCH_SECONDS):
            try:
                if time.monotonic() - beat > min(BEAT_SECONDS, self._keep / 4):
                    beat = time.monotonic()
                    self._beat(beat)
                for row in await asked_for.look() or ():
                    self._heed(row)
            except Exception as error:  # streams could not be stopped any more if this ended
                if not isinstance(error, StoreUnavailable):
                    self._writer.tell_fault(error)

    def _heed(self, row: Row[Any]) -> None:
        """Somebody elsewhere reads this stream, or wants it to stop."""
        if (live := self._live.get(row.id)) is None:
            return
        if row.wanted != live.wanted:
            live.wanted = row.wanted
            self._tasks.attempt("stream wanted", live.want)
        if row.stopped:
            self._tasks.attempt("stream stop", live.stop)

    def _beat(self, now: float) -> None:
        """Says that we are alive: to those who wait for a stream, and from time to time to who forgets old ones."""
        for stream_id, live in self._live.items():
            if live.lively_until > now or now - live.told > self._keep / 4:
                live.told = now
                self._tell(stream_id)

    # --- readers

    async def read(self, stream_id: str, after: int = 0, caller: str | None = None) -> AsyncIterator[Chunk]:
        table = schema.chunks
        question = select(table).where(table.c.stream_id == stream_id).order_by(table.c.number).limit(PAGE)
        status = await self._opened(stream_id, caller)
        heard, seen, said, pause = time.monotonic(), status.seen, 0.0, POLL_SECONDS
        while True:
            rows = await self._patiently(partial(self._database.fetch, question.where(table.c.last > after)))
            for row in rows:
                first = row.number
                for last, data in _chunks.decode(unpacked(row.body)):
                    if last > after:
                        if first > after + 1:
                            raise incomplete(stream_id, after)
                        after = last
                        yield Chunk(first, last, data)
                    first = last + 1
            if rows:
                heard, pause = time.monotonic(), POLL_SECONDS
                continue
            if status.last is not None:
                if after > status.last:
                    raise beyond(stream_id, after, status.last)
                if after < status.last:
                    raise incomplete(stream_id, after)
                return
            if status.ending is not None:  # a turn ends after its stream, unless its process died
                raise lost(stream_id)
            if time.monotonic() - said > WANTED_SECONDS:
                said = time.monotonic()
                await self._want(stream_id, status.wanted)
            pause = await self._pause(stream_id, after, pause)
            now = await self._patiently(partial(self._status, stream_id, caller))
            if now is None:
                raise unknown(stream_id)
            status = now
            if status.seen != seen or stream_id in self._live:
                heard, seen = time.monotonic(), status.seen
            if status.last is None and time.monotonic() - heard > self._lost:
                if not await self._patiently(partial(self._produced, stream_id)):
                    raise lost(stream_id)
                heard = time.monotonic()

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Who has begun to read goes on when the database was away for a while."""
        until = time.monotonic() + self._lost
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(IDLE_SECONDS)

    async def _pause(self, stream_id: str, after: int, seconds: float) -> float:
        """Until there may be more; and how long the next one is. A producer in this process says when it appends, and what
        it appended is in the database a moment later."""
        live = self._live.get(stream_id)
        if live is None or live.last > after:
            await asyncio.sleep(seconds)
            return min(seconds * 1.2, IDLE_SECONDS)
        await within(live.news, WANTED_SECONDS)
        await asyncio.sleep(POLL_SECONDS)
        return POLL_SECONDS

    async def _produced(self, stream_id: str) -> bool:
        """Is the process alive that runs its turn?"""
        table, turns = schema.processes, schema.turns
        question = select(table).join(turns, turns.c.process == table.c.id).where(turns.c.id == stream_id)
        return any(is_alive(row, time.time()) for row in await self._database.fetch(question))

    async def _want(self, stream_id: str, wanted: float) -> None:
        """Tells the producer, wherever it is, that its chunks are waited for, unless another reader just did. If that fails
        they come all the same, later."""
        if stream_id in self._live:
            self._live[stream_id].want()
            return
        if abs(time.time() - wanted) < WANTED_SECONDS:
            return
        table = schema.streams
        with suppress(StoreUnavailable):
            await self._database.execute(update(table).where(table.c.id == stream_id).values(wanted=time.time()))

    async def head(self, stream_id: str, caller: str | None = None, *, wait: bool = True) -> str:
        live = self._live.get(stream_id)
        if live is not None and caller in (None, live.caller):
            return live.head
        status = await (self._opened(stream_id, caller) if wait else self._status(stream_id, caller))
        if status is None:
            raise unknown(stream_id)
        return str(status.head)

    async def stop(self, stream_id: str, caller: str | None = None) -> bool:
        live = self._live.get(stream_id)
        if live is not None and caller in (None, live.caller):
            live.stop()
            return True
        try:
            await self._opened(stream_id, caller)
        except RequestError:
            return False
        table = schema.streams
        await self._database.execute(update(table).where(table.c.id == stream_id).values(stopped=True, wanted=time.time()))
        return True

    async def _opened(self, stream_id: str, caller: str | None) -> Row[Any]:
        until = time.monotonic() + (LATE_SECONDS if abs(time.time() - minted_at(stream_id)) < LATE_SECONDS else OPEN_SECONDS)
        while True:
            status = await self._status(stream_id, caller)
            if status is not None:
                return status
            if time.monotonic() > until:
                raise unknown(stream_id)
            await asyncio.sleep(POLL_SECONDS)

    async def _status(self, stream_id: str, caller: str | None) -> Row[Any] | None:
        """Its row, and how its turn ended, whose id it has: both as of one moment."""
        table, endings = schema.streams, schema.endings
        question = select(table, endings.c.ending).outerjoin(endings, endings.c.turn_id == table.c.id)
        question = question.where(table.c.id == stream_id)
        if caller is not None:
            question = question.where(table.c.caller == caller)
        rows = await self._database.fetch(question)
        return rows[0] if rows else None

    # --- life

    async def expire(self) -> None:
        streams, chunks, now = schema.streams, schema.chunks, time.time()
        if now < self._expiry:
            return
        oldest = (await self._database.fetch(select(func.min(streams.c.seen))))[0][0]
        self._expiry = self._keep + (now if oldest is None else oldest)
        if now < self._expiry:
            return
        old = select(streams.c.id).where(streams.c.seen <= now - self._keep)

        def forget(connection: Connection) -> None:
            connection.execute(delete(chunks).where(chunks.c.stream_id.in_(old)))
            connection.execute(delete(streams).where(streams.c.id.in_(old)))

        await self._database.write(forget)

    def report(self) -> None:
        """The writer's says it."""

    async def close(self) -> None:
        for stream_id in list(self._live):
            self.end(stream_id)
        self._closing.set()
        if self._watch is not None:
            await self._watch
