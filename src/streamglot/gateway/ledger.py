"""What was used lately, by name: in this process, or after ``share`` in all that it becomes by forking.

The shared numbers are a file in memory; a lock on the place of a number is given back by the system even where its holder dies.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path
from typing import Any, Final

PLACES: Final = 8192
"""Two for each key; more keys than that share a place, and with it their limit."""
PLACE_BYTES: Final = 16
MINUTE: Final = 60.0

_shared: tuple[int, memoryview[float]] | None = None


def share(folder: str) -> None:
    """From now on the numbers are kept in this folder, for all processes that come of this one."""
    global _shared
    with (Path(folder) / "ledger").open("w+b") as file:
        file.truncate(PLACES * PLACE_BYTES)
        held = os.dup(file.fileno())
    _shared = held, memoryview(mmap.mmap(held, PLACES * PLACE_BYTES)).cast("d")


class Bucket:
    """So many a minute, saved up for a minute at most. 0 is no limit. What is kept is the debt, which time pays off."""

    def __init__(self, name: str) -> None:
        self._most = 0.0
        self._numbers: Any = [0.0, 0.0]
        self._file = -1
        self._start = 0
        if _shared is not None:
            place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % PLACES
            self._file, numbers = _shared
            self._start = place * PLACE_BYTES
            self._numbers = numbers[place * 2 : place * 2 + 2]

    def resize(self, per_minute: int) -> None:
        self._most = float(per_minute)

    def take(self, cost: float, now: float) -> float:
        """Takes it and gives 0, or gives the seconds to wait."""
        if not self._most:
            return 0.0
        with self:
            debt = self._debt(now)
            left = self._most - debt
            if left < max(cost, 1e-9):
                return (max(cost, 1.0) - left) / self._most * MINUTE
            self._numbers[0] = debt + cost
        return 0.0

    def spend(self, amount: float, now: float) -> None:
        if self._most:
            with self:
                self._numbers[0] = self._debt(now) + amount

    def _debt(self, now: float) -> float:
        before, at = self._numbers
        debt: float = max(0.0, before - (now - at) * self._most / MINUTE)
        self._numbers[0], self._numbers[1] = debt, now
        return debt

    def __enter__(self) -> None:
        if self._file >= 0:
            import fcntl

            fcntl.lockf(self._file, fcntl.LOCK_EX, PLACE_BYTES, self._start)

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            import fcntl

            fcntl.lockf(self._file, fcntl.LOCK_UN, PLACE_BYTES, self._start)
