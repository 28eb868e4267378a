"""The stream buffer on Valkey or Redis. Each stream is a Stream there, and the ids of its entries are the numbers of the
chunks.

Writes pass through a bounded queue of commands, which a task sends in batches. As with the database writer, ``put`` never waits.
Commands that do not fit are counted; commands that cannot be sent are retried until ``close`` gives up; both are reported.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ...counters.valkey import DISCONNECT_SECONDS, connect
from ...tasks import TaskSupervisor, WriteLine
from ..database import StoreUnavailable
from ..writer import FIRST_PAUSE, LONGEST_PAUSE, SHARES, Report
from . import (
    HEARTBEAT_SECONDS,
    KEEP_SECONDS,
    LOST_SECONDS,
    POLL_SECONDS,
    STREAM_BYTES,
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

QUEUE_BYTES: Final = 64 * 2**20
"""Bytes that may wait for a server that does not answer; further commands are dropped and counted."""
COMMAND_BYTES: Final = 280
"""Bytes that a command takes in the queue, without its data."""
BATCH: Final = 1_000
BATCH_BYTES: Final = 4 * 2**20
"""Bytes per batch. This gets through in time even on a slow connection."""
FLUSH_SECONDS: Final = 0.01
"""Seconds in which commands are collected before they are sent."""
CLOSE_SECONDS: Final = 3.0
DUPLICATE: Final = "equal or smaller"
"""Part of the server's error for a chunk that it has already."""
TEMPORARY_ERRORS: Final = ("BUSY", "CLUSTERDOWN", "MASTERDOWN", "MISCONF", "NOREPLICAS", "TRYAGAIN")
"""Errors with which a server temporarily refuses commands. Those for which the client has classes (OOM, READONLY…) are not
listed."""
PREFIX: Final = "streamglot:stream:"
KEYS: Final = ("", ":head", ":caller")
"""The suffixes of a stream's keys: its chunks, its head, and its caller."""
CLAIM: Final = """
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
if newest and newest[2][1] == 'end' and tonumber(newest[2][2]) > 0 then return 0 end
if not redis.call('SET', KEYS[1], '1', 'NX', 'EX', ARGV[1]) then return 0 end
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[3], ARGV[3], 'EX', ARGV[2])
redis.call('SET', KEYS[4], ARGV[4], 'EX', ARGV[2])
return 1
"""
"""Claims a stream that is not alive and has not ended with events. Keys: its heartbeat and ``KEYS``. Arguments: seconds without a
heartbeat, seconds that the keys are kept, head, caller."""
BLOCK_MILLISECONDS: Final = 1_000


class ValkeyBuffer:
    def __init__(
        self,
        url: str,
        *,
        bytes: int = STREAM_BYTES,
        keep: float = KEEP_SECONDS,
        lost: float = LOST_SECONDS,
        queue: int = QUEUE_BYTES,
        log: WriteLine | None = None,
    ) -> None:
        self._client, self._faults = connect(url)
        from valkey.exceptions import ResponseError
        from valkey.exceptions import TimeoutError as NoAnswer

        self._slow: type[Exception] = NoAnswer
        self._claim = self._client.register_script(CLAIM)
        self._bytes, self._keep, self._lost = bytes, int(keep), lost
        self._live: dict[str, LiveStream] = {}
        self._queue = ValkeyQueue(self._client, ResponseError, bytes=queue, back=self._heartbeats, log=log)
        self._put = self._queue.put
        self._tasks = TaskSupervisor(log)
        self._watch = self._tasks.start("valkey watch", self._watch_requests)

    # --- the producer

    def open(
        self, stream_id: str, caller: str, on_stop: Callable[[], None], on_reader: Callable[[], None], head: str = ""
    ) -> None:
        """Writes the caller last, so that a reader that finds it finds a stream that is alive."""
        self._live[stream_id] = LiveStream(caller, on_stop, on_reader, time.time(), head)
        self._heartbeat(stream_id)
        self._put("streams", "SET", f"{PREFIX}{stream_id}:head", head, "EX", self._keep, size=len(head))
        self._put("streams", "SET", f"{PREFIX}{stream_id}:caller", caller, "EX", self._keep, size=len(caller))

    async def claim(self, stream_id: str, caller: str, head: str) -> bool:
        """The heartbeat of a stream can be set by one process only, while there is none. All of it is one step of the server, so that
        no other process sees a claimed stream without its head, or with the end of an earlier one."""
        keys = [f"{PREFIX}{stream_id}{suffix}" for suffix in (":live", *KEYS)]
        try:
            claimed = await self._claim(keys=keys, args=[max(1, int(self._lost)), self._keep, head, caller])
        except self._faults as error:
            raise StoreUnavailable(f"the stream buffer does not answer: {error}") from None
        return bool(claimed)

    def has_reader(self, stream_id: str) -> bool:  # noqa: ARG002  # the other buffers need it
        """Always True: the readers are not known here, and the queue collects the chunks anyway."""
        return True

    def append(self, stream_id: str, first: int, last: int, data: bytes) -> None:
        key = f"{PREFIX}{stream_id}"
        self._put("chunks", "XADD", key, f"{last}-0", "first", first, "data", data, size=len(data))
        trimmed = self._live[stream_id].add(last, len(data), self._bytes)
        if trimmed:
            self._put("streams", "XTRIM", f"{PREFIX}{stream_id}", "MINID", f"{trimmed + 1}-0")

    def end(self, stream_id: str, head: str | None = None) -> None:
        live = self._live.pop(stream_id, None)
        if live is not None:
            if head is not None:
                self._put("streams", "SET", f"{PREFIX}{stream_id}:head", head, "EX", self._keep, size=len(head))
            self._put("streams", "XADD", f"{PREFIX}{stream_id}", f"{live.last + 1}-0", "end", live.last)
            self._put("streams", "DEL", f"{PREFIX}{stream_id}:live")
            for key in KEYS:
                self._put("streams", "EXPIRE", f"{PREFIX}{stream_id}{key}", self._keep)

    def _heartbeat(self, stream_id: str) -> None:
        """Sends a heartbeat and renews the expiry of the keys."""
        self._put("streams", "SET", f"{PREFIX}{stream_id}:live", "1", "EX", max(1, int(self._lost)))
        for key in KEYS:
            self._put("streams", "EXPIRE", f"{PREFIX}{stream_id}{key}", self._keep)

    async def _watch_requests(self) -> None:
        heartbeat = float("-inf")
        every = min(HEARTBEAT_SECONDS, self._lost / 3)
        while True:
            try:
                if time.monotonic() - heartbeat > every:
                    heartbeat = time.monotonic()
                    await self._heartbeat_all()
                if self._live:
                    await self._look()
            except Exception as error:  # without this task no stream could be stopped
                self._queue.log_fault(error)
            await asyncio.sleep(WATCH_SECONDS)

    async def _heartbeat_all(self) -> None:
        """Sends the heartbeats of all streams. They are skipped while the server is gone, because they would only fill the
        queue."""
        if not self._live:
            await self._queue.check_connection()
        elif not self._queue.failing:
            self._heartbeats()

    def _heartbeats(self) -> None:
        for stream_id in self._live:
            self._heartbeat(stream_id)

    async def _look(self) -> None:
        """Looks for stop requests."""
        here = list(self._live)
        try:
            flags = await self._client.mget([f"{PREFIX}{stream_id}:stop" for stream_id in here])
        except self._faults:
            return
        for stream_id, flag in zip(here, flags, strict=True):
            if flag and stream_id in self._live:
                self._tasks.attempt("stream stop", self._live[stream_id].stop)

    # --- readers

    async def read(self, stream_id: str, after: int = 0, caller: str | None = None) -> AsyncIterator[Chunk]:
        key = f"{PREFIX}{stream_id}"
        try:
            if not await self._owned(stream_id, caller):
                raise unknown(stream_id)
            while True:
                try:
                    alive, found = await self._next(key, after)
                except self._slow:  # this process may have stood still; a server that does not answer fails again
                    alive, found = await self._next(key, after)
                for ident, fields in found[0][1] if found else ():
                    last = int(ident.split(b"-")[0])
                    first = int(fields.get(b"first", last))
                    if first > after + 1:
                        raise incomplete(stream_id, after)
                    if b"end" in fields:
                        return
                    after = last
                    yield Chunk(first, last, fields[b"data"])
                if not found and not alive:
                    end = await self._last(key)
                    raise beyond(stream_id, after, end) if end is not None and end < after else lost(stream_id)
        except self._faults as error:
            raise StoreUnavailable(f"the stream buffer does not answer: {error}") from None

    async def _next(self, key: str, after: int) -> tuple[bool, Any]:  # Any: what the client answers
        """Whether the stream is alive, and its entries after this one."""
        alive = bool(await self._client.exists(f"{key}:live"))
        block = BLOCK_MILLISECONDS if alive else None
        return alive, await self._client.xread({key: f"{after}-0"}, count=BATCH, block=block)

    async def head(self, stream_id: str, caller: str | None = None, *, wait: bool = True) -> str:
        try:
            if not await self._owned(stream_id, caller, wait):
                raise unknown(stream_id)
            return (await self._client.get(f"{PREFIX}{stream_id}:head") or b"").decode()
        except self._faults as error:
            raise StoreUnavailable(f"the stream buffer does not answer: {error}") from None

    async def _last(self, key: str) -> int | None:
        """The number of the last event, if the stream has ended."""
        newest = await self._client.xrevrange(key, count=1)
        return int(newest[0][1][b"end"]) if newest and b"end" in newest[0][1] else None

    async def stop(self, stream_id: str, caller: str | None = None) -> bool:
        live = self._live.get(stream_id)
        if live is not None and caller in (None, live.caller):
            live.stop()
            return True
        try:
            if not await self._owned(stream_id, caller):
                return False
            await self._client.set(f"{PREFIX}{stream_id}:stop", "1", ex=self._keep)
        except self._faults as error:
            raise StoreUnavailable(f"the stream buffer does not answer: {error}") from None
        return True

    async def _owned(self, stream_id: str, caller: str | None, wait: bool = True) -> bool:
        """Whether this caller has the stream, as soon as the stream is there."""
        until, pause = opened_until(stream_id, self._lost) if wait else 0.0, POLL_SECONDS
        last_look = not wait
        while (owner := await self._client.get(f"{PREFIX}{stream_id}:caller")) is None:
            if last_look:
                return False
            await asyncio.sleep(pause)
            pause = next_pause(pause)
            last_look = time.monotonic() > until and stream_id not in self._live
        return caller is None or bool(owner.decode() == caller)

    # --- life

    async def expire(self) -> None:
        """Does nothing: the server expires the keys."""

    def report(self) -> Report:
        return self._queue.report()

    async def close(self) -> None:
        """Ends all streams and closes the connections within seconds, even if the server does not answer."""
        for stream_id in list(self._live):
            self.end(stream_id)
        await ended(self._watch)
        await self._queue.close()
        with suppress(*self._faults):
            async with asyncio.timeout(DISCONNECT_SECONDS):
                await self._client.aclose()


class Command(NamedTuple):
    kind: str
    weight: int
    words: tuple[object, ...]


class ValkeyQueue:
    """``refusal`` is the exception class for a refused command. ``back`` is called when the server is reachable again."""

    def __init__(
        self,
        client: Any,  # Any: the package has no types for asyncio
        refusal: type[Exception],
        *,
        bytes: int,
        back: Callable[[], None],
        log: WriteLine | None,
    ) -> None:
        self._client, self._refusal = client, refusal
        self._bytes = bytes
        self._back = back
        self._write_line = log or (lambda line: None)
        self._queue: deque[Command] = deque()
        self._weight = 0
        self._oldest = 0.0
        self._wake = asyncio.Event()
        self._closing = False
        self._written: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._dropped_before: Counter[str] | None = None
        self._unfit: Counter[str] = Counter()
        self._batches = self._failures = 0
        self._failing_since = 0.0
        self._last_error = ""
        self._task = TaskSupervisor(log).start("valkey writer", self._run)

    # --- from outside

    @property
    def failing(self) -> bool:
        return bool(self._failing_since)

    def put(self, kind: str, *words: object, size: int = 0) -> None:
        """Queues a command that carries ``size`` bytes, or counts it as dropped."""
        weight = COMMAND_BYTES + size
        if self._weight + weight > SHARES.get(kind, 1.0) * self._bytes or self._task.done():
            self._drop(kind)
            return
        if not self._queue:
            self._oldest = time.monotonic()
        self._weight += weight
        self._queue.append(Command(kind, weight, words))
        self._wake.set()

    def _drop(self, kind: str) -> None:
        """Counts a dropped command. The first of a series is logged at once, the total when there is room again."""
        if self._dropped_before is None:
            self._dropped_before = self._dropped.copy()
            self._log("store_dropping", kind=kind, queued=len(self._queue), queued_bytes=self._weight)
        self._dropped[kind] += 1

    async def check_connection(self) -> None:
        """Checks whether the server answers. If commands are queued, sending them will show it."""
        if not self._queue:
            try:
                await self._client.ping()
            except Exception as error:
                self._failed(error)
            else:
                self._succeeded()

    async def close(self) -> None:
        """Sends everything. If the server does not come back in time, the rest is counted as dropped."""
        self._closing = True
        self._wake.set()
        await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
        await ended(self._task)
        self._dropped.update(command.kind for command in self._queue)
        self._queue.clear()
        self._weight = 0

    def report(self) -> Report:
        return Report(
            queued=len(self._queue),
            queued_bytes=self._weight,
            behind=time.monotonic() - self._oldest if self._queue else 0.0,
            written=dict(self._written),
            dropped=dict(self._dropped),
            unfit=dict(self._unfit),
            commits=self._batches,
            failures=self._failures,
            failing=self.failing,
            last_error=self._last_error,
        )

    # --- the task

    async def _run(self) -> None:
        while self._queue or not self._closing:
            await self._wake.wait()
            await asyncio.sleep(0 if self._closing else FLUSH_SECONDS)
            batch = self._batch()
            if batch:
                try:
                    await self._send(batch)
                except Exception as error:  # a fault of our own must not end the sending
                    self._unfit.update(command.kind for command in batch)
                    self.log_fault(error)
                self._mark_done(batch)
            if not self._queue and not self._closing:
                self._wake.clear()

    def _batch(self) -> list[Command]:
        """The first commands of the queue. They stay in it until they are sent, so that the rest can be counted at the end."""
        batch: list[Command] = []
        size = 0
        for command in self._queue:
            batch.append(command)
            size += command.weight
            if len(batch) >= BATCH or size >= BATCH_BYTES:
                break
        return batch

    def _mark_done(self, batch: list[Command]) -> None:
        for command in batch:
            self._queue.popleft()
            self._weight -= command.weight
        self._oldest = time.monotonic()
        self._succeeded()
        if self._dropped_before is not None and self._weight < self._bytes / 2:
            self._log("store_dropped", dropped=dict(self._dropped - self._dropped_before))
            self._dropped_before = None

    async def _send(self, batch: list[Command]) -> None:
        """Sends a batch until it succeeds. A chunk that is sent twice is refused as a duplicate, which is harmless."""
        pause = FIRST_PAUSE
        while True:
            try:
                refused = await self._try(batch)
            except Exception as error:
                self._failures += 1
                self._failed(error)
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, pause * 2)
            else:
                break
        self._batches += 1
        self._written.update(command.kind for command in batch)
        self._written.subtract(refused)
        self._unfit.update(refused)

    async def _try(self, batch: list[Command]) -> Counter[str]:
        """Sends a batch once. Returns the kinds of the commands that no server would accept. Raises if the server does not
        answer or temporarily refuses."""
        pipeline = self._client.pipeline(transaction=False)
        for command in batch:
            pipeline.execute_command(*command.words)
        replies = await pipeline.execute(raise_on_error=False)
        refused: Counter[str] = Counter()
        message = ""
        for command, reply in zip(batch, replies, strict=True):
            if isinstance(reply, Exception) and DUPLICATE not in str(reply):
                if type(reply) is not self._refusal or str(reply).startswith(TEMPORARY_ERRORS):
                    raise reply
                refused[command.kind] += 1
                message = message or f"{command.words[0]}: {reply}"
        if refused:
            self._last_error = message[:300]
            self._log("store_unfit", kind=next(iter(refused)), message=self._last_error)
        return refused

    def _failed(self, error: Exception) -> None:
        self._last_error = str(error)[:300] or type(error).__name__
        if not self._failing_since:
            self._failing_since = time.monotonic()
            self._log("store_failing", message=self._last_error)

    def _succeeded(self) -> None:
        if self._failing_since:
            seconds, self._failing_since = time.monotonic() - self._failing_since, 0.0
            self._log("store_back", seconds=round(seconds, 3))
            self._back()

    def log_fault(self, error: Exception) -> None:
        """Logs a fault of our own in a task that continues."""
        self._log("store_fault", message=f"{type(error).__name__}: {error}"[:300])

    def _log(self, event: str, **more: object) -> None:
        self._write_line({"event": event, "where": "valkey", **more})


async def ended(task: asyncio.Task[None]) -> None:
    """Cancels the task until it ends: before Python 3.12, ``wait_for``, which the client uses, may lose a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=FIRST_PAUSE)
