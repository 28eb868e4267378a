"""Durations as rate limits are told: 120ms, 7.5s, 6m0s."""

from __future__ import annotations

from math import ceil


def duration(seconds: float) -> str:
    """The duration, rounded up to a thousandth of a second."""
    thousandths = ceil(seconds * 1000)
    if thousandths < 1000:
        return f"{thousandths}ms"
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
