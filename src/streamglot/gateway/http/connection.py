"""What HTTP and WebSocket connections share: the deadline that the server checks, and waiting for a client that reads slowly."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Protocol

Address = tuple[str, int]


class ConnectionServer(Protocol):
    """What connections use of their server."""

    loop: asyncio.AbstractEventLoop
    connections: set[ClientConnection]
    stopping: bool

    @property
    def stall_seconds(self) -> float:
        """Seconds that a client may read nothing of what it is sent."""

    def answered(self, task: asyncio.Task[object], error: BaseException | None) -> None:
        """Called when the task of a call has ended."""


class ClientConnection(asyncio.Protocol):
    """``expire`` must be called at ``deadline``. A ``reusable`` connection waits for its client."""

    __slots__ = ("_draining", "closing", "deadline", "paused", "server")

    def __init__(self, server: ConnectionServer) -> None:
        self.server = server
        self.deadline = inf
        self.paused = False
        """Whether the client reads too slowly, so that writers wait."""
        self.closing = False
        """Whether the connection is closed or closing, so that nothing more is written."""
        self._draining: list[asyncio.Future[None]] = []

    @property
    def reusable(self) -> bool:
        raise NotImplementedError

    def expire(self) -> None:
        raise NotImplementedError

    def shut_down(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def pause_writing(self) -> None:
        self.paused = True
        self.deadline = self.server.loop.time() + self.server.stall_seconds

    async def drained(self) -> None:
        """Waits until the client has read enough for more to be sent, or has disconnected."""
        while self.paused and not self.closing:
            waiter = self.server.loop.create_future()
            self._draining.append(waiter)
            try:
                await waiter
            finally:
                self._draining.remove(waiter)

    def _wake_writers(self) -> None:
        for waiter in self._draining:
            if not waiter.done():
                waiter.set_result(None)
