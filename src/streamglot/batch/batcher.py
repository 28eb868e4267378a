"""The pure batcher: collects items and returns those that are due as one batch. The time is passed in.

by size     ``Batcher(max_size=10)``                        a batch is due when it has 10 items
by time     ``Batcher(flush_interval=0.1)``                 ... 0.1 s after its first item came
hybrid      ``Batcher(max_size=10, flush_interval=0.1)``    ... at whichever comes first
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from ..errors import ConfigError

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
