"""Collects items into batches that are due by size, by time, or by whichever comes first.

by size     ``Batcher(max_size=10)``                        a batch is due when it has 10 items
by time     ``Batcher(flush_interval=0.1)``                 ... 0.1 s after its first item came
hybrid      ``Batcher(max_size=10, flush_interval=0.1)``    ... at whichever comes first

``Batcher`` is pure: the time is passed in. ``AsyncBatcher`` supplies the time, sends the batches that are due, and holds a future
for each item.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final, Generic, TypeVar

from ..errors import ConfigError, StreamglotError

Item = TypeVar("Item")

LARGEST_BATCH: Final = 1000
"""Items of a batch without a size limit, so that a caller that adds items quickly does not fill the memory."""


def one_each(_item: object) -> int:
    """1: all items have the same size."""
    return 1


class Batcher(Generic[Item]):
    """``max_size`` 0 means no size limit; ``flush_interval`` None means no time limit. ``size_of`` returns the size of an item.

    Items leave in the order in which they came, each in exactly one batch.
    """

    def __init__(
        self, max_size: int = 0, flush_interval: float | None = None, *, size_of: Callable[[Item], int] = one_each
    ) -> None:
        if max_size < 0 or (flush_interval is not None and not flush_interval >= 0.0):
            raise ConfigError(
                f"a batch needs a max_size of at least 1 and a flush_interval of at least 0 s, not {max_size} and {flush_interval}"
            )
        if not max_size and flush_interval is None:
            raise ConfigError("a batch would never be sent: give max_size, flush_interval or both")
        self.max_size = max_size or LARGEST_BATCH
        self.flush_interval = flush_interval
        self._size_of = size_of
        self._items: deque[tuple[Item, int, float]] = deque()
        self._size = 0

    def add(self, item: Item, now: float) -> None:
        size = self._size_of(item)
        self._items.append((item, size, now))
        self._size += size

    def due(self, now: float) -> list[Item]:
        """The items of the next batch that is due; empty if none is.

        Several may be due: call it until it returns nothing.
        """
        deadline = self.next_deadline
        return self._take() if deadline is not None and now >= deadline else []

    def flush(self) -> list[Item]:
        """The items of the next batch, due or not; empty if there are none. Call it until it returns nothing."""
        return self._take() if self._items else []

    @property
    def next_deadline(self) -> float | None:
        """When the next batch is due.

        That is in the past for a full batch. None if only another item can make a batch due.
        """
        if not self._items:
            return None
        came = self._items[0][2]
        if self._size >= self.max_size:
            return came
        return None if self.flush_interval is None else came + self.flush_interval

    @property
    def pending(self) -> list[Item]:
        """The items that have not left yet."""
        return [item for item, _, _ in self._items]

    def __len__(self) -> int:
        return len(self._items)

    def _take(self) -> list[Item]:
        """Removes and returns one batch: as many items as fit into its size, and at least one."""
        taken: list[Item] = []
        room = self.max_size
        while self._items and (not taken or self._items[0][1] <= room):
            item, size, _ = self._items.popleft()
            taken.append(item)
            room -= size
            self._size -= size
        return taken


Result = TypeVar("Result")

Send = Callable[[list[Item]], AsyncIterator[tuple[int, Result]]]
"""Sends one batch. Yields the position of an item in the batch and its result, in any order."""

UNCLAIMED: Final = 10_000
"""Results that ``flush`` can still return, so that a caller that never flushes does not fill the memory. Older results are
available only from their futures."""


class AsyncBatcher(Generic[Item, Result]):
    """``unclaimed``: the number of results that ``flush`` can return.

    ``add`` and ``flush`` belong to one event loop. A batch that is due is sent in the background, concurrently with earlier ones.
    """

    clock = staticmethod(time.monotonic)

    def __init__(
        self,
        send: Send[Item, Result],
        *,
        max_size: int = 0,
        flush_interval: float | None = None,
        size_of: Callable[[Item], int] = one_each,
        unclaimed: int = UNCLAIMED,
    ) -> None:
        self._send = send
        self._batcher: Batcher[tuple[Item, asyncio.Future[Result]]] = Batcher(
            max_size, flush_interval, size_of=lambda pair: size_of(pair[0])
        )
        self._unclaimed: deque[asyncio.Future[Result]] = deque(maxlen=unclaimed)
        self._sending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> list[Item]:
        """The items that have not been sent yet."""
        return [item for item, _ in self._batcher.pending]

    def add(self, item: Item) -> asyncio.Future[Result]:
        """Adds an item and returns the future of its result. Cancelling the future does not remove the item."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._batcher.add((item, future), self.clock())
        self._unclaimed.append(future)
        self._send_due()
        return future

    async def flush(self) -> list[Result]:
        """Sends the pending items and returns the results of all items since the last flush, in the order of ``add``.

        Raises if an item could not be sent.
        """
        while batch := self._batcher.flush():
            self._begin(batch)
        self._set_timer()
        waited = list(self._unclaimed)
        self._unclaimed.clear()
        return list(await asyncio.gather(*waited))

    async def close(self) -> None:
        """Sends the pending items and waits until every item has its result."""
        while batch := self._batcher.flush():
            self._begin(batch)
        self._set_timer()
        while self._sending:
            await asyncio.gather(*self._sending, return_exceptions=True)

    # --- sending

    def _send_due(self) -> None:
        now = self.clock()
        while batch := self._batcher.due(now):
            self._begin(batch)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._batcher.next_deadline
        if deadline is not None:
            wait = max(0.0, deadline - self.clock())
            self._timer = asyncio.get_running_loop().call_later(wait, self._send_due)

    def _begin(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        task = asyncio.ensure_future(self._run(batch))
        self._sending.add(task)
        task.add_done_callback(lambda ended: self._ended(ended, batch))

    async def _run(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        async for place, result in self._send([item for item, _ in batch]):
            future = batch[place][1]
            if not future.done():
                future.set_result(result)

    def _ended(self, task: asyncio.Task[None], batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        """Completes every future of the batch, even if the task was cancelled before it began."""
        self._sending.discard(task)
        failure = None if task.cancelled() else task.exception()
        for _, future in batch:
            if future.done():
                continue
            if task.cancelled():
                future.cancel()
            else:
                future.set_exception(failure or StreamglotError("the batch has no result for this item", code="no_result"))
                future.exception()  # marks the exception as retrieved, because the caller may never read its future
