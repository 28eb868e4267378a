"""Returns unused memory of the allocator to the system.

The allocator keeps the memory of large strings and of many small objects for reuse. After many concurrent streams, or a few very
large answers, that can be gigabytes in a process that needs a hundred megabytes. Returning memory takes milliseconds, so it is
done when it is likely to help: the process has grown, and the work that made it grow has ended.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from typing import Final

GROWTH_BYTES: Final = 48 * 2**20
"""Bytes. Smaller growth is ignored, because it comes and goes with the load."""
MAX_RUNNING: Final = 250
"""Running exchanges. With more, a garbage collection takes too long, so most of them must end first."""
FIRST_TICKS: Final = 8
"""Ticks between two attempts (two seconds): the store is still writing what has just ended."""
LONGEST_TICKS: Final = 240
"""Ticks (a minute). The pause doubles after each attempt that did not help, up to this."""
HELPED_SHARE: Final = 0.9
"""An attempt helped if at most this share of the memory is left."""
ATTEMPTS: Final = 12
"""Attempts in a row that did not help, over about six minutes. After these the memory is considered to be in use."""
LARGE_BYTES: Final = 2**20
"""Bytes. Blocks of this size are allocated directly from the system. It is larger than anything allocated per chunk of a
stream."""
HEAPS: Final = 2
"""Heaps that all threads share. By default each thread gets one of its own, which keeps one to two megabytes, so that memory grows
with the threads that happen to be used. Threads of Python seldom allocate at the same time."""
SPARE_BYTES: Final = 8 * 2**20
"""Bytes that each heap may keep at its end for reuse."""
GC_OBJECTS: Final = 20_000
"""New objects between two garbage collections: 2 to 4 MB. An exchange leaves no cycles, and some hundred exchanges that run at once
must not cause a collection with each of their reads."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
"""The numbers of these options in glibc's malloc.h."""
_PAGE: Final = resource.getpagesize()


class Memory:
    """``resident`` returns the process's memory in bytes, or 0 if it is unknown."""

    def __init__(self, resident: Callable[[], int] | None = None, give_back: Callable[[], object] | None = None) -> None:
        self._resident = resident or _resident()
        self._give_back = give_back or _memory_trimmer()
        self._base = 0
        self._peak = 0
        self._ticks = 0
        self._pause = FIRST_TICKS
        self._useless = 0
        self._under_way = 0

    def tick(self, under_way: int) -> None:
        """Called by the gateway's clock with the number of running exchanges."""
        if not self._base:
            self._base = self._resident()  # measured at once, because later it may include large answers
        self._peak = max(self._peak, under_way)
        self._ticks += 1
        if 0 < self._under_way >= 2 * under_way:  # the work that used the memory at the last attempt has ended
            self._pause, self._under_way = FIRST_TICKS, 0
        if self._ticks < self._pause:
            return
        size = self._resident()
        self._base = min(self._base, size)
        if size < self._base + GROWTH_BYTES:
            self._peak = under_way
            return
        if under_way >= MAX_RUNNING and under_way * 10 >= self._peak:
            return
        self._try(size, under_way)

    def _try(self, size: int, under_way: int) -> None:
        self._give_back()
        left = self._resident()
        self._ticks, self._peak = 0, under_way
        if left < size * HELPED_SHARE:
            self._pause, self._useless, self._under_way = FIRST_TICKS, 0, 0
            return
        self._pause = min(LONGEST_TICKS, self._pause * 2)
        self._under_way = under_way
        self._useless += 1
        if self._useless >= ATTEMPTS:
            self._base, self._pause, self._useless = left, FIRST_TICKS, 0


def set_allocator() -> None:
    """Tells the C library to allocate every large block directly from the system, which gets it back when the block is freed.

    By default the C library takes large blocks from its heaps once some were freed, and the heaps of threads do not shrink below
    that. This is set once per process, unless the environment sets it.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    with suppress(AttributeError, OSError, TypeError):  # another C library
        option = ctypes.CDLL(None).mallopt
        option(_M_MMAP_THRESHOLD, LARGE_BYTES)
        option(_M_TRIM_THRESHOLD, SPARE_BYTES)
        option(_M_ARENA_MAX, HEAPS)


def set_collector() -> None:
    """Makes garbage collections rare and short: they skip the objects that exist now, because they stay. Called once, when a server
    or a worker has started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_OBJECTS, 10, 10)


def _resident() -> Callable[[], int]:
    """A function that reads the size from an open file in /proc.

    Opening the file each time would cost ten times as much.
    """
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return lambda: 0
    owner = os.getpid()

    def read() -> int:
        nonlocal file, owner
        if owner != os.getpid():  # after a fork the open file still describes the parent
            os.close(file)
            file, owner = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC), os.getpid()
        return int(os.pread(file, 100, 0).split()[1]) * _PAGE

    return read


def _memory_trimmer() -> Callable[[], object]:
    """A function that collects garbage and, if the C library supports it, returns its free memory to the system."""
    trim: Callable[[int], object] | None
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        trim = None

    def give_back() -> None:
        gc.collect()
        if trim is not None:
            trim(0)

    return give_back
