"""The pace of background calls to one upstream, learned from its refusals and rate-limit headers. Pure: the time is passed in.

Each 429 halves the number of concurrent calls; as many successes raise it by one. Headers that report the remaining limit spread
the calls over the time until its reset. Every worker does so with its share of the limit, or with permits that all workers count
together (``counters/valkey``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ...counters.valkey import HEARTBEAT_SECONDS
from ...upstream.rate_limits import Limit, limits_in

FIRST_PAUSE: Final = 1.0
"""Seconds without calls after a 429 without a time. It doubles with each 429 in a row."""
LONGEST_PAUSE: Final = 60.0
"""Seconds. Most rate limits are per minute."""
ROUND_SECONDS: Final = 1.0
"""Seconds. Refusals within this time count as one, because all calls in progress are refused together."""
UNITS: Final = ("requests", "tokens")
SMOOTHING: Final = 0.1
"""The weight of the newest answer in the mean size of a call."""


class UpstreamPace:
    """``most``: concurrent calls. ``workers``: the number of workers that share the upstream's limits. ``pause``: seconds without
    calls after the next refusal without a time. ``call_tokens``: the mean size of a call."""

    def __init__(self, maximum: int) -> None:
        self.allowed = float(maximum)
        self.workers = 1
        self.running = 0
        self.pause = 0.0
        self.call_tokens = 0.0
        self.maximum = maximum
        self._until = 0.0
        self._next = 0.0
        self._interval = 0.0
        self._refused = -ROUND_SECONDS

    def delay(self, now: float, ready: int = 1) -> float:  # noqa: ARG002  # permits are taken for as many calls as are ready
        """The seconds until the next call may begin; infinity while the maximum number of calls runs."""
        if self.running >= max(1, int(self.allowed)):
            return float("inf")
        return max(0.0, self._until - now, self._next - now)

    def rests(self, now: float) -> bool:
        """Whether the upstream gets no calls for a while."""
        return self._until > now

    def started(self, now: float) -> None:
        self.running += 1
        self._next = max(now, self._next) + self._interval

    def ended(self) -> None:
        self.running -= 1

    def succeeded(self, tokens: int) -> None:
        """Notes that a call succeeded and used this many tokens."""
        self.pause = 0.0
        self.allowed = min(float(self.maximum), self.allowed + 1.0 / max(1.0, self.allowed))
        self.call_tokens += SMOOTHING * (tokens - self.call_tokens) if self.call_tokens else tokens

    def throttled(self, now: float, retry_after: float | None) -> None:
        """Notes that a call was refused by a rate limit."""
        if now - self._refused >= ROUND_SECONDS:
            self._refused = now
            self.allowed = max(1.0, self.allowed / 2)
            self.pause = min(LONGEST_PAUSE, self.pause * 2 or FIRST_PAUSE)
        self._until = max(self._until, now + (retry_after if retry_after is not None else self.pause))

    def learn(self, now: float, headers: Mapping[str, str], wall_clock: float) -> None:
        """Reads the remaining limits from headers. ``wall_clock`` is the time of day, which some headers use."""
        self.apply(now, limits_in(headers, wall_clock))

    def apply(self, now: float, limits: Mapping[str, Limit]) -> None:
        """Notes the limits of requests and of tokens that an upstream reported."""
        intervals = [0.0]
        for unit, limit in limits.items():
            calls = limit.left / (self.call_tokens or 1.0 if unit == "tokens" else 1.0) / self.workers
            if calls < 1.0:
                self._until = max(self._until, now + min(limit.reset, LONGEST_PAUSE))
            else:
                intervals.append(limit.reset / calls)
        self._interval = min(LONGEST_PAUSE, max(intervals))


class SharedPace(UpstreamPace):
    """The pace of one upstream by permits. ``changed`` is called when there is something to tell Valkey."""

    def __init__(self, maximum: int, account: str, changed: Callable[[], None]) -> None:
        super().__init__(maximum)
        self.account = account
        self.counted = True
        self._changed = changed
        self._permits = 0
        self._unused_since: float | None = None
        self._wanted = 0
        self._free_until = 0.0
        self._ask_at = 0.0
        self._rests_until = 0.0
        self._paused_until = 0.0
        self._reports: dict[str, tuple[Limit, float]] = {}
        self._told = 0

    # --- for the worker

    def delay(self, now: float, ready: int = 1) -> float:
        if not self.counted:
            return super().delay(now, ready)
        room = max(1, int(self.allowed)) - self.running
        if room <= 0:
            return float("inf")
        if self._permits or now < self._free_until:
            return 0.0
        if now < self._ask_at:
            return self._ask_at - now
        self._wanted = max(1, min(ready, room))
        self._changed()
        return float("inf")  # the worker is woken by the answer

    def rests(self, now: float) -> bool:
        return self._rests_until > now if self.counted else super().rests(now)

    def started(self, now: float) -> None:
        super().started(now)
        self._permits = max(0, self._permits - 1)
        self._unused_since = None

    def throttled(self, now: float, retry_after: float | None) -> None:
        super().throttled(now, retry_after)
        self._paused_until = now + min(LONGEST_PAUSE, retry_after if retry_after is not None else self.pause)
        self._free_until = 0.0
        self._changed()

    def apply(self, now: float, limits: Mapping[str, Limit]) -> None:
        super().apply(now, limits)
        for unit, limit in limits.items():
            known = self._reports.get(unit)
            if known is None or limit.left <= known[0].left:
                self._reports[unit] = limit, now
        if limits:
            self._free_until = 0.0
            self._changed()

    # --- for Valkey

    @property
    def has_news(self) -> bool:
        return bool(self._wanted or self._reports or self._paused_until or self._flying or self._told)

    @property
    def active(self) -> bool:
        return bool(self._flying or self._told)

    @property
    def _flying(self) -> int:
        return self.running + self._permits

    def message(self, now: float) -> list[float]:
        if self._permits:
            if self._unused_since is None:
                self._unused_since = now
            elif now - self._unused_since > HEARTBEAT_SECONDS:
                self._permits = 0
        pause = max(0.0, self._paused_until - now)
        arguments = [self._flying, self._wanted, self.maximum, max(1.0, self.call_tokens), round(pause * 1000)]
        for unit in UNITS:
            if unit in self._reports:
                limit, seen = self._reports[unit]
                ends_in = max(0.0, min(LONGEST_PAUSE, limit.reset) - (now - seen))
                arguments += [limit.left, round(ends_in * 1000), limit.limit or -1]
            else:
                arguments += [-1, 0, -1]
        self._wanted, self._paused_until, self._told = 0, 0.0, self._flying
        self._reports.clear()
        return arguments

    def answered(self, now: float, granted: int, wait: float, rests: bool, free_seconds: float) -> bool:
        self._permits += granted
        self._told += granted + bool(free_seconds)  # the calls of a free worker are counted until its next message
        self._ask_at = now + wait
        self._rests_until = now + wait if rests else 0.0
        self._free_until = now + free_seconds if free_seconds else 0.0
        return bool(granted or free_seconds or wait)

    def divide(self) -> None:
        self.counted = False
        self._permits, self._wanted, self._told = 0, 0, 0
        self._free_until = self._ask_at = self._rests_until = 0.0
