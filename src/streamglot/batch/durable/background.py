"""Background traffic: the calls of batches, which use only the slots that live requests leave free."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ...counters.valkey import SharedLimits
from ...upstream import Upstream
from ...upstream.rate_limits import retry_seconds
from ...upstream.routing.slots import ConcurrencyLimit
from .pace import SharedPace, UpstreamPace

TOO_MANY_REQUESTS = 429


class BackgroundTraffic:
    """The pace of every upstream. ``most``: concurrent calls for each. ``limits`` counts the calls of all workers together."""

    def __init__(self, maximum: int, clock: Callable[[], float] = time.monotonic, limits: SharedLimits | None = None) -> None:
        self.maximum = maximum
        self._limits = limits
        self.workers = 1
        self._clock = clock
        self._paces: dict[str, UpstreamPace] = {}

    def pace(self, upstream: str) -> UpstreamPace:
        pace = self._paces.get(upstream)
        if pace is None:
            limits = self._limits
            if limits is None:
                pace = UpstreamPace(self.maximum)
            else:
                pace = SharedPace(self.maximum, limits.account(upstream), limits.changed)
                limits.join(pace)
            self._paces[upstream] = pace
        pace.workers = self.workers
        return pace

    def paused(self) -> list[str]:
        """The upstreams that accept no calls for a while."""
        now = self._clock()
        return [name for name, pace in self._paces.items() if pace.rests(now)]

    async def take(self, upstream: Upstream, limit: ConcurrencyLimit) -> None:  # noqa: ARG002  # the limit suffices
        await limit.take_spare()

    def answered(self, upstream: Upstream, status: int, headers: Mapping[str, str]) -> None:
        pace, now = self.pace(upstream.name), self._clock()
        pace.learn(now, headers, time.time())
        if status == TOO_MANY_REQUESTS:
            pace.throttled(now, retry_seconds(headers))
