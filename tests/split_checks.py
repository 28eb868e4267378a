"""Runs anything with ``feed`` and ``close`` whole, byte by byte and in random splits, and compares the results."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from streamglot import Event, check
from streamglot.dialects.common.reader import Reader


def feed_all(box: Any, pieces: Iterable[Any]) -> list[Any]:
    """The results of the box for these pieces and at its close."""
    given: list[Any] = []
    for piece in pieces:
        given += box.feed(piece)
    given += box.close()
    return given


def random_cuts(data: Any, seed: int) -> list[Any]:
    source = random.Random(seed)
    pieces, position = [], 0
    while position < len(data):
        size = source.choice((1, 1, 2, 3, 5, 17, 80, 500))
        pieces.append(data[position : position + size])
        position += size
    return pieces


def every_cut(make: Callable[[], Any], data: Any, cuts: int = 3) -> list[Any]:
    """Checks that the result is the same for any split; for a reader, also that the grammar allows it."""
    first = make()
    whole = feed_all(first, [data] if data else [])
    single = feed_all(make(), [data[i : i + 1] for i in range(len(data))])
    assert single == whole, "piece by piece gives another result than the whole"
    for seed in range(cuts):
        assert feed_all(make(), random_cuts(data, seed)) == whole, f"random cuts (seed {seed}) give another result"
    if isinstance(first, Reader):
        check(whole)
    return whole


def events(make: Callable[[], Reader], data: bytes) -> list[Event]:
    return every_cut(make, data)
