"""How many at once: a turn for each request, a bounded wait when all are taken."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType

from ..errors import LimitExceeded
from .keys import Caller

RETRY_SECONDS = 1.0


class Turns:
    """So many turns. Who comes too many waits in line, for ``wait`` seconds at most; ``most`` of 0 is no limit."""

    def __init__(self, most: int, wait: float, what: str) -> None:
        self.taken = 0
        self._most = most
        self._wait = wait
        self._what = what
        self._line: deque[asyncio.Future[None]] = deque()

    def resize(self, most: int, wait: float) -> None:
        self._most, self._wait = most, wait
        self._wake()

    async def take(self) -> None:
        if not self._most or (self.taken < self._most and not self._line):
            self.taken += 1
            return
        if len(self._line) >= self._most:
            raise self._full()
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await asyncio.wait_for(turn, self._wait)
        except (TimeoutError, asyncio.CancelledError) as error:
            if turn.done() and not turn.cancelled():
                self.give_back()  # the turn came in the very moment in which nobody waited for it any more
            elif turn in self._line:
                self._line.remove(turn)
            if isinstance(error, TimeoutError):
                raise self._full() from None
            raise

    def give_back(self) -> None:
        self.taken -= 1
        if self._line:
            self._wake()

    def _wake(self) -> None:
        while self._line and (not self._most or self.taken < self._most):
            turn = self._line.popleft()
            if not turn.done():
                self.taken += 1
                turn.set_result(None)

    def _full(self) -> LimitExceeded:
        return LimitExceeded(
            f"{self._what} has all its {self._most} places taken; try again in {RETRY_SECONDS:.0f} s",
            code="too_many_streams",
            status=429,
            retryable=True,
            detail={"retry_after": RETRY_SECONDS},
        )


class Turn:
    """``async with`` one: among all requests, and among those of the caller's key."""

    __slots__ = ("_caller", "_turns")

    def __init__(self, turns: Turns, caller: Caller | None) -> None:
        self._turns = turns
        self._caller = caller

    async def __aenter__(self) -> None:
        """A request that waits for its turn counts for its key already: others of the key must not pass beside it."""
        if self._caller is not None:
            self._caller.enter()
        try:
            await self._turns.take()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._turns.give_back()
        self._leave()

    def _leave(self) -> None:
        if self._caller is not None:
            self._caller.leave()
