"""What keys used lately and hold now: in this process, or after ``share`` in all processes that fork from it.

Shared numbers are in a file that all processes map into memory:

    flags     one double each: see ``raise_flag``
    names     a fingerprint for each place, 0 where it is free
    buckets   two doubles for each place, written by every process under the lock of the place
    regions   one for each process: ``FIELDS`` doubles for each place, written by that process alone

The sum over all regions is what all processes hold together. A process keeps a lock on its region for as long as it lives. The
system releases that lock when the process dies, however it dies, and the process that replaces it takes the region over. So a
worker that is killed leaves no streams behind that count as open for ever.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

PLACES: Final = 8192
"""Names with numbers of their own: three for each key. Beyond that, names share a place, and with it a limit."""
PROCESSES: Final = 64
"""Regions. More processes than this share the last one, so a killed one of those leaves its numbers behind."""
MINUTE: Final = 60.0
DOUBLE: Final = 8
FLAGS: Final = 8

OPEN, HELD_TOKENS, HELD_COST, LIVE_TOKENS, LIVE_COST, USED_TOKENS, USED_COST, WRITTEN_TOKENS, WRITTEN_COST = range(9)
FIELDS: Final = 9
"""The numbers of an ``Account``: requests that are open; what those reserved; what they have used so far; what finished requests
used in all; how much of that is in the database."""
KEYS_IN_USE: Final = 0
"""The flag that clients were asked for keys."""
_REGIONS_IN_USE: Final = 1
"""How many of the regions a process ever had: the others need not be added up."""

_NAMES: Final = FLAGS
_BUCKETS: Final = _NAMES + PLACES
_REGIONS: Final = _BUCKETS + 2 * PLACES
_NAMES_LOCK: Final = -1
"""Locks are on bytes behind the numbers: one for each place, one for each region, one for the names."""


class _Memory:
    """The numbers, shared by processes (``file`` is open) or of one object alone (``file`` is -1)."""

    def __init__(self, file: int, numbers: Any, places: int) -> None:
        self.file = file
        self.numbers = numbers
        self.names = numbers[:0] if file < 0 else memoryview(numbers.obj).cast("Q")[_NAMES : _NAMES + places]
        self._regions = _REGIONS if file >= 0 else 2
        self._owner = 0
        self._region = 0

    def place(self, name: str) -> int:
        """The place of this name: the one that it has, or the next free one."""
        if self.file < 0:
            return 0
        fingerprint = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") | 1
        first: int = fingerprint % PLACES
        place: int
        with self.locked(_NAMES_LOCK):
            for place in (*range(first, PLACES), *range(first)):
                if self.names[place] in (0, fingerprint):
                    self.names[place] = fingerprint
                    break
            else:
                place = first
        return place

    def bucket(self, place: int) -> Any:
        """The two numbers of a bucket, to be written in place."""
        start = 0 if self.file < 0 else _BUCKETS + 2 * place
        return self.numbers[start : start + 2]

    def account(self, place: int, region: int) -> Any:
        """The numbers of an account in this region, to be written in place."""
        start = self._regions + (region * PLACES + place) * FIELDS
        return self.numbers[start : start + FIELDS]

    def region(self) -> int:
        """The region of this process."""
        if self.file >= 0 and self._owner != os.getpid():
            self._region, self._owner = self._claim(), os.getpid()
        return self._region

    def _claim(self) -> int:
        """Takes the first region whose process is not alive. What that process held or was using is over. What it used and is
        not in the database never will be; what is there stays counted, because others have counted with it."""
        import fcntl

        for region in range(PROCESSES - 1):
            try:
                fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _lock_of(PLACES + 1 + region))
            except OSError:
                continue
            with self.locked(_NAMES_LOCK):
                self.numbers[_REGIONS_IN_USE] = max(self.numbers[_REGIONS_IN_USE], region + 1)
            start = self._regions + region * PLACES * FIELDS
            for place in range(PLACES):
                if self.names[place]:
                    at = start + place * FIELDS
                    written = list(self.numbers[at + WRITTEN_TOKENS : at + WRITTEN_COST + 1])
                    for field, number in enumerate([0.0] * USED_TOKENS + 2 * written):
                        self.numbers[at + field] = number
            return region
        self.numbers[_REGIONS_IN_USE] = PROCESSES
        return PROCESSES - 1

    def regions_in_use(self) -> int:
        return 1 if self.file < 0 else int(self.numbers[_REGIONS_IN_USE])

    @contextmanager
    def locked(self, place: int) -> Iterator[None]:
        """Nobody else is at this place meanwhile."""
        if self.file < 0:
            yield
            return
        import fcntl

        fcntl.lockf(self.file, fcntl.LOCK_EX, 1, _lock_of(place))
        try:
            yield
        finally:
            fcntl.lockf(self.file, fcntl.LOCK_UN, 1, _lock_of(place))


_BYTES: Final = (_REGIONS + PROCESSES * PLACES * FIELDS) * DOUBLE
"""38 MB, of which the system keeps the pages that were written: a few for each key and process."""
_shared: _Memory | None = None


def _lock_of(place: int) -> int:
    return _BYTES + 1 + place


def share(folder: str) -> None:
    """From now on the numbers are kept in this folder, for all processes that fork from this one."""
    global _shared
    with (Path(folder) / "ledger").open("w+b") as file:
        file.truncate(_BYTES)
        held = os.dup(file.fileno())
    _shared = _Memory(held, memoryview(mmap.mmap(held, _BYTES)).cast("d"), PLACES)


def join() -> None:
    """This process takes a region, and with it what a process that died held in it."""
    if _shared is not None:
        _shared.region()


def _memory(doubles: int) -> _Memory:
    return _shared or _Memory(-1, memoryview(bytearray(doubles * DOUBLE)).cast("d"), 0)


def raise_flag(flag: int) -> None:
    """It stays raised for all processes that share the numbers, also for those that start later."""
    if _shared is not None:
        _shared.numbers[flag] = 1.0


def is_raised(flag: int) -> bool:
    return _shared is not None and bool(_shared.numbers[flag])


class TokenBucket:
    """A number of things a minute, saved up for a minute at most. A limit of 0 is none. What is kept is the debt, which time
    pays off."""

    def __init__(self, name: str) -> None:
        self._most = 0.0
        self._memory = _memory(2)
        self._place = self._memory.place(name)
        self._numbers = self._memory.bucket(self._place)

    def resize(self, per_minute: int) -> None:
        self._most = float(per_minute)

    @property
    def limited(self) -> bool:
        return self._most > 0

    def take(self, cost: float, now: float) -> float:
        """Takes it and gives 0, or gives the seconds to wait."""
        if not self._most:
            return 0.0
        with self._memory.locked(self._place):
            debt = self._debt(now)
            left = self._most - debt
            if left < max(cost, 1e-9):
                return (max(cost, 1.0) - left) / self._most * MINUTE
            self._numbers[0] = debt + cost
        return 0.0

    def reserve(self, amount: float, now: float) -> float:
        """Takes the amount if anything is left, however little, and gives 0; else gives the seconds to wait. ``spend`` corrects
        it when the true amount is known."""
        if not self._most:
            return 0.0
        with self._memory.locked(self._place):
            debt = self._debt(now)
            left = self._most - debt
            if left < 1e-9:
                return (1.0 - left) / self._most * MINUTE
            self._numbers[0] = debt + amount
        return 0.0

    def spend(self, amount: float, now: float) -> None:
        """Takes the amount whether it is left or not. A negative amount is given back."""
        if self._most:
            with self._memory.locked(self._place):
                self._numbers[0] = max(0.0, self._debt(now) + amount)

    def _debt(self, now: float) -> float:
        before, at = self._numbers
        debt: float = max(0.0, before - (now - at) * self._most / MINUTE)
        self._numbers[0], self._numbers[1] = debt, now
        return debt


class Account:
    """The numbers of one key: those of this process can be added to, the totals are those of all processes."""

    def __init__(self, name: str) -> None:
        self._memory = _memory(2 + FIELDS)
        self._place = self._memory.place(name)
        self._own: Any = None
        self._all: list[Any] = []

    def add(self, field: int, amount: float) -> None:
        """Adds to the number of this process. One that only looks at accounts needs no region."""
        if self._own is None:
            self._own = self._memory.account(self._place, self._memory.region())
        self._own[field] += amount

    def total(self, field: int) -> float:
        regions = self._memory.regions_in_use()
        if len(self._all) != regions:
            self._all = [self._memory.account(self._place, region) for region in range(regions)]
        total: float = sum(numbers[field] for numbers in self._all)
        return total

    def locked(self) -> AbstractContextManager[None]:
        """``with`` this, a total and what is added because of it are one step."""
        return self._memory.locked(self._place)
