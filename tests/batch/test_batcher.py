"""The pure batcher, which receives the time as an argument."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamglot.batch.collector import LARGEST_BATCH, Batcher
from streamglot.errors import ConfigError


def test_a_batch_by_size_is_due_when_it_is_full() -> None:
    batcher: Batcher[int] = Batcher(max_size=2)
    batcher.add(1, 0.0)
    assert batcher.due(1e9) == []
    assert batcher.next_deadline is None
    batcher.add(2, 1.0)
    assert batcher.next_deadline == 0.0
    assert batcher.due(1.0) == [1, 2]
    assert batcher.due(1.0) == []


def test_a_batch_by_time_is_due_after_its_interval() -> None:
    batcher: Batcher[int] = Batcher(flush_interval=0.5)
    batcher.add(1, 10.0)
    batcher.add(2, 10.4)
    assert batcher.next_deadline == 10.5
    assert batcher.due(10.49) == []
    assert batcher.due(10.5) == [1, 2]
    assert batcher.next_deadline is None


def test_a_batch_by_time_has_a_largest_size() -> None:
    batcher: Batcher[int] = Batcher(flush_interval=1.0)
    for number in range(LARGEST_BATCH):
        batcher.add(number, 0.0)
    assert len(batcher.due(0.0)) == LARGEST_BATCH


def test_a_hybrid_batch_is_due_at_whichever_comes_first() -> None:
    batcher: Batcher[int] = Batcher(max_size=2, flush_interval=0.5)
    for number in (1, 2, 3):
        batcher.add(number, 0.0)
    assert batcher.due(0.0) == [1, 2]
    assert batcher.due(0.0) == []
    assert batcher.pending == [3]
    assert batcher.next_deadline == 0.5
    assert batcher.due(0.5) == [3]


def test_flush_gives_what_is_not_due() -> None:
    batcher: Batcher[int] = Batcher(max_size=10)
    batcher.add(1, 0.0)
    assert batcher.flush() == [1]
    assert batcher.flush() == []
    assert len(batcher) == 0


def test_items_have_sizes_of_their_own() -> None:
    batcher: Batcher[str] = Batcher(max_size=4, size_of=len)
    for word in ("aa", "bbb", "cccccc", "d"):
        batcher.add(word, 0.0)
    assert [batcher.due(0.0) for _ in range(4)] == [["aa"], ["bbb"], ["cccccc"], []]
    assert batcher.flush() == ["d"]


@pytest.mark.parametrize("settings", [(0, None), (-1, 1.0), (1, -1.0), (1, float("nan"))])
def test_a_batch_that_is_never_sent_is_refused(settings: tuple[int, float | None]) -> None:
    with pytest.raises(ConfigError):
        Batcher(*settings)


@given(st.integers(1, 5), st.floats(0.0, 3.0), st.lists(st.floats(0.0, 2.0), max_size=40))
def test_every_item_leaves_once_in_order_and_in_time(size: int, interval: float, gaps: list[float]) -> None:
    batcher: Batcher[int] = Batcher(size, interval)
    now, came, left = 0.0, {}, []
    for number, gap in enumerate(gaps):
        now += gap
        while batch := batcher.due(now):
            assert len(batch) <= size
            left += batch
        batcher.add(number, now)
        came[number] = now
        assert all(now < came[item] + interval or item == number for item in batcher.pending)
    while batch := batcher.flush():
        left += batch
    assert left == list(range(len(gaps)))
