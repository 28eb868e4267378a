"""Compares globs: whether a name exists that two of them match."""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(r"\*+|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
"""A star, a question mark, a set of characters, or a character."""


def overlap(one: str, other: str) -> bool:
    """Whether some name matches both globs. A set of characters counts as any character, so the answer may be True too often."""
    first, second = _tokens(one), _tokens(other)
    waiting, seen = [(0, 0)], {(0, 0)}
    while waiting:
        i, j = waiting.pop()
        if (i, j) == (len(first), len(second)):
            return True
        for step in _steps(first[i : i + 1], second[j : j + 1]):
            place = i + step[0], j + step[1]
            if place not in seen:
                seen.add(place)
                waiting.append(place)
    return False


def _steps(a: list[str], b: list[str]) -> list[tuple[int, int]]:
    """How many tokens of each glob may be passed: a star matches nothing more, or the next token of the other glob."""
    steps = []
    if a == ["*"]:
        steps += [(1, 0), *([(0, 1)] if b else [])]
    if b == ["*"]:
        steps += [(0, 1), *([(1, 0)] if a else [])]
    if a and b and (a == b or "?" in (*a, *b)) and "*" not in (*a, *b):
        steps.append((1, 1))
    return steps


def _tokens(glob: str) -> list[str]:
    found = _TOKEN.findall(glob)
    return ["*" if token[0] == "*" else "?" if len(token) > 1 else token for token in found]
