"""Counts what keys used in the last minute and hold now: in this process or, after ``share``, in all processes that fork from it.

Shared numbers are in a file that all processes map into memory:

    flags     one double each: see ``raise_flag``
    names     a fingerprint for each place, 0 if it is free
    buckets   two doubles for each place, written by every process under the lock of the place
    regions   one for each process: ``FIELDS`` doubles for each place, written by that process alone

The sum over all regions is what all processes hold together. A process holds a lock on its region while it lives. The system
releases the lock when the process ends for any reason, and its replacement takes the region over. The streams of a killed worker
therefore do not count as open for ever.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, TypeAlias

PLACES: Final = 8192
"""Names with separate numbers: three for each key. Further names share a place, and with it a limit."""
PROCESSES: Final = 64
"""Regions. Further processes share the last one; if one of those is killed, its numbers stay."""
MINUTE: Final = 60.0
DOUBLE: Final = 8
FLAGS: Final = 8

OPEN, BATCHED, HELD_TOKENS, HELD_COST, LIVE_TOKENS, LIVE_COST, USED_TOKENS, USED_COST, WRITTEN_TOKENS, WRITTEN_COST = range(10)
FIELDS: Final = 10
"""The numbers of an ``Account``: open requests, running items of batches, their reservations, their usage so far, the usage of
finished requests, and how much of that is in the database."""
KEYS_IN_USE: Final = 0
"""The flag that keys have been required."""
_REGIONS_IN_USE: Final = 1
"""The number of regions that a process has ever used. Sums leave out the others."""

_NAMES: Final = FLAGS
_BUCKETS: Final = _NAMES + PLACES
_REGIONS: Final = _BUCKETS + 2 * PLACES
_NAMES_LOCK: Final = -1
"""Locks are on bytes after the numbers: one for each place, one for each region, one for the names."""

Numbers: TypeAlias = "memoryview[float]"


class _Memory:
    """The numbers, either shared by processes (``file`` is open) or private to one object (``file`` is -1)."""

    def __init__(self, file: int, numbers: Numbers, places: int) -> None:
        self.file = file
        self.numbers = numbers
        self.names = numbers[:0] if file < 0 else memoryview(numbers.obj).cast("Q")[_NAMES : _NAMES + places]
        self._regions = _REGIONS if file >= 0 else 2
        self._owner = 0
        self._region = 0

    def place(self, name: str) -> int:
        """The place of this name. A new name gets the next free place."""
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

    def bucket(self, place: int) -> Numbers:
        """The two numbers of a bucket as a writable view."""
        start = 0 if self.file < 0 else _BUCKETS + 2 * place
        return self.numbers[start : start + 2]

    def account(self, place: int, region: int) -> Numbers:
        """The numbers of an account in this region as a writable view."""
        start = self._regions + (region * PLACES + place) * FIELDS
        return self.numbers[start : start + FIELDS]

    def region(self) -> int:
        """The region of this process."""
        if self.file >= 0 and self._owner != os.getpid():
            self._region, self._owner = self._claim(), os.getpid()
        return self._region

    def _claim(self) -> int:
        """Takes the first region whose process is not alive, and clears its open requests and reservations.

        Usage of that process that is not in the database is lost. Usage in the database stays counted, because other processes
        have counted with it.
        """
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
        """Holds the exclusive lock of this place."""
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
"""38 MB in a sparse file. The system only stores the pages that were written: a few for each key and process."""
_shared: _Memory | None = None


def _lock_of(place: int) -> int:
    return _BYTES + 1 + place


def share(folder: str) -> None:
    """Moves the numbers to this folder, for all processes that fork from this one."""
    global _shared
    with (Path(folder) / "rate_limits").open("w+b") as file:
        file.truncate(_BYTES)
        held = os.dup(file.fileno())
    _shared = _Memory(held, memoryview(mmap.mmap(held, _BYTES)).cast("d"), PLACES)


def join() -> None:
    """Takes a region for this process. Clears what a dead process held in it."""
    if _shared is not None:
        _shared.region()


def _memory(doubles: int) -> _Memory:
    return _shared or _Memory(-1, memoryview(bytearray(doubles * DOUBLE)).cast("d"), 0)


def raise_flag(flag: int) -> None:
    """Raises a flag for all processes that share the numbers, including those that start later. It stays raised."""
    if _shared is not None:
        _shared.numbers[flag] = 1.0


def is_raised(flag: int) -> bool:
    return _shared is not None and bool(_shared.numbers[flag])


class TokenBucket:
    """Allows a number of units per minute. Unused units accumulate for at most a minute. A limit of 0 means no limit.

    The stored number is the debt, which decreases with time.
    """

    def __init__(self, name: str) -> None:
        self._capacity = 0.0
        self._memory = _memory(2)
        self._place = self._memory.place(name)
        self._numbers = self._memory.bucket(self._place)

    def resize(self, per_minute: int) -> None:
        self._capacity = float(per_minute)

    @property
    def limited(self) -> bool:
        return self._capacity > 0

    def left(self, now: float) -> tuple[int, int, float]:
        """The limit, what is left of it now, and the seconds until all of it is."""
        with self._memory.locked(self._place):
            debt = self._debt(now)
        return int(self._capacity), max(0, int(self._capacity - debt)), debt / self._capacity * MINUTE

    def take(self, cost: float, now: float) -> float:
        """Takes the cost and returns 0, or returns the seconds to wait."""
        if not self._capacity:
            return 0.0
        with self._memory.locked(self._place):
            debt = self._debt(now)
            left = self._capacity - debt
            if left < max(cost, 1e-9):
                return (max(cost, 1.0) - left) / self._capacity * MINUTE
            self._numbers[0] = debt + cost
        return 0.0

    def reserve(self, amount: float, now: float) -> float:
        """Takes the amount and returns 0 if anything is left, however little. Otherwise returns the seconds to wait.

        ``spend`` corrects the amount when the true one is known.
        """
        if not self._capacity:
            return 0.0
        with self._memory.locked(self._place):
            debt = self._debt(now)
            left = self._capacity - debt
            if left < 1e-9:
                return (1.0 - left) / self._capacity * MINUTE
            self._numbers[0] = debt + amount
        return 0.0

    def spend(self, amount: float, now: float) -> None:
        """Takes the amount even if it is not left. A negative amount is given back."""
        if self._capacity:
            with self._memory.locked(self._place):
                self._numbers[0] = max(0.0, self._debt(now) + amount)

    def _debt(self, now: float) -> float:
        before, at = self._numbers
        debt: float = max(0.0, before - (now - at) * self._capacity / MINUTE)
        self._numbers[0], self._numbers[1] = debt, now
        return debt


class Account:
    """The numbers of one key. ``add`` changes those of this process; totals are over all processes."""

    def __init__(self, name: str) -> None:
        self._memory = _memory(2 + FIELDS)
        self._place = self._memory.place(name)
        self._own: Numbers | None = None
        self._all: list[Numbers] = []

    def add(self, field: int, amount: float) -> None:
        """Adds to the number of this process. A process that only reads accounts needs no region."""
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
        """A lock that makes reading a total and adding to it one step."""
        return self._memory.locked(self._place)
