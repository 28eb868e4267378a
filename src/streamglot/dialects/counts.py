"""Counts of tokens out of an upstream's usage object, which may hold anything."""

from __future__ import annotations

from typing import Any, Final

from ..events import Usage

MOST: Final = 2**40
"""Tokens. A million times the largest context: what is larger is no count, and the sum over millions of answers still fits into
64 bits."""
MAX_DEPTH: Final = 8
"""Objects inside each other in a usage object; no provider has more than three."""


def count(raw: dict[str, Any], *names: str) -> int | None:
    """The first of these fields that holds a count. A negative one counts as 0."""
    for name in names:
        value = raw.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value < MOST:
            return int(value) if value > 0 else 0
    return None


def details(raw: dict[str, Any], *names: str) -> dict[str, Any]:
    """The first of these fields that holds an object; an empty one if none does."""
    for name in names:
        value = raw.get(name)
        if isinstance(value, dict):
            return value
    return {}


def first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def total(*values: int | None) -> int | None:
    """The sum of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def totals(said: dict[str, int | None], before: Usage | None, raw: dict[str, Any]) -> Usage:
    """Running totals: what this usage object does not say stays as it was before."""
    if before is not None:
        said = {name: getattr(before, name) if value is None else value for name, value in said.items()}
    return Usage(**said, raw=plausible(raw))


def plausible(raw: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """The usage object for the clients of its own dialect: the same one, or a copy with 0 for every count that is none."""
    for value in raw.values():
        if (type(value) in (int, float) and not 0 <= value < MOST) or isinstance(value, (dict, list)):
            break
    else:
        return raw
    return {name: _plausible(name, value, depth) for name, value in raw.items()}


def _plausible(name: str, value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return plausible(value, depth + 1) if depth < MAX_DEPTH else {}
    if isinstance(value, list):
        return [_plausible(name, element, depth + 1) for element in value] if depth < MAX_DEPTH else []
    if type(value) in (int, float) and not 0 <= value < MOST and _is_count(name):
        return 0
    return value


def _is_count(name: str) -> bool:
    """Counts of tokens are named so in every dialect; a price or a time may be below 0."""
    name = name.lower()
    return "token" in name or "count" in name
