"""Numbers on their way to the metrics: counted here by the request, given to the library, whose counting is slow, by the clock."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Final

SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Spread:
    """How many of some times fell into each bucket, and their sum."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self._sum += seconds

    def __bool__(self) -> bool:
        return any(self._counts)

    def into(self, histogram: Any) -> None:
        """By the values that the histogram is made of: it takes no sums itself."""
        histogram._sum.inc(self._sum)
        for value, count in zip(histogram._buckets, self._counts, strict=True):
            if count:
                value.inc(count)


class Tally:
    """What came to an end at one upstream since it was published."""

    __slots__ = ("cached", "errors", "first", "gap", "input", "longest", "output", "requests")

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}
        self.errors: dict[str, int] = {}
        self.cached = self.input = self.output = 0
        self.first, self.gap, self.longest = Spread(), Spread(), Spread()
