"""Numbers that processes share: each key has its own, and what a process held is free when it dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamglot.gateway.auth import ratelimit
from streamglot.gateway.auth.ratelimit import HELD_TOKENS, OPEN, USED_TOKENS, WRITTEN_TOKENS, Account, TokenBucket


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[None]:
    ratelimit.share(str(tmp_path))
    try:
        yield
    finally:
        ratelimit._shared = None


class Child:
    """A process that does this, says so, and lives until it is killed."""

    def __init__(self, work: Callable[[], object]) -> None:
        ready, done = os.pipe()
        self.process = os.fork()
        if not self.process:
            try:
                ratelimit.join()
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


@pytest.mark.usefixtures("shared")
def test_no_two_keys_share_a_limit() -> None:
    buckets = [TokenBucket(f"requests {number}") for number in range(1_000)]
    for bucket in buckets:
        bucket.resize(1)
    assert [bucket.take(1, 100.0) for bucket in buckets] == [0.0] * 1_000
    assert all(bucket.take(1, 100.0) > 0 for bucket in buckets)


@pytest.mark.usefixtures("shared")
def test_names_beyond_the_number_of_places_share_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratelimit, "PLACES", 4)
    places = [Account(f"{number}")._place for number in range(6)]
    assert sorted(places[:4]) == [0, 1, 2, 3]
    assert set(places[4:]) <= {0, 1, 2, 3}


@pytest.mark.usefixtures("shared")
def test_totals_are_those_of_all_processes() -> None:
    mine = Account("key")
    mine.add(OPEN, 2)
    other = Child(lambda: Account("key").add(OPEN, 3))
    assert mine.total(OPEN) == 5
    assert Account("other key").total(OPEN) == 0
    other.kill()


@pytest.mark.usefixtures("shared")
def test_numbers_of_a_killed_process_are_free_for_the_next() -> None:
    def work() -> None:
        account = Account("key")
        for field, amount in ((OPEN, 3), (HELD_TOKENS, 50), (USED_TOKENS, 20), (WRITTEN_TOKENS, 15)):
            account.add(field, amount)

    mine = Account("key")
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
    assert not ratelimit.is_raised(ratelimit.KEYS_IN_USE)
    Child(lambda: ratelimit.raise_flag(ratelimit.KEYS_IN_USE)).kill()
    assert ratelimit.is_raised(ratelimit.KEYS_IN_USE)


def test_without_sharing_every_object_has_its_own_counters() -> None:
    one, other = Account("key"), Account("key")
    one.add(OPEN, 1)
    assert (one.total(OPEN), other.total(OPEN)) == (1, 0)
    ratelimit.raise_flag(ratelimit.KEYS_IN_USE)
    assert not ratelimit.is_raised(ratelimit.KEYS_IN_USE)
    ratelimit.join()


def test_a_bucket_gives_back_what_was_reserved_too_much() -> None:
    bucket = TokenBucket("tokens")
    assert bucket.reserve(1_000, 100.0) == 0, "there is no limit"
    bucket.resize(60)
    assert bucket.reserve(1_000, 100.0) == 0, "something was left"
    assert bucket.reserve(1, 100.0) == pytest.approx(941.0)
    bucket.spend(-990, 100.0)
    assert bucket.reserve(10, 100.0) == 0
    bucket.spend(-500, 100.0)
    assert bucket.take(60, 100.0) == 0, "no more than there is"
