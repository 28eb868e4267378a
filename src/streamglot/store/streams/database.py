"""The stream buffer in the store's database.

Chunks go through the store's writer. Readers in the producer's process are woken by the producer; readers in other processes
poll, and note in the row of the stream that they wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import msgspec

from ...errors import RequestError
from ...tasks import TaskSupervisor, WriteLine, within
from ..contents import unpacked
from ..database import Database, StoreUnavailable, Watch
from ..database.sql import Connection, DatabaseRow, assignments, insert_row
from ..processes import is_alive
from ..rows import ChunkEntry, StreamEntry, TrimEntry
from ..writer import Writer
from . import (
    HEARTBEAT_SECONDS,
    IDLE_SECONDS,
    KEEP_SECONDS,
    LOST_SECONDS,
    POLL_SECONDS,
    STREAM_BYTES,
    WANTED_SECONDS,
    WATCH_SECONDS,
    Chunk,
    LiveStream,
    beyond,
    incomplete,
    lost,
    next_pause,
    opened_until,
    unknown,
)

T = TypeVar("T")

PAGE: Final = 64
_NEW: Final = ("caller", "started", "seen", "last", "stopped", "head", "wanted")
_INSERT: Final = insert_row("streams", ("id", *_NEW), "ON CONFLICT DO NOTHING")
_TAKE_OVER: Final = f"""
    UPDATE streams SET {assignments(_NEW)} WHERE id = :id AND (streams.last = 0 OR streams.last IS NULL AND streams.seen <= :lost)
"""
_REMOVE_CHUNKS: Final = "DELETE FROM chunks WHERE stream_id = :id"
_ASKED_FOR: Final = "SELECT id, stopped, wanted FROM streams WHERE last IS NULL AND wanted > 0"
_CHUNKS: Final = f"SELECT * FROM chunks WHERE stream_id = :id AND last > :after ORDER BY number LIMIT {PAGE}"
_PRODUCER: Final = "SELECT processes.* FROM processes JOIN turns ON turns.process = processes.id WHERE turns.id = :id"
_WANTED: Final = "UPDATE streams SET wanted = :at WHERE id = :id"
_STOP: Final = "UPDATE streams SET stopped = true, wanted = :at WHERE id = :id"
_ENDED: Final = "SELECT turn_id FROM endings WHERE turn_id = :id"
_STATUS: Final = """
    SELECT streams.*, endings.ending FROM streams LEFT JOIN endings ON endings.turn_id = streams.id WHERE streams.id = :id
"""
_OLDEST: Final = "SELECT min(seen) AS seen FROM streams"
_EXPIRED: Final = "SELECT id FROM streams WHERE seen <= :until"
_chunks = msgspec.msgpack.Decoder(list[tuple[int, bytes]])


class DatabaseBuffer:
    """Stores streams in the store's database, through the store's writer."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        *,
        bytes: int = STREAM_BYTES,
        keep: float = KEEP_SECONDS,
        lost: float = LOST_SECONDS,
        log: WriteLine | None = None,
    ) -> None:
        self._database, self._writer = database, writer
        self._tasks = TaskSupervisor(log)
        self._bytes, self._keep, self._lost = bytes, keep, lost
        self._live: dict[str, LiveStream] = {}
        self._watch: asyncio.Task[None] | None = None
        self._expiry = 0.0
        self._closing = asyncio.Event()

    # --- the producer

    def open(
        self, stream_id: str, caller: str, on_stop: Callable[[], None], on_reader: Callable[[], None], head: str = ""
    ) -> None:
        self._live[stream_id] = LiveStream(caller, on_stop, on_reader, time.time(), head)
        self._write_row(stream_id)
        if self._watch is None or self._watch.done():
            self._watch = self._tasks.start("stream watch", self._watch_requests)

    async def claim(self, stream_id: str, caller: str, head: str) -> bool:
        """Inserts the row of the stream, or takes over the row of a stream that ended without events or whose producer is lost."""
        now = time.time()
        new = {"caller": caller, "started": now, "seen": now, "last": None, "stopped": False, "head": head, "wanted": 0.0}

        async def work(connection: Connection) -> bool:
            if await connection.execute(_INSERT, id=stream_id, **new):
                return True
            if not await connection.execute(_TAKE_OVER, id=stream_id, lost=now - self._lost, **new):
                return False
            await connection.execute(_REMOVE_CHUNKS, id=stream_id)
            return True

        return await self._database.write(work)

    def has_reader(self, stream_id: str) -> bool:
        return self._live[stream_id].has_reader_until > time.monotonic()

    def append(self, stream_id: str, first: int, last: int, data: bytes) -> None:
        entry = ChunkEntry(kind="chunks", weight=len(data) + 128, stream_id=stream_id, first=first, last=last, data=data)
        self._writer.put(entry)
        live = self._live[stream_id]
        trimmed = live.add(last, len(data), self._bytes)
        live.wake()
        if trimmed:
            self._writer.put(TrimEntry(kind="streams", stream_id=stream_id, number=trimmed))

    def end(self, stream_id: str, head: str | None = None) -> None:
        live = self._live.get(stream_id)
        if live is not None:
            if head is not None:
                live.head = head
            self._write_row(stream_id, live.last)
            del self._live[stream_id]
            live.wake()

    def _write_row(self, stream_id: str, last: int | None = None) -> None:
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

    async def _watch_requests(self) -> None:
        """Looks for stop requests and readers of other processes while there is a stream."""
        asked_for = Watch(self._database, _ASKED_FOR)
        heartbeat = time.monotonic()
        while self._live and not await within(self._closing, WATCH_SECONDS):
            try:
                if time.monotonic() - heartbeat > min(HEARTBEAT_SECONDS, self._keep / 4):
                    heartbeat = time.monotonic()
                    self._heartbeat(heartbeat)
                for row in await asked_for.look() or ():
                    self._handle_request(row)
            except Exception as error:  # without this task no stream could be stopped
                if not isinstance(error, StoreUnavailable):
                    self._writer.log_fault(error)

    def _handle_request(self, row: DatabaseRow) -> None:
        """Handles a stop request or a reader's notice from another process."""
        if (live := self._live.get(row.id)) is None:
            return
        if row.wanted != live.wanted:
            live.wanted = row.wanted
            self._tasks.attempt("stream wanted", live.reader_seen)
        if row.stopped:
            self._tasks.attempt("stream stop", live.stop)

    def _heartbeat(self, now: float) -> None:
        """Sends the heartbeats: often for streams with readers, seldom for the others, so that they do not expire."""
        for stream_id, live in self._live.items():
            if live.has_reader_until > now or now - live.written > self._keep / 4:
                live.written = now
                self._write_row(stream_id)

    # --- readers

    async def read(self, stream_id: str, after: int = 0, caller: str | None = None) -> AsyncIterator[Chunk]:
        status = await self._opened(stream_id, caller)
        last_sign, seen, noticed, pause = time.monotonic(), status.seen, 0.0, POLL_SECONDS
        while True:
            rows = await self._with_retries(partial(self._database.fetch, _CHUNKS, id=stream_id, after=after))
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
                last_sign, pause = time.monotonic(), POLL_SECONDS
                continue
            if status.last is not None:
                if after > status.last:
                    raise beyond(stream_id, after, status.last)
                if after < status.last:
                    raise incomplete(stream_id, after)
                return
            if status.ending is not None:  # a turn ends after its stream, unless its process died
                raise lost(stream_id)
            if time.monotonic() - noticed > WANTED_SECONDS:
                noticed = time.monotonic()
                await self._reader_seen(stream_id, status.wanted)
            pause = await self._pause(stream_id, after, pause)
            now = await self._with_retries(partial(self._status, stream_id, caller))
            if now is None:
                raise unknown(stream_id)
            status = now
            if status.seen != seen or stream_id in self._live:
                last_sign, seen = time.monotonic(), status.seen
            if status.last is None and time.monotonic() - last_sign > self._lost:
                if not await self._with_retries(partial(self._produced, stream_id)):
                    raise lost(stream_id)
                last_sign = time.monotonic()

    async def _with_retries(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Repeats a query while the database does not answer, so that a reader survives a short outage."""
        until = time.monotonic() + self._lost
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(IDLE_SECONDS)

    async def _pause(self, stream_id: str, after: int, seconds: float) -> float:
        """Waits until there may be more chunks and returns the next pause. A producer in this process wakes its readers at each
        append; the chunk is in the database shortly after."""
        live = self._live.get(stream_id)
        if live is None or live.last > after:
            await asyncio.sleep(seconds)
            return next_pause(seconds)
        await within(live.changed, WANTED_SECONDS)
        await asyncio.sleep(POLL_SECONDS)
        return POLL_SECONDS

    async def _produced(self, stream_id: str) -> bool:
        """Whether the process that runs this turn is alive."""
        return any(is_alive(row, time.time()) for row in await self._database.fetch(_PRODUCER, id=stream_id))

    async def _reader_seen(self, stream_id: str, wanted: float) -> None:
        """Notifies the producer that a reader waits, unless another reader just did. If the notice fails, chunks only come
        later."""
        if stream_id in self._live:
            self._live[stream_id].reader_seen()
            return
        if abs(time.time() - wanted) < WANTED_SECONDS:
            return
        with suppress(StoreUnavailable):
            await self._database.execute(_WANTED, id=stream_id, at=time.time())

    async def head(self, stream_id: str, caller: str | None = None, *, wait: bool = True) -> str:
        if self._produces(stream_id, caller):
            return self._live[stream_id].head
        status = await (self._opened(stream_id, caller) if wait else self._status(stream_id, caller))
        if status is None:
            raise unknown(stream_id)
        return str(status.head)

    async def stop(self, stream_id: str, caller: str | None = None) -> bool:
        if self._produces(stream_id, caller):
            self._live[stream_id].stop()
            return True
        try:
            await self._opened(stream_id, caller)
        except RequestError:
            return False
        await self._database.execute(_STOP, id=stream_id, at=time.time())
        return True

    async def _opened(self, stream_id: str, caller: str | None) -> DatabaseRow:
        """The row of the stream, as soon as it is there. The last look comes after everything that could bring the row."""
        until, pause = opened_until(stream_id, self._lost), POLL_SECONDS
        while True:
            last_look = time.monotonic() > until and not self._produces(stream_id, caller)
            status = await self._status(stream_id, None)
            if status is None and not last_look and await self._has_ended(stream_id):
                last_look, status = True, await self._status(stream_id, None)
            if status is not None and caller in (None, status.caller):
                return status
            if status is not None or last_look:
                raise unknown(stream_id)
            await asyncio.sleep(pause)
            pause = next_pause(pause)

    async def _has_ended(self, turn_id: str) -> bool:
        """Whether a turn has ended. If it has a stream, the stream was written before."""
        return bool(await self._database.fetch(_ENDED, id=turn_id))

    def _produces(self, stream_id: str, caller: str | None) -> bool:
        """Whether this process produces the stream. Its row then appears, however busy the database is."""
        live = self._live.get(stream_id)
        return live is not None and caller in (None, live.caller)

    async def _status(self, stream_id: str, caller: str | None) -> DatabaseRow | None:
        """The row of the stream and the ending of its turn, which has the same id. One query reads both, so they are
        consistent."""
        ours = "" if caller is None else "AND streams.caller = :caller"
        rows = await self._database.fetch(f"{_STATUS} {ours}", id=stream_id, caller=caller)
        return rows[0] if rows else None

    # --- life

    async def expire(self) -> None:
        now = time.time()
        if now < self._expiry:
            return
        oldest = (await self._database.fetch(_OLDEST))[0].seen
        self._expiry = self._keep + (now if oldest is None else oldest)
        if now < self._expiry:
            return
        until = now - self._keep

        async def forget(connection: Connection) -> None:
            await connection.execute(f"DELETE FROM chunks WHERE stream_id IN ({_EXPIRED})", until=until)
            await connection.execute("DELETE FROM streams WHERE seen <= :until", until=until)

        await self._database.write(forget)

    def report(self) -> None:
        """Nothing: the report of the writer of the store covers this buffer."""

    async def close(self) -> None:
        for stream_id in list(self._live):
            self.end(stream_id)
        self._closing.set()
        if self._watch is not None:
            await self._watch
