"""The buffer of streams on Valkey or Redis: one Stream for each of ours, its ids the numbers of the chunks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from ..errors import ConfigError
from .buffer import (
    BEAT_SECONDS,
    KEEP_SECONDS,
    LOST_SECONDS,
    OPEN_SECONDS,
    POLL_SECONDS,
    STREAM_BYTES,
    WATCH_SECONDS,
    Chunk,
    Live,
    incomplete,
    lost,
    unknown,
)
from .database import StoreUnavailable
from .writer import FIRST_PAUSE, LONGEST_PAUSE

PREFIX: Final = "streamglot:stream:"
KEYS: Final = ("", ":head", ":caller")
"""What is held of a stream: its chunks, what its readers must know, and whose it is."""
QUEUE_BYTES: Final = 64 * 2**20
"""What may wait for a server that does not answer; more is dropped, and counted."""
BATCH: Final = 1_000
FLUSH_SECONDS: Final = 0.01
"""Chunks that come together go together."""
BLOCK_MILLISECONDS: Final = 1_000
CLOSE_SECONDS: Final = 5.0


class ValkeyBuffer:
    def __init__(
        self,
        url: str,
        *,
        bytes: int = STREAM_BYTES,
        keep: float = KEEP_SECONDS,
        lost: float = LOST_SECONDS,
        queue: int = QUEUE_BYTES,
    ) -> None:
        try:
            from valkey.asyncio import Valkey
            from valkey.exceptions import ValkeyError
        except ImportError:
            raise ConfigError("valkey.url needs the package valkey: pip install 'streamglot[valkey]'") from None
        self._faults: tuple[type[Exception], ...] = (ValkeyError, OSError, TimeoutError)
        self._client: Any = Valkey.from_url(url, socket_connect_timeout=2.0)
        self._bytes, self._keep, self._lost, self._most = bytes, int(keep), lost, queue
        self._live: dict[str, Live] = {}
        self._queue: deque[tuple[int, tuple[Any, ...]]] = deque()
        self._weight = 0
        self._wake = asyncio.Event()
        self._closing = 0.0
        self.dropped: Counter[str] = Counter()
        self._tasks = [asyncio.ensure_future(self._flushing()), asyncio.ensure_future(self._watching())]

    # --- the producer

    def open(self, stream_id: str, caller: str, on_stop: Callable[[], None], on_want: Callable[[], None], head: str = "") -> None:
        self._live[stream_id] = Live(caller, on_stop, on_want, time.time(), head)
        self._put("streams", "SET", f"{PREFIX}{stream_id}:head", head, "EX", self._keep)
        self._put("streams", "SET", f"{PREFIX}{stream_id}:caller", caller, "EX", self._keep)
        self._beat(stream_id)

    def wanted(self, stream_id: str) -> bool:  # noqa: ARG002
        """We cannot know; and what is appended comes together in our queue."""
        return True

    def append(self, stream_id: str, first: int, last: int, data: bytes) -> None:
        key = f"{PREFIX}{stream_id}"
        self._put("chunks", "XADD", key, f"{last}-0", "first", first, "data", data, weight=len(data))
        trimmed = self._live[stream_id].add(last, len(data), self._bytes)
        if trimmed:
            self._put("streams", "XTRIM", f"{PREFIX}{stream_id}", "MINID", f"{trimmed + 1}-0")

    def end(self, stream_id: str) -> None:
        live = self._live.pop(stream_id, None)
        if live is not None:
            self._put("streams", "XADD", f"{PREFIX}{stream_id}", f"{live.last + 1}-0", "end", live.last)
            for key in KEYS:
                self._put("streams", "EXPIRE", f"{PREFIX}{stream_id}{key}", self._keep)

    def _beat(self, stream_id: str) -> None:
        """We are alive; and what we keep of it is kept."""
        self._put("streams", "SET", f"{PREFIX}{stream_id}:live", "1", "EX", max(1, int(self._lost)))
        for key in KEYS:
            self._put("streams", "EXPIRE", f"{PREFIX}{stream_id}{key}", self._keep)

    def _put(self, kind: str, *command: Any, weight: int = 0) -> None:
        if self._weight + weight > self._most:
            self.dropped[kind] += 1
            return
        self._weight += weight
        self._queue.append((weight, command))
        self._wake.set()

    async def _flushing(self) -> None:
        while self._queue or not self._closing:
            await self._wake.wait()
            await asyncio.sleep(0 if self._closing else FLUSH_SECONDS)
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            await self._send([command for _, command in batch])
            self._weight -= sum(weight for weight, _ in batch)
            if not self._queue and not self._closing:
                self._wake.clear()

    async def _send(self, commands: list[tuple[Any, ...]]) -> None:
        """Until it is there. A chunk that was sent twice has a number that is taken, which is well."""
        pause = FIRST_PAUSE
        while commands:
            try:
                pipeline = self._client.pipeline(transaction=False)
                for command in commands:
                    pipeline.execute_command(*command)
                await pipeline.execute(raise_on_error=False)
                return
            except self._faults:
                if self._closing and time.monotonic() > self._closing:
                    self.dropped["chunks"] += sum(command[0] == "XADD" for command in commands)
                    return
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, pause * 2)

    async def _watching(self) -> None:
        beat = time.monotonic()
        every = min(BEAT_SECONDS, self._lost / 3)
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if time.monotonic() - beat > every:
                beat = time.monotonic()
                for stream_id in self._live:
                    self._beat(stream_id)
            here = list(self._live)
            if not here:
                continue
            try:
                flags = await self._client.mget([f"{PREFIX}{stream_id}:stop" for stream_id in here])
            except self._faults:
                continue
            for stream_id, flag in zip(here, flags, strict=True):
                if flag and stream_id in self._live:
                    self._live[stream_id].stop()

    # --- readers

    async def read(self, stream_id: str, after: int = 0, caller: str | None = None) -> AsyncIterator[Chunk]:
        key = f"{PREFIX}{stream_id}"
        try:
            if not await self._owned(stream_id, caller):
                raise unknown(stream_id)
            while True:
                alive = await self._client.exists(f"{key}:live")
                found = await self._client.xread({key: f"{after}-0"}, count=BATCH, block=BLOCK_MILLISECONDS if alive else None)
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
                    raise incomplete(stream_id, after) if await self._over(key, after) else lost(stream_id)
        except self._faults as error:
            raise StoreUnavailable(f"the buffer of streams does not answer: {error}") from None

    async def head(self, stream_id: str, caller: str | None = None) -> str:
        try:
            if not await self._owned(stream_id, caller):
                raise unknown(stream_id)
            return (await self._client.get(f"{PREFIX}{stream_id}:head") or b"").decode()
        except self._faults as error:
            raise StoreUnavailable(f"the buffer of streams does not answer: {error}") from None

    async def _over(self, key: str, after: int) -> bool:
        """Did the stream end before this number? Then there never was one."""
        newest = await self._client.xrevrange(key, count=1)
        return bool(newest) and b"end" in newest[0][1] and int(newest[0][0].split(b"-")[0]) <= after

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
            raise StoreUnavailable(f"the buffer of streams does not answer: {error}") from None
        return True

    async def _owned(self, stream_id: str, caller: str | None) -> bool:
        until = time.monotonic() + OPEN_SECONDS
        while (owner := await self._client.get(f"{PREFIX}{stream_id}:caller")) is None:
            if time.monotonic() > until:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return caller is None or bool(owner.decode() == caller)

    # --- life

    async def expire(self) -> None:
        """The server forgets by itself."""

    async def close(self) -> None:
        for stream_id in list(self._live):
            self.end(stream_id)
        self._closing = time.monotonic() + CLOSE_SECONDS
        self._wake.set()
        await self._tasks[0]
        self._tasks[1].cancel()
        await self._client.aclose()
