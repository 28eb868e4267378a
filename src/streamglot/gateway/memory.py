"""Memory given back after a crowd: what the allocator keeps for later is returned to the system when the crowd has gone."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any, Final

CROWD: Final = 250
"""So many exchanges at once leave memory behind that is worth the time of giving it back."""
TICKS: Final = 200
"""After so many ticks, which are 50 seconds, once more: then the connections that were kept for the next crowd are gone too."""


class Memory:
    def __init__(self) -> None:
        self._most = 0
        self._ticks = 0
        self._trim = _trim()

    def tick(self, under_way: int) -> None:
        """Called by the gateway's clock. Gives back when fewer than a tenth of a crowd are left."""
        if under_way > self._most:
            self._most = under_way
        elif self._most >= CROWD and under_way * 10 < self._most:
            self._most = under_way
            self._ticks = TICKS
            self._give_back()
        elif self._ticks:
            self._ticks -= 1
            if not self._ticks:
                self._give_back()

    def _give_back(self) -> None:
        gc.collect()
        if self._trim is not None:
            self._trim(0)


def _trim() -> Callable[[int], Any] | None:
    """The C library's own word for it, where it has one."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
