"""Numbers that all processes of one machine share.

``share`` puts them into memory that all processes map which fork from this one:

    flags     one double each: see ``raise_flag``
    names     a fingerprint for each place, 0 if it is free
    buckets   two doubles for each bucket of a place, written by every process under the lock of the place
    regions   one for each process: ``FIELDS`` doubles for each place, written by that process alone

The sum over all regions is what all processes hold together. A process holds a lock on its region while it lives. The system
releases the lock when the process ends for any reason, and its replacement takes the region over. The streams of a killed worker
therefore do not count as open for ever.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from . import BUCKETS, FIELDS, USED_TOKENS, WRITTEN_COST, WRITTEN_TOKENS, Counters, Numbers
from .metrics_files import MetricsFiles

PLACES: Final = 8192
"""Names with separate numbers: one for each key. Further names share a place, and with it a limit."""
PROCESSES: Final = 64
"""Regions. Further processes share the last one; if one of those is killed, its numbers stay."""
DOUBLE: Final = 8
FLAGS: Final = 8
KEYS_IN_USE: Final = 0
"""The flag that keys have been required."""
_REGIONS_IN_USE: Final = 1
"""The number of regions that a process has ever used. Sums leave out the others."""

_NAMES: Final = FLAGS
_BUCKETS: Final = _NAMES + PLACES
_REGIONS: Final = _BUCKETS + 2 * BUCKETS * PLACES
_BYTES: Final = (_REGIONS + PROCESSES * PLACES * FIELDS) * DOUBLE
"""42 MB in a sparse file. The system only stores the pages that were written: a few for each key and process."""
_NAMES_LOCK: Final = -1
"""Locks are on bytes after the numbers: one for each place, one for each region, one for the names."""


class _Memory:
    """The numbers of all processes, in a file without a name."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.numbers: Numbers = memoryview(mmap.mmap(file, _BYTES)).cast("d")
        self._names = self.numbers.cast("B").cast("Q")[_NAMES : _NAMES + PLACES]
        self._owner = 0
        self._region = 0

    def place(self, name: str) -> int:
        """The place of this name. A new name gets the next free place."""
        fingerprint = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") | 1
        first: int = fingerprint % PLACES
        place: int
        with self.locked(_NAMES_LOCK):
            for place in (*range(first, PLACES), *range(first)):
                if self._names[place] in (0, fingerprint):
                    self._names[place] = fingerprint
                    return place
        return first

    def buckets(self, place: int) -> Numbers:
        """The numbers of the buckets as a writable view."""
        start = _BUCKETS + 2 * BUCKETS * place
        return self.numbers[start : start + 2 * BUCKETS]

    def fields(self, place: int, region: int) -> Numbers:
        """The fields of a place in this region as a writable view."""
        start = _REGIONS + (region * PLACES + place) * FIELDS
        return self.numbers[start : start + FIELDS]

    def region(self) -> int:
        """The region of this process."""
        if self._owner != os.getpid():
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
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _lock_of(PLACES + 1 + region))
            except OSError:
                continue
            with self.locked(_NAMES_LOCK):
                self.numbers[_REGIONS_IN_USE] = max(self.numbers[_REGIONS_IN_USE], region + 1)
            for place in range(PLACES):
                if self._names[place]:
                    fields = self.fields(place, region)
                    written = fields[WRITTEN_TOKENS], fields[WRITTEN_COST]
                    for field, number in enumerate((*[0.0] * USED_TOKENS, *written, *written)):
                        fields[field] = number
            return region
        self.numbers[_REGIONS_IN_USE] = PROCESSES
        return PROCESSES - 1

    def regions_in_use(self) -> int:
        return int(self.numbers[_REGIONS_IN_USE])

    @contextmanager
    def locked(self, place: int) -> Iterator[None]:
        """Holds the exclusive lock of this place."""
        import fcntl

        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _lock_of(place))
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _lock_of(place))


class _WorkerCounters(Counters):
    """Counters in shared memory. A process writes its own region; totals are over all of them."""

    def __init__(self, memory: _Memory, name: str) -> None:
        super().__init__()
        self._memory = memory
        self._place = memory.place(name)
        self._debts = memory.buckets(self._place)
        self._claimed = False
        self._all: list[Numbers] = []

    def add(self, field: int, amount: float) -> None:
        """A process that only reads needs no region."""
        if not self._claimed:
            self._own, self._claimed = self._memory.fields(self._place, self._memory.region()), True
        self._own[field] += amount

    def total(self, field: int) -> float:
        regions = self._memory.regions_in_use()
        if len(self._all) != regions:
            self._all = [self._memory.fields(self._place, region) for region in range(regions)]
        total: float = sum(numbers[field] for numbers in self._all)
        return total

    def _locked(self) -> AbstractContextManager[None]:
        return self._memory.locked(self._place)


_memory: _Memory | None = None
_files: MetricsFiles | None = None


def share(folder: str) -> None:
    """Shares the numbers, and with files in this folder the metrics, among all processes that fork from this one."""
    global _memory, _files
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(_BYTES)
        _memory = _Memory(os.dup(file.fileno()))
    _files = MetricsFiles(folder)


def unshare() -> None:
    """What is made from now on counts in this process alone again."""
    global _memory, _files
    _memory = _files = None


def join() -> None:
    """Takes a region for this process. Clears what a dead process held in it."""
    if _memory is not None:
        _memory.region()


def counters_of(name: str) -> Counters:
    """The counters of a name: those of the machine if its processes share them."""
    return Counters() if _memory is None else _WorkerCounters(_memory, name)


def metrics_files() -> MetricsFiles | None:
    """The files in which the processes share their metrics; None with one process."""
    return _files


def raise_flag(flag: int) -> None:
    """Raises a flag for all processes that share the numbers, including those that start later. It stays raised."""
    if _memory is not None:
        _memory.numbers[flag] = 1.0


def is_raised(flag: int) -> bool:
    return _memory is not None and bool(_memory.numbers[flag])


def _lock_of(place: int) -> int:
    return _BYTES + 1 + place
