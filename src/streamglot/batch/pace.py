"""The pace of background calls to one upstream, learned from its refusals and rate-limit headers. Pure: the time is passed in.

Each 429 halves the number of concurrent calls; as many successes raise it by one. Headers that report the remaining limit spread
the calls over the time until its reset. Every worker does so with its share of the limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

FIRST_PAUSE: Final = 1.0
"""Seconds without calls after a 429 without a time. It doubles with each 429 in a row."""
LONGEST_PAUSE: Final = 60.0
"""Seconds. Most rate limits are per minute."""
ROUND_SECONDS: Final = 1.0
"""Seconds. Refusals within this time count as one, because all calls in progress are refused together."""
SMOOTHING: Final = 0.1
"""The weight of the newest answer in the mean size of a call."""
_HEADER: Final = re.compile(
    r"(?:.*-)?ratelimit-(?:(?P<what>limit|remaining|reset)-(?P<unit>requests|tokens)|(?P<unit2>requests|tokens)-(?P<what2>limit|remaining|reset))"
)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class UpstreamPace:
    """``most``: concurrent calls. ``workers``: the number of workers that share the upstream's limits."""

    def __init__(self, most: int) -> None:
        self.allowed = float(most)
        self.workers = 1
        self.running = 0
        self._most = most
        self._pause = 0.0
        self._until = 0.0
        self._next = 0.0
        self._interval = 0.0
        self._refused = -ROUND_SECONDS
        self._tokens = 0.0

    def delay(self, now: float) -> float:
        """Returns the seconds until the next call may begin; infinity while the maximum number of calls runs."""
        if self.running >= max(1, int(self.allowed)):
            return float("inf")
        return max(0.0, self._until - now, self._next - now)

    def rests(self, now: float) -> bool:
        """Returns whether the upstream gets no calls for a while."""
        return self._until > now

    def started(self, now: float) -> None:
        self.running += 1
        self._next = max(now, self._next) + self._interval

    def ended(self) -> None:
        self.running -= 1

    def succeeded(self, tokens: int) -> None:
        """Notes that a call succeeded and used this many tokens."""
        self._pause = 0.0
        self.allowed = min(float(self._most), self.allowed + 1.0 / max(1.0, self.allowed))
        self._tokens += SMOOTHING * (tokens - self._tokens) if self._tokens else tokens

    def throttled(self, now: float, retry_after: float | None) -> None:
        """Notes that a call was refused by a rate limit."""
        if now - self._refused >= ROUND_SECONDS:
            self._refused = now
            self.allowed = max(1.0, self.allowed / 2)
            self._pause = min(LONGEST_PAUSE, self._pause * 2 or FIRST_PAUSE)
        self._until = max(self._until, now + (retry_after if retry_after is not None else self._pause))

    def learn(self, now: float, headers: Mapping[str, str], wall_clock: float) -> None:
        """Reads the remaining limits from headers. ``wall_clock`` is the time of day, which some headers use."""
        found: dict[tuple[str, str], str] = {}
        for name, value in headers.items():
            if "ratelimit" in name and (match := _HEADER.fullmatch(name.lower())):
                found[match["unit"] or match["unit2"], match["what"] or match["what2"]] = value
        if not found:
            self._interval = 0.0
            return
        intervals = [0.0]
        for unit, size in (("requests", 1.0), ("tokens", self._tokens or 1.0)):
            left, reset = _number(found.get((unit, "remaining"), "")), _seconds(found.get((unit, "reset"), ""), wall_clock)
            if left is None or reset is None:
                continue
            calls = left / size / self.workers
            if calls < 1.0:
                self._until = max(self._until, now + min(reset, LONGEST_PAUSE))
            else:
                intervals.append(reset / calls)
        self._interval = min(LONGEST_PAUSE, max(intervals))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < 1e15 else None


def _seconds(text: str, wall_clock: float) -> float | None:
    """Parses a duration in a header: 6m0s, 20ms, a number of seconds, or a date."""
    plain = _number(text)
    if plain is not None:
        return plain
    if text and _DURATION.sub("", text) == "":
        return sum(float(amount) * _UNITS[unit] for amount, unit in _DURATION.findall(text))
    try:
        return max(0.0, datetime.fromisoformat(text).timestamp() - wall_clock)
    except (ValueError, OverflowError, OSError):
        return None
