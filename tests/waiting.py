"""Waits for conditions instead of times."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable

WAIT_SECONDS = 60.0
"""Seconds after which a condition counts as failed, even on a busy machine."""


def until(what: Callable[[], object], otherwise: Callable[[], str] = lambda: "it did not happen") -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not what():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.002)


async def soon(what: Callable[[], object], otherwise: Callable[[], str] = lambda: "it did not happen") -> None:
    """The same for asynchronous tests, without blocking the event loop."""
    end = time.monotonic() + WAIT_SECONDS
    while not what():
        assert time.monotonic() < end, otherwise()
        await asyncio.sleep(0.002)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that still runs; one that does not end is killed, and is a failure."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(WAIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
