"""What an upstream's headers say about its rate limits: the limits that are left, and how long to wait."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import ceil
from typing import Final

from msgspec import Struct

LONGEST_RETRY: Final = 86_400.0
"""Seconds: one day. Clients sleep for as long as Retry-After says, and no upstream needs more."""
EPOCH_SECONDS: Final = 1e9
"""Seconds. A larger number in a header is a time since 1970 (this one is in 2001), because no limit resets after 30 years."""
EPOCH_MILLISECONDS: Final = 1e12
"""Milliseconds since 1970, likewise."""
_NUMBER: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,9})?")
"""A time in a header: no sign, no exponent, no infinity."""
_HEADER: Final = re.compile(
    r"(?:.*-)?ratelimit-(?:(?P<what>limit|remaining|reset)-(?P<unit>requests|tokens)|(?P<unit2>requests|tokens)-(?P<what2>limit|remaining|reset))"
)
_ANY_RESET: Final = re.compile(r"(?:x-)?(?:.*-)?ratelimit-(?P<before>.*-)?reset(?P<after>-.*)?")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_TOLD: Final = re.compile(r"(?:[a-z]+-)?ratelimit-[a-z0-9-]{1,64}")
_TOLD_VALUE: Final = re.compile(r"[\x20-\x7e]{1,128}")
_MAX_TOLD: Final = 24
"""Headers with rate limits that are passed on. The provider with the most sends 15."""
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Limit(Struct, frozen=True):
    """A limit that an upstream reported: ``left`` of ``limit`` until ``reset`` seconds from now. ``limit`` may be unknown."""

    left: float
    reset: float
    limit: float | None = None


def limits_in(headers: Mapping[str, str], wall_clock: float) -> dict[str, Limit]:
    """The limits that headers report completely, by their unit: ``requests`` or ``tokens``."""
    found: dict[tuple[str, str], str] = {}
    for name, value in headers.items():
        if "ratelimit" in name and (match := _HEADER.fullmatch(name.lower())):
            found[match["unit"] or match["unit2"], match["what"] or match["what2"]] = value
    limits: dict[str, Limit] = {}
    for unit in ("requests", "tokens") if found else ():
        left, reset = _number(found.get((unit, "remaining"), "")), _seconds(found.get((unit, "reset"), ""), wall_clock)
        if left is not None and reset is not None:
            limits[unit] = Limit(left, reset, _number(found.get((unit, "limit"), "")))
    return limits


def retry_seconds(headers: Mapping[str, str], wall_clock: float | None = None) -> float | None:
    """How long an upstream that refused a request asks to wait: its Retry-After (milliseconds, seconds or a date), else the reset
    of the limit that is used up. None if it does not say."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if _NUMBER.fullmatch(text):
            return sensible(float(text) * unit)
    now = time.time() if wall_clock is None else wall_clock
    try:
        when = parsedate_to_datetime(headers.get("retry-after", ""))
        if when.tzinfo is None:  # RFC 5322 writes UTC of an unknown place as -0000
            when = when.replace(tzinfo=UTC)
        return sensible(max(0.0, when.timestamp() - now))
    except (ValueError, TypeError, OverflowError):
        return _reset_seconds(headers, now)


def limit_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that tell a client the limits of the upstream, as they came, and how long it should wait."""
    told = [name for name in headers if "ratelimit" in name and _TOLD.fullmatch(name) and _TOLD_VALUE.fullmatch(headers[name])]
    limits = {name: headers[name] for name in told[:_MAX_TOLD]}
    wait = retry_seconds(headers) if "retry-after" in headers else None
    return limits if wait is None else {**limits, "retry-after": str(ceil(wait))}


def sensible(seconds: float) -> float | None:
    """The time if a client can wait for it; None otherwise."""
    return float(min(seconds, LONGEST_RETRY)) if seconds >= 0 else None


def _reset_seconds(headers: Mapping[str, str], wall_clock: float) -> float | None:
    """The reset of the limits that are used up, the latest one. If no limit says how much of it is left, the earliest reset."""
    used_up, others = [], []
    for name, value in headers.items():
        lower = name.lower()
        if "ratelimit" not in lower or not _ANY_RESET.fullmatch(lower):
            continue
        seconds = _seconds(value.strip(), wall_clock)
        if seconds is None:
            continue
        left = _number(headers.get(lower.replace("reset", "remaining"), "").strip())
        if left == 0:
            used_up.append(seconds)
        elif left is None:
            others.append(seconds)
    if used_up:
        return sensible(max(used_up))
    return sensible(min(others)) if others else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < 1e15 else None


def _seconds(text: str, wall_clock: float) -> float | None:
    """Parses a time in a header: 6m0s, 20ms, a number of seconds, a time since 1970, or a date."""
    plain = _number(text)
    if plain is not None:
        if plain > EPOCH_SECONDS:
            return max(0.0, (plain / 1000 if plain > EPOCH_MILLISECONDS else plain) - wall_clock)
        return plain
    if text and _DURATION.sub("", text) == "":
        return sum(float(amount) * _UNITS[unit] for amount, unit in _DURATION.findall(text))
    try:
        return max(0.0, datetime.fromisoformat(text).timestamp() - wall_clock)
    except (ValueError, OverflowError, OSError):
        return None
