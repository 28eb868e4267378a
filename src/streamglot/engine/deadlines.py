"""Cheap deadlines: the gateway's clock checks them a few times a second.

A timer of the event loop for each wait would cost more than reading the request. Here a wait is one entry in a table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType


class Deadlines:
    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.open: set[Deadline] = set()

    def tick(self, now: float) -> None:
        for deadline in [deadline for deadline in self.open if deadline.due <= now]:
            deadline.expire()


class Deadline:
    """Cancels what its task waits for when the time is over, and turns that cancellation, and no other, into a TimeoutError."""

    __slots__ = ("_before", "_expired", "_owner", "_task", "due", "seconds")

    def __init__(self, owner: Deadlines, seconds: float) -> None:
        self.seconds = seconds
        self.due = 0.0
        self._owner = owner
        self._task: asyncio.Task[object] | None = None
        self._before = 0
        self._expired = False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        if self._task is not None:
            self._before = self._task.cancelling()
        self.due = self._owner.clock() + self.seconds
        self._owner.open.add(self)

    def expire(self) -> None:
        self._owner.open.discard(self)
        self._expired = True
        if self._task is not None:
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._owner.open.discard(self)
        if self._expired and self._task is not None and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error
