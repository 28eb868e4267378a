"""Memory given back to the system: what the allocator keeps for later is returned once it is no longer in use.

The allocator keeps the memory of large strings and of many small objects, in the hope that they come again. After a crowd, or after
a few very large answers, that is gigabytes for a process that needs a hundred megabytes. Giving back costs milliseconds, so it is
done when it is likely to help: the process has grown, and what made it grow has ended.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

GROWTH_BYTES: Final = 48 * 2**20
"""A process that has grown by less is left alone: so much comes and goes with the load."""
CROWD: Final = 250
"""With so many exchanges under way looking for garbage takes too long: first most of them have to end."""
FIRST_TICKS: Final = 8
"""Ticks between two attempts, which are two seconds: what has just ended is still on its way to the store."""
LONGEST_TICKS: Final = 240
"""A minute. After each attempt that did not help, the next one comes after twice as many ticks, up to these."""
USEFUL: Final = 0.9
"""An attempt helped if no more than this share of the memory is left."""
ATTEMPTS: Final = 12
"""After so many attempts in a row that did not help, which take about six minutes, the memory is really in use."""
LARGE_BYTES: Final = 2**20
"""A block of this size is asked of the system by itself: larger than anything that is made for each chunk of a stream."""
SPARE_BYTES: Final = 8 * 2**20
"""What each heap may keep at its end for later."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""The numbers of these options in the C library's own malloc.h."""
_PAGE: Final = resource.getpagesize()


class Memory:
    """``resident`` tells the bytes of memory that the process has, 0 where that cannot be told."""

    def __init__(self, resident: Callable[[], int] | None = None, give_back: Callable[[], object] | None = None) -> None:
        self._resident = resident or _resident()
        self._give_back = give_back or _giver()
        self._base = 0
        self._most = 0
        self._ticks = 0
        self._pause = FIRST_TICKS
        self._useless = 0
        self._under_way = 0

    def tick(self, under_way: int) -> None:
        """Called by the gateway's clock with the number of exchanges."""
        if not self._base:
            self._base = self._resident()  # at once: later it may have large answers in it
        self._most = max(self._most, under_way)
        self._ticks += 1
        if 0 < self._under_way >= 2 * under_way:  # what used the memory at the last attempt has ended since
            self._pause, self._under_way = FIRST_TICKS, 0
        if self._ticks < self._pause:
            return
        size = self._resident()
        self._base = min(self._base, size)
        if size < self._base + GROWTH_BYTES:
            self._most = under_way
            return
        if under_way >= CROWD and under_way * 10 >= self._most:
            return
        self._try(size, under_way)

    def _try(self, size: int, under_way: int) -> None:
        self._give_back()
        left = self._resident()
        self._ticks, self._most = 0, under_way
        if left < size * USEFUL:
            self._pause, self._useless, self._under_way = FIRST_TICKS, 0, 0
            return
        self._pause = min(LONGEST_TICKS, self._pause * 2)
        self._under_way = under_way
        self._useless += 1
        if self._useless >= ATTEMPTS:
            self._base, self._pause, self._useless = left, FIRST_TICKS, 0


def set_allocator() -> None:
    """Tells the C library to ask the system for every large block by itself, which goes back as soon as it is free.

    By default it takes large blocks from its own heaps once some were freed, and the heaps of threads never shrink below that. It is
    told once for each process, unless the environment says how it is to be.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    with suppress(AttributeError, OSError, TypeError):  # another C library
        option = ctypes.CDLL(None).mallopt
        option(_M_MMAP_THRESHOLD, LARGE_BYTES)
        option(_M_TRIM_THRESHOLD, SPARE_BYTES)


def _resident() -> Callable[[], int]:
    """Reads the size from an open file of the system: opening it costs ten times as much."""
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return lambda: 0
    owner = os.getpid()

    def read() -> int:
        nonlocal file, owner
        if owner != os.getpid():  # behind a fork the file still tells of the parent
            os.close(file)
            file, owner = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC), os.getpid()
        return int(os.pread(file, 100, 0).split()[1]) * _PAGE

    return read


def _giver() -> Callable[[], object]:
    """Collects garbage, and tells the C library to give back what it holds, where it has a word for that."""
    trim: Callable[[int], Any] | None
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        trim = None

    def give_back() -> None:
        gc.collect()
        if trim is not None:
            trim(0)

    return give_back
