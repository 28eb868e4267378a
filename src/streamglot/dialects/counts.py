"""Counts of tokens out of an upstream's usage object, which may hold anything."""

from __future__ import annotations

from typing import Any

from ..events import Usage

MOST = 2**53
"""No answer has so many tokens: what is larger is no count."""


def count(raw: dict[str, Any], *names: str) -> int | None:
    """The first of these fields that holds a number."""
    for name in names:
        value = raw.get(name)
        if value is not None and isinstance(value, (int, float)) and abs(value) < MOST:
            return int(value)
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
    return Usage(**said, raw=raw)
