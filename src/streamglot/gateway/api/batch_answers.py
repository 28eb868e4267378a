"""Keeps the answers to batches by id, so that a repeated batch is answered without running it again.

Answers are kept in memory and, if there is a store, in its buffer. From there they are available after a restart and on every
worker.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from ...errors import RequestError, StreamglotError, excerpt

if TYPE_CHECKING:
    from ...store import Store
    from ...store.streams import StreamBuffer

KEPT_BATCHES: Final = 256
"""Answers in memory. A client repeats a batch within seconds or minutes, after a connection error."""
KEPT_BYTES: Final = 32 * 2**20
"""Bytes of all answers in memory together."""
KEPT_SECONDS: Final = 3600.0
"""Seconds for which an answer is kept. The store's buffer keeps its streams as long."""
STORED_BYTES: Final = 8 * 2**20
"""Bytes of the largest answer that goes to the store: half of what its buffer accepts for one stream."""

LOCKED_SECONDS: Final = 10.0
"""Seconds that a claim waits for a store that another process has locked. Each attempt already waits a second or more."""
LOCKED_PAUSE: Final = 0.05
"""Seconds between two of these attempts."""


class _Answer(Struct):
    digest: str
    data: bytes
    at: float


class BatchAnswers:
    """Answers by caller and batch id, the newest last. ``running`` holds the batches that run in this process."""

    clock = staticmethod(time.monotonic)

    def __init__(self, store: Callable[[], Store | None]) -> None:
        self.running: dict[tuple[str, str], tuple[str, asyncio.Future[bytes]]] = {}
        self._store = store
        self._answers: OrderedDict[tuple[str, str], _Answer] = OrderedDict()
        self._bytes = 0

    async def find(self, caller: str, batch_id: str, digest: str) -> bytes | None:
        """The answer to this batch if it is known, and waits for it if the batch is running. Returns None for a new batch.

        Raises if the same id was used with other requests.
        """
        place = caller, batch_id
        running = self.running.get(place)
        if running is not None:
            _check(running[0], digest, batch_id)
            return await asyncio.shield(running[1])
        known = self._answers.get(place)
        if known is not None and self.clock() - known.at < KEPT_SECONDS:
            _check(known.digest, digest, batch_id)
            return known.data
        return await self._stored(caller, batch_id, digest)

    def is_running(self, caller: str, batch_id: str) -> bool:
        """Whether the batch began while ``find`` waited for the store. ``find`` must then be called again."""
        return (caller, batch_id) in self.running

    async def claim(self, caller: str, batch_id: str, digest: str) -> bool:
        """Whether this process may run the batch. If not, another process runs it or has just answered it, and ``find`` must be
        called again. A store that fails does not prevent the batch. A store that is locked may be about to get the claim of
        another process: raises StoreLocked if it stays locked for ``LOCKED_SECONDS``."""
        buffer = self._buffer()
        if buffer is None:
            return True
        from ...store.database import StoreLocked

        until = self.clock() + LOCKED_SECONDS
        while True:
            try:
                return await buffer.claim(_stream_id(caller, batch_id), caller, digest)
            except StoreLocked:
                if self.clock() >= until:
                    raise
                await asyncio.sleep(LOCKED_PAUSE)
            except StreamglotError:
                return True

    def begin(self, caller: str, batch_id: str, digest: str) -> asyncio.Future[bytes]:
        """Registers a running batch. The caller sets the result or the exception of the future, and then calls ``finish``."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        # marks the exception as retrieved, because there may be no waiter
        future.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        self.running[(caller, batch_id)] = digest, future
        buffer = self._buffer()
        if buffer is not None:
            buffer.open(_stream_id(caller, batch_id), caller, _nothing, _nothing, digest)
        return future

    def finish(self, caller: str, batch_id: str, data: bytes | None) -> None:
        """Ends a running batch. ``data`` is None if it has no answer."""
        digest, _ = self.running.pop((caller, batch_id))
        buffer = self._buffer()
        if buffer is not None:
            if data is not None and len(data) <= STORED_BYTES:
                buffer.append(_stream_id(caller, batch_id), 1, 1, data)
            buffer.end(_stream_id(caller, batch_id))
        if data is not None:
            self._keep((caller, batch_id), _Answer(digest, data, self.clock()))

    def _keep(self, place: tuple[str, str], answer: _Answer) -> None:
        before = self._answers.pop(place, None)
        if before is not None:
            self._bytes -= len(before.data)
        self._answers[place] = answer
        self._bytes += len(answer.data)
        while len(self._answers) > KEPT_BATCHES or self._bytes > KEPT_BYTES:
            _, oldest = self._answers.popitem(last=False)
            self._bytes -= len(oldest.data)

    # --- the store

    def _buffer(self) -> StreamBuffer | None:
        store = self._store()
        return store.buffer if store is not None and store.settings.content else None

    async def _stored(self, caller: str, batch_id: str, digest: str) -> bytes | None:
        """The answer that another process has given or is about to give.

        Returns None if the store does not have it or fails: the batch is then run.
        """
        buffer = self._buffer()
        if buffer is None:
            return None
        stream_id = _stream_id(caller, batch_id)
        try:
            _check(await buffer.head(stream_id, caller, wait=False), digest, batch_id)
            pieces = [chunk.data async for chunk in buffer.read(stream_id, 0, caller)]
        except StreamglotError as error:
            if error.code == REUSED:
                raise
            return None
        return b"".join(pieces) or None


REUSED: Final = "batch_id_reused"


def _check(known: str, digest: str, batch_id: str) -> None:
    if known != digest:
        raise RequestError(
            f"the batch {excerpt(batch_id)} was sent before with other requests; give every batch a unique id",
            code=REUSED,
            status=409,
            detail={"param": "batch_id"},
        )


def _stream_id(caller: str, batch_id: str) -> str:
    digest = hashlib.sha256(f"{caller}\0{batch_id}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"batch-{digest[:40]}"


def _nothing() -> None:
    """Does nothing: batches cannot be stopped through the buffer and write only at their end."""
