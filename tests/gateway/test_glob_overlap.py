"""Whether two globs have a name in common, compared with all short names."""

from __future__ import annotations

import itertools
import random
from fnmatch import fnmatchcase

from streamglot.text import overlap

NAMES = ["".join(letters) for length in range(7) for letters in itertools.product("ab", repeat=length)]


def test_globs_overlap_if_some_name_matches_both() -> None:
    chance = random.Random(3)
    results = set()
    for _ in range(3000):
        one, other = ("".join(chance.choices("ab?*", k=chance.randint(0, 3))) for _ in range(2))
        found = any(fnmatchcase(name, one) and fnmatchcase(name, other) for name in NAMES)
        assert overlap(one, other) == overlap(other, one) == found, (one, other)
        results.add(found)
    assert results == {True, False}


def test_a_set_counts_as_any_character() -> None:
    assert overlap("gpt-[45]*", "gpt-4o")
    assert overlap("[!a]", "b")
    assert overlap("[]a]b", "xb")
    assert not overlap("gpt-[45]", "gpt-")
    assert overlap("a[b", "a[b")


def test_long_globs_do_not_take_long() -> None:
    assert not overlap("*a" * 200 + "b", "*a" * 200 + "c")
