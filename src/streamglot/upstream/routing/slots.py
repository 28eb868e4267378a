"""Limits concurrency: each request takes a slot, and waits for a bounded time if all are taken."""

from __future__ import annotations

import asyncio
from collections import deque

from ...errors import LimitExceeded
from ...tasks import patient_timeout

RETRY_SECONDS = 1.0
"""Seconds in Retry-After: streams end often enough for a slot to become free by then."""
RESERVED_SHARE = 10
"""One slot in this many stays free of background calls, so that a live request finds one without waiting."""


class ConcurrencyLimit:
    """``limit`` slots. Further requests wait in line for at most ``wait`` seconds. ``limit`` of 0 means no limit."""

    def __init__(self, limit: int, wait: float, what: str) -> None:
        self.taken = 0
        self._limit = limit
        self._wait = wait
        self._what = what
        self._line: deque[asyncio.Future[None]] = deque()
        self._background: deque[asyncio.Future[None]] = deque()

    def resize(self, limit: int, wait: float) -> None:
        self._limit, self._wait = limit, wait
        self._wake()

    def take_now(self) -> bool:
        """Takes a slot if one is free. Returns whether it did; if not, the caller awaits ``take``."""
        if self._limit and (self.taken >= self._limit or self._line):
            return False
        self.taken += 1
        return True

    async def take(self) -> None:
        if self.take_now():
            return
        if len(self._line) >= self._limit:
            raise self._full()
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            async with patient_timeout(self._wait):
                await turn
        except (TimeoutError, asyncio.CancelledError) as error:
            if turn.done() and not turn.cancelled():
                self.give_back()  # the slot was granted in the moment in which the wait ended
            elif turn in self._line:
                self._line.remove(turn)
            if isinstance(error, TimeoutError):
                raise self._full() from None
            raise

    async def take_spare(self) -> None:
        """Takes a slot that live requests do not need, and waits for it without a time limit.

        Waiting live requests come first.
        """
        if not self._limit or (self.taken < self._spare and not self._line and not self._background):
            self.taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._background.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()
            elif turn in self._background:
                self._background.remove(turn)
            raise

    @property
    def _spare(self) -> int:
        """How many slots may be in use when a background call takes another one."""
        return max(1, self._limit - -(-self._limit // RESERVED_SHARE))

    def give_back(self) -> None:
        self.taken -= 1
        if self._line or self._background:
            self._wake()

    def _wake(self) -> None:
        while self._line and (not self._limit or self.taken < self._limit):
            turn = self._line.popleft()
            if not turn.done():
                self.taken += 1
                turn.set_result(None)
        while self._background and (not self._limit or self.taken < self._spare):
            turn = self._background.popleft()
            if not turn.done():
                self.taken += 1
                turn.set_result(None)

    def _full(self) -> LimitExceeded:
        return LimitExceeded(
            f"{self._what} has all its {self._limit} slots in use; try again in {RETRY_SECONDS:.0f} s",
            code="too_many_streams",
            status=429,
            retryable=True,
            detail={"retry_after": RETRY_SECONDS},
        )
