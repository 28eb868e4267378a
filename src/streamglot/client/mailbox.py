"""A bounded, thread-safe queue of events from a worker to an event loop that must not block."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress

from ..events import Event


class Mailbox:
    """``put`` waits for room on the worker's side, which slows the upstream down. The final events always fit."""

    def __init__(self, size: int) -> None:
        self._size = max(1, size)
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()
        self._over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room: asyncio.Event | None = None

    # --- the worker's side

    def belongs_to(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._changed:
            self._loop, self._room = loop, asyncio.Event()

    async def put(self, event: Event) -> None:
        assert self._room is not None
        while True:
            with self._changed:
                if len(self._events) < self._size:
                    self._events.append(event)
                    self._changed.notify_all()
                    return
                self._room.clear()
            await self._room.wait()

    def finish(self, events: list[Event]) -> None:
        """Adds the final events. Later events are ignored."""
        with self._changed:
            if not self._over:
                self._over = True
                self._events.extend(events)
                self._changed.notify_all()

    # --- the reader's side

    def take(self, seconds: float | None = 0.0) -> Event | None:
        """The next event; None if none came within this many seconds, or if all have been taken."""
        with self._changed:
            if not self._events and not self._over and seconds != 0.0:
                self._changed.wait_for(lambda: bool(self._events) or self._over, seconds)
            if not self._events:
                return None
            event = self._events.popleft()
            room, loop = self._room, self._loop
        if room is not None and loop is not None:
            with suppress(RuntimeError):  # the worker's loop is closed
                loop.call_soon_threadsafe(room.set)
        return event

    @property
    def finished(self) -> bool:
        """Whether the last event was taken."""
        with self._changed:
            return self._over and not self._events

    def __len__(self) -> int:
        with self._changed:
            return len(self._events)
