"""Numbers that processes share: each key has its own, and what a process held is free when it dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from streamglot.counters import (
    HELD_TOKENS,
    LIVE_TOKENS,
    OPEN,
    REQUESTS,
    TOKENS,
    USED_TOKENS,
    WRITTEN_TOKENS,
    Changes,
    Counters,
    Refused,
    Room,
    Take,
    workers,
)
from streamglot.counters.workers import counters_of

REQUEST = Take(REQUESTS, 1, needs=1)


def admit(counters: Counters, rules: Sequence[Take | Room], changes: Changes, now: float = 0.0) -> Refused | None:
    """What counters answer that never wait: a machine's."""
    try:
        counters.admit(rules, changes, now).send(None)
    except StopIteration as done:
        answer: Refused | None = done.value
        return answer
    raise AssertionError("it waits")


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[None]:
    workers.share(str(tmp_path))
    try:
        yield
    finally:
        workers.unshare()


@pytest.fixture(params=["one process", "workers"])
def counters(request: pytest.FixtureRequest) -> Counters:
    """The counters of a name in each of their forms."""
    if request.param == "workers":
        request.getfixturevalue("shared")
    return counters_of("key")


class Child:
    """A process that does this, says so, and lives until it is killed."""

    def __init__(self, work: Callable[[], object]) -> None:
        ready, done = os.pipe()
        self.process = os.fork()
        if not self.process:
            try:
                workers.join()
                work()
                os.write(done, b"!")
                signal.pause()
            finally:
                os._exit(1)
        os.close(done)
        assert os.read(ready, 1) == b"!"
        os.close(ready)

    def kill(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


# --- every form


def test_a_bucket_gives_back_what_was_reserved_too_much(counters: Counters) -> None:
    def reserve(tokens: float) -> Refused | None:
        return admit(counters, [Take(TOKENS, tokens)], {}, 100.0)

    assert reserve(1_000) is None, "there is no limit"
    counters.resize(tokens=60)
    assert reserve(1_000) is None, "something was left"
    refused = reserve(1)
    assert refused is not None
    assert refused.wait == pytest.approx(941.0)
    counters.settle({}, -990, 100.0)
    assert reserve(10) is None
    counters.settle({}, -500, 100.0)
    assert counters.left(TOKENS, 100.0) == (60, 60, 0.0), "no more than there is"
    assert admit(counters, [Take(TOKENS, 60, needs=60)], {}, 100.0) is None
    assert counters.left(TOKENS, 130.0) == (60, 30, 30.0), "it fills with time"


def test_a_refusal_names_its_rule_and_changes_nothing(counters: Counters) -> None:
    counters.resize(requests=10, tokens=100)
    counters.add(USED_TOKENS, 40)
    counters.add(LIVE_TOKENS, 50)
    rules: list[Take | Room] = [REQUEST, Room((USED_TOKENS, LIVE_TOKENS), 100), Room((USED_TOKENS, LIVE_TOKENS), 100, needs=20)]
    assert admit(counters, rules, {OPEN: 1}, 1.0) == Refused(2, 0.0)
    assert admit(counters, [REQUEST, Room((USED_TOKENS,), 40)], {OPEN: 1}, 1.0) == Refused(1, 0.0), "nothing is left"
    assert (counters.left(REQUESTS, 1.0).left, counters.total(OPEN)) == (10, 0)
    assert admit(counters, rules[:2], {OPEN: 1, HELD_TOKENS: 20}, 1.0) is None
    assert (counters.left(REQUESTS, 1.0).left, counters.total(OPEN), counters.total(HELD_TOKENS)) == (9, 1, 20)


def test_what_is_admitted_together_is_settled_together(counters: Counters) -> None:
    counters.resize(tokens=100)
    one_place = [Room((OPEN,), 1)]
    assert admit(counters, [*one_place, Take(TOKENS, 30)], {OPEN: 1, HELD_TOKENS: 30}, 5.0) is None
    assert admit(counters, [*one_place, Take(TOKENS, 30)], {OPEN: 1, HELD_TOKENS: 30}, 5.0) == Refused(0, 0.0)
    counters.settle({OPEN: -1, HELD_TOKENS: -30, USED_TOKENS: 12}, 12 - 30, 5.0)
    assert [counters.total(field) for field in (OPEN, HELD_TOKENS, USED_TOKENS)] == [0, 0, 12]
    assert counters.left(TOKENS, 5.0).left == 88


def test_a_limit_that_is_set_later_knows_nothing_of_what_came_before(counters: Counters) -> None:
    assert admit(counters, [Take(TOKENS, 1_000)], {}, 5.0) is None
    counters.settle({}, 1_000, 5.0)
    counters.resize(tokens=10)
    assert counters.left(TOKENS, 5.0) == (10, 10, 0.0)


# --- the processes of one machine


@pytest.mark.usefixtures("shared")
def test_no_two_keys_share_a_limit() -> None:
    keys = [counters_of(str(number)) for number in range(1_000)]
    for key in keys:
        key.resize(requests=1)
    assert [admit(key, [REQUEST], {}, 100.0) for key in keys] == [None] * 1_000
    assert all(admit(key, [REQUEST], {}, 100.0) for key in keys)


@pytest.mark.usefixtures("shared")
def test_names_beyond_the_number_of_places_share_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PLACES", 4)
    keys = [counters_of(str(number)) for number in range(6)]
    for number, key in enumerate(keys[:4]):
        key.add(OPEN, number + 1)
    assert [key.total(OPEN) for key in keys[:4]] == [1, 2, 3, 4]
    assert {key.total(OPEN) for key in keys[4:]} <= {1, 2, 3, 4}


@pytest.mark.usefixtures("shared")
def test_totals_are_those_of_all_processes() -> None:
    mine = counters_of("key")
    mine.add(OPEN, 2)
    other = Child(lambda: counters_of("key").add(OPEN, 3))
    assert mine.total(OPEN) == 5
    assert counters_of("other key").total(OPEN) == 0
    other.kill()


@pytest.mark.usefixtures("shared")
def test_processes_admit_no_more_than_the_limit_together() -> None:
    def work() -> None:
        key = counters_of("key")
        key.resize(requests=100)
        for _ in range(40):
            admit(key, [REQUEST], {}, 7.0)
            admit(key, [Room((OPEN,), 50)], {OPEN: 1})

    children = [Child(work) for _ in range(3)]
    mine = counters_of("key")
    mine.resize(requests=100)
    assert (mine.total(OPEN), mine.left(REQUESTS, 7.0).left) == (50, 0)
    for child in children:
        child.kill()


@pytest.mark.usefixtures("shared")
def test_numbers_of_a_killed_process_are_free_for_the_next() -> None:
    def work() -> None:
        key = counters_of("key")
        for field, amount in ((OPEN, 3), (HELD_TOKENS, 50), (USED_TOKENS, 20), (WRITTEN_TOKENS, 15)):
            key.add(field, amount)

    mine = counters_of("key")
    mine.add(OPEN, 1)
    killed, alive = Child(work), Child(work)
    assert mine.total(OPEN) == 7
    killed.kill()
    assert mine.total(OPEN) == 7, "nobody replaced it yet"
    next_one = Child(lambda: None)
    assert (mine.total(OPEN), mine.total(HELD_TOKENS)) == (4, 50)
    assert (mine.total(USED_TOKENS), mine.total(WRITTEN_TOKENS)) == (35, 30), "what is in the database stays counted"
    for child in (alive, next_one):
        child.kill()


@pytest.mark.usefixtures("shared")
def test_a_flag_stays_raised_for_processes_that_start_later() -> None:
    assert not workers.is_raised(workers.KEYS_IN_USE)
    Child(lambda: workers.raise_flag(workers.KEYS_IN_USE)).kill()
    assert workers.is_raised(workers.KEYS_IN_USE)


@pytest.mark.usefixtures("shared")
def test_the_numbers_leave_no_file_behind(tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []


def test_without_sharing_every_object_has_its_own_numbers() -> None:
    one, other = counters_of("key"), counters_of("key")
    one.add(OPEN, 1)
    assert (one.total(OPEN), other.total(OPEN)) == (1, 0)
    workers.raise_flag(workers.KEYS_IN_USE)
    assert not workers.is_raised(workers.KEYS_IN_USE)
    workers.join()
