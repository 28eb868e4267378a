"""Writes of one turn of the event loop, made together at its end.

A write to a socket wakes the process behind it, which costs more than the write. Ten in a row wake it once, ten with the
work on a request between them wake it ten times.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Writes:
    """Of one event loop. ``send`` is called with its bytes when the turn is over; at once unless it is ``crowded``, as who is
    alone has nobody to wait for."""

    def __init__(self) -> None:
        self.crowded = False
        self._waiting: deque[tuple[Callable[[bytes], None], bytes]] = deque()
        self._due = False

    def add(self, send: Callable[[bytes], None], data: bytes) -> None:
        if not self.crowded:
            send(data)
            return
        self._waiting.append((send, data))
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._due = False
        try:
            while self._waiting:
                send, data = self._waiting.popleft()
                send(data)
        finally:
            if self._waiting:  # one of them failed: the others are no part of that
                self._due = True
                asyncio.get_running_loop().call_soon(self._flush)
