"""Combines the writes of one event-loop iteration. The pool needs it before it needs a connection, whose parser is in an extra.

A write to a socket wakes the receiving process, which costs more than the write. Ten writes in a row wake it once; ten writes
with other work between them wake it ten times.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Writes:
    """The pending writes of one event loop. ``send`` is called with its bytes at the end of the iteration, or at once unless the
    loop is ``crowded``, because a single request has nothing to wait for."""

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
            if self._waiting:  # one failed: the others are still sent
                self._due = True
                asyncio.get_running_loop().call_soon(self._flush)
