"""How fast one upstream takes background calls: learned from its refusals and its rate-limit headers. Pure: it is told the time.

The calls at once are halved on each 429 and grow by one after as many successes. Headers that say how much is left until the limit
is reset spread the calls over that time. All workers do so, each with its share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

FIRST_PAUSE: Final = 1.0
"""Seconds without calls after a 429 that names no time. It doubles with each 429 in a row."""
LONGEST_PAUSE: Final = 60.0
"""Seconds. Limits are per minute almost everywhere."""
ROUND_SECONDS: Final = 1.0
"""Refusals within this time are one: all calls that were under way are refused together."""
SMOOTHING: Final = 0.1
"""The weight of the newest answer in the mean size of a call."""
_HEADER: Final = re.compile(
    r"(?:.*-)?ratelimit-(?:(?P<what>limit|remaining|reset)-(?P<unit>requests|tokens)|(?P<unit2>requests|tokens)-(?P<what2>limit|remaining|reset))"
)
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class UpstreamPace:
    """``most``: calls at once. ``workers`` share the limits of the upstream."""

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
        """Seconds until the next call may begin; infinity while as many run as may."""
        if self.running >= max(1, int(self.allowed)):
            return float("inf")
        return max(0.0, self._until - now, self._next - now)

    def rests(self, now: float) -> bool:
        """Does the upstream take no calls for a while?"""
        return self._until > now

    def started(self, now: float) -> None:
        self.running += 1
        self._next = max(now, self._next) + self._interval

    def ended(self) -> None:
        self.running -= 1

    def succeeded(self, tokens: int) -> None:
        """A call was answered, and used this many tokens."""
        self._pause = 0.0
        self.allowed = min(float(self._most), self.allowed + 1.0 / max(1.0, self.allowed))
        self._tokens += SMOOTHING * (tokens - self._tokens) if self._tokens else tokens

    def throttled(self, now: float, retry_after: float | None) -> None:
        """A call was refused because there are too many."""
        if now - self._refused >= ROUND_SECONDS:
            self._refused = now
            self.allowed = max(1.0, self.allowed / 2)
            self._pause = min(LONGEST_PAUSE, self._pause * 2 or FIRST_PAUSE)
        self._until = max(self._until, now + (retry_after if retry_after is not None else self._pause))

    def learn(self, now: float, headers: Mapping[str, str], wall_clock: float) -> None:
        """Reads what is left of the limits. ``wall_clock`` is the time of day, which some headers name."""
        found: dict[tuple[str, str], str] = {}
        for name, value in headers.items():
            if "ratelimit" in name and (match := _HEADER.fullmatch(name.lower())):
                found[match["unit"] or match["unit2"], match["what"] or match["what2"]] = value
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
    """A time as headers write it: 6m0s, 20ms, a number of seconds, or a date."""
    plain = _number(text)
    if plain is not None:
        return plain
    if text and _DURATION.sub("", text) == "":
        return sum(float(amount) * _UNITS[unit] for amount, unit in _DURATION.findall(text))
    try:
        return max(0.0, datetime.fromisoformat(text).timestamp() - wall_clock)
    except (ValueError, OverflowError, OSError):
        return None
