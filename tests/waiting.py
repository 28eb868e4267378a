"""Waiting for what must happen, instead of a time in which it mostly has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds after which something will not happen any more, however busy the machine is."""


def until(what: Callable[[], object], otherwise: Callable[[], str] = lambda: "it did not happen") -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.002)


async def soon(what: Callable[[], object], otherwise: Callable[[], str] = lambda: "it did not happen") -> None:
    """The same for who must not stop the loop meanwhile."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, otherwise()
        await asyncio.sleep(0.002)
