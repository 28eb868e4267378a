"""Paths into JSON values: the part of JSONPath that rules on arguments need.

``$.a.b``, ``$['a b']``, ``$.list[0]``, ``$.list[*].name``, ``$.*`` and ``$..name`` (at any depth).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, TypeAlias

from ..errors import ConfigError, excerpt
from ..json_types import JsonValue

Step: TypeAlias = tuple[bool, str | int | None]
"""Whether the step is at any depth, and the key; None for every key."""
_STEP: Final = re.compile(r"""(\.\.|\.)(\*|[^.\[\]'"*]+)|(\.\.)?\[(?:(\*)|(-?\d+)|'([^']*)'|"([^"]*)")\]""")
MAX_DEPTH: Final = 128
"""Levels that ``..`` searches. Real arguments are not nested deeper."""


def parse_path(path: str) -> tuple[Step, ...]:
    steps: list[Step] = []
    at = 1
    while path.startswith("$") and at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            break
        dots, name, deep, star, number, *quoted = found.groups()
        key: str | int | None = next((text for text in (name, *quoted) if text is not None), None)
        if number is not None:
            key = int(number)
        elif star is not None or key == "*":
            key = None
        steps.append((dots == ".." or deep is not None, key))
        at = found.end()
    if not path.startswith("$") or at < len(path):
        raise ConfigError(
            f"{excerpt(path)} is not a path: a path begins with $ and goes on as in $.files[0].name, $.urls[*] or $..path"
        )
    return tuple(steps)


def values_at(steps: tuple[Step, ...], value: object) -> Iterator[JsonValue]:
    """The values that a path leads to."""
    if not steps:
        yield value
        return
    (deep, key), rest = steps[0], steps[1:]
    for place in _descendants(value, MAX_DEPTH) if deep else (value,):
        for inner in _children(place, key):
            yield from values_at(rest, inner)


def _children(value: object, key: str | int | None) -> Iterator[JsonValue]:
    if isinstance(value, dict):
        if key is None:
            yield from value.values()
        elif key in value:
            yield value[key]
    elif isinstance(value, list):
        if key is None:
            yield from value
        elif isinstance(key, int) and -len(value) <= key < len(value):
            yield value[key]


def _descendants(value: object, depth: int) -> Iterator[JsonValue]:
    yield value
    if depth:
        for inner in _children(value, None):
            yield from _descendants(inner, depth - 1)
