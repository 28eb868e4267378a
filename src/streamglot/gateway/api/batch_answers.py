"""The answers to batches by their id: a batch that is sent again is answered without being run again.

Answers are kept in memory, and in the store's buffer where there is one: then also after a restart and on every worker.
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
    from ...store.buffer import StreamBuffer

KEPT_BATCHES: Final = 256
"""Answers in memory. A client that repeats a batch does so within seconds or minutes, after an error on the line."""
KEPT_BYTES: Final = 32 * 2**20
"""Of all answers in memory together."""
KEPT_SECONDS: Final = 3600.0
"""Age of an answer that is still given; the store's buffer keeps its streams as long."""
STORED_BYTES: Final = 8 * 2**20
"""The largest answer that goes to the store: half of what its buffer takes for one stream."""


class _Answer(Struct):
    digest: str
    data: bytes
    at: float


class BatchAnswers:
    """Answers by caller and batch id, the newest last. ``running`` has the batches that are being run in this process."""

    clock = staticmethod(time.monotonic)

    def __init__(self, store: Callable[[], Store | None]) -> None:
        self.running: dict[tuple[str, str], tuple[str, asyncio.Future[bytes]]] = {}
        self._store = store
        self._answers: OrderedDict[tuple[str, str], _Answer] = OrderedDict()
        self._bytes = 0

    async def find(self, caller: str, batch_id: str, digest: str) -> bytes | None:
        """The answer to this batch if it was given before, or waits for it if it is being made. None for a new batch. The
        same id with other requests is refused."""
        place = caller, batch_id
        running = self.running.get(place)
        if running is not None:
            _check(running[0], digest, batch_id)
            return await asyncio.shield(running[1])
        kept = self._answers.get(place)
        if kept is not None and self.clock() - kept.at < KEPT_SECONDS:
            _check(kept.digest, digest, batch_id)
            return kept.data
        return await self._stored(caller, batch_id, digest)

    def is_running(self, caller: str, batch_id: str) -> bool:
        """Whether it began while ``find`` asked the store. Then it must be asked again."""
        return (caller, batch_id) in self.running

    def begin(self, caller: str, batch_id: str, digest: str) -> asyncio.Future[bytes]:
        """A batch begins to run. Whoever runs it gives the future its answer, or its exception, and calls ``finish``."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: None if done.cancelled() else done.exception())  # nobody may be waiting for it
        self.running[(caller, batch_id)] = digest, future
        buffer = self._buffer()
        if buffer is not None:
            buffer.open(_stream_id(caller, batch_id), caller, _nothing, _nothing, digest)
        return future

    def finish(self, caller: str, batch_id: str, data: bytes | None) -> None:
        """The batch is over; ``data`` is None where it has no answer."""
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
        """The answer that another process gave, or is about to give. A store that does not have it, or fails, is no reason not
        to run the batch."""
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
            f"the batch {excerpt(batch_id)} was sent before with other requests; give every batch an id of its own",
            code=REUSED,
            status=409,
            detail={"param": "batch_id"},
        )


def _stream_id(caller: str, batch_id: str) -> str:
    digest = hashlib.sha256(f"{caller}\0{batch_id}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"batch-{digest[:40]}"


def _nothing() -> None:
    """Batches are not stopped through the buffer, and have nothing to say before their end."""
