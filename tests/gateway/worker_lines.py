"""Connections to each worker of a gateway, for tests that choose the worker that answers."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.process import Served
from gateway.worker_client import Line, answered_by
from waiting import soon, until


class Lines:
    """Connections to both workers of a gateway, by worker."""

    def __init__(self, served: Served) -> None:
        self._port = served.port
        until(lambda: len(served.workers()) == 2)
        self.workers = served.workers()
        self._free: dict[int, list[Line]] = {worker: [] for worker in self.workers}

    async def prepare(self, each: int) -> None:
        """The test cannot choose the worker that accepts a connection, so it connects until both workers have enough."""
        while any(len(free) < each for free in self._free.values()):
            made = [await Line.to(self._port) for _ in range(each)]
            takers: dict[int, int] = {}

            def taken() -> bool:
                takers.update(answered_by(self._port, self.workers))  # noqa: B023  # it runs before the next round
                return all(line.port in takers for line in made)  # noqa: B023  # it runs before the next round

            await soon(taken)
            for line in made:
                line.worker = takers[line.port]
                self._free[line.worker].append(line)

    async def to(self, worker: int) -> Line:
        if not self._free[worker]:
            await self.prepare(4)
        return self._free[worker].pop()

    @asynccontextmanager
    async def lent(self, worker: int) -> AsyncIterator[Line]:
        line = await self.to(worker)
        yield line
        self._free[worker].append(line)

    def other(self, worker: int) -> int:
        return next(one for one in self.workers if one != worker)

    def any(self, chance: random.Random) -> int:
        return chance.choice(self.workers)
