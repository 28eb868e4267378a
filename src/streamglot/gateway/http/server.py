"""The HTTP server of one process: accepts connections, checks their deadlines, stops gracefully."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, Protocol

from ..observe.memory import set_collector
from .call import error_reply
from .http_call import ClientConnection, HTTPCall
from .protocol import HTTPProtocol

BACKLOG: Final = 4096
"""Connections that wait to be accepted: the default limit of Linux. Further clients retry after a second."""
SWEEP_SECONDS: Final = 0.25
"""Seconds between two checks of all connections' deadlines: fine enough for limits of a few seconds."""
GRACE_SECONDS: Final = 5.0
"""Seconds for the last bytes after the last stream was stopped."""
SPARE_FILES: Final = 64
"""Open files that are not connections: the listener, the store, the log, libraries."""
REFUSED_CONNECTIONS: Final = 32
"""Connections above the limit that are open until they have been refused. The next ones wait in the listener's queue."""
_STOP: Final = (signal.SIGTERM, signal.SIGINT)


class Application(Protocol):
    """The application that a server runs."""

    @property
    def stall_seconds(self) -> float:
        """Seconds that a client may read nothing of what it is sent."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """A context manager around the time in which calls are answered."""

    def respond(self, call: HTTPCall) -> Coroutine[object, object, None]:
        """Answers a call. If it raises, the server sends an error."""

    def converse(self, call: HTTPCall) -> Coroutine[object, object, None] | None:
        """Answers a WebSocket request. Returns None if this path has no WebSocket."""

    def stop(self, seconds: float) -> None:
        """Accepts no new work. Ends what still runs after this time."""

    def reload(self) -> None:
        """Reads the configuration again."""

    def log_fault(self, request_id: str, error: BaseException) -> None:
        """Logs an internal error."""


class Server:
    """``parent`` is a process with whose end this server stops.

    ``max_connections`` is the number of connections; 0 means the system's limit.
    """

    def __init__(self, application: Application, shutdown_seconds: float, max_connections: int = 0, parent: int = 0) -> None:
        self.application = application
        self.connections: set[ClientConnection] = set()
        self.tasks: set[asyncio.Task[object]] = set()
        self.started = False
        self.stopping = False
        self.crowded = False
        """Whether several calls are answered at the same time, so that their writes are sent together."""
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # set before a connection is accepted
        possible = connection_limit()
        self._max_connections = max_connections or possible
        self._pause_at = min(self._max_connections, possible) + REFUSED_CONNECTIONS
        self._listener: socket.socket | None = None
        self._acceptor: asyncio.Server | None = None
        self._shutdown_seconds = shutdown_seconds
        self._parent = parent
        self._stop = asyncio.Event()
        self._forced = False
        self._last_sweep = 0.0
        self._unsent: list[HTTPProtocol] = []

    # --- life cycle

    def run(self, listener: socket.socket) -> None:
        """Serves until it is stopped."""
        if sys.platform == "win32":
            asyncio.run(self.serve(listener))
        else:
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self.serve(listener))

    def stop(self) -> None:
        """Stops gracefully. May be called from any thread."""
        if self.loop is None:
            self._stop.set()
        else:
            with suppress(RuntimeError):  # the loop is closed, so the server has stopped
                self.loop.call_soon_threadsafe(self._stop.set)

    async def serve(self, listener: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        with _Signals(self._stop_signal, self._reload):
            async with self.application.running():
                set_collector()
                self._listener = listener
                await self._accept(listener)
                sweep = self.loop.create_task(self._sweep())
                self.started = True
                try:
                    await self._stop.wait()
                finally:
                    await self._shut_down()
                    sweep.cancel()

    def _stop_signal(self) -> None:
        """Stops gracefully at the first signal, and at once at the second."""
        self._forced = self._stop.is_set()
        self._stop.set()

    async def _shut_down(self) -> None:
        """Waits ``shutdown_seconds`` for running calls, then lets the application end them, and finally cancels the rest."""
        assert self._listener is not None
        waiting = accept_waiting(self._listener)
        self._close_listener()
        connects = [self.loop.connect_accepted_socket(lambda: HTTPProtocol(self), sock=client) for client in waiting]
        await asyncio.gather(*connects, return_exceptions=True)  # fails for clients that are gone
        await asyncio.sleep(0)  # reads the requests that have come already, so that they are answered
        self.stopping = True
        self.application.stop(self._shutdown_seconds)
        for connection in list(self.connections):
            connection.shut_down()
        end = self.loop.time() + self._shutdown_seconds + GRACE_SECONDS
        while (self.connections or self.tasks) and self.loop.time() < end and not self._forced:
            await asyncio.sleep(0.02)
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.sleep(0)  # lets cancelled calls send their last bytes
        for connection in list(self.connections):
            connection.abort()
        while self.connections:
            await asyncio.sleep(0)

    def _reload(self) -> None:
        try:
            self.application.reload()
        except Exception as error:
            self.application.log_fault("", error)

    # --- connections

    async def _accept(self, listener: socket.socket) -> None:
        """Accepts connections until ``_pause`` or ``_close_listener`` is called."""
        acceptor = await self.loop.create_server(lambda: HTTPProtocol(self), sock=listener, backlog=BACKLOG)
        if self._listener is None:  # closed meanwhile
            acceptor.close()
        else:
            self._acceptor = acceptor

    def _pause(self) -> None:
        """Accepts no connections for a while, so that they wait in the listener's queue.

        Without a free file the event loop would accept and close them without an answer.
        """
        assert self._listener is not None
        with suppress(OSError):
            kept = self._listener.dup()
            self._close_listener()
            self._listener = kept

    async def _resume(self) -> None:
        """Accepts connections again, if that was paused and there is room."""
        if self._acceptor is None and self._listener is not None and len(self.connections) < self._pause_at:
            try:
                await self._accept(self._listener)
            except OSError as error:  # the next sweep tries again
                self.application.log_fault("", error)

    def _close_listener(self) -> None:
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def opened(self, connection: HTTPProtocol) -> bool:
        """Counts a new connection. If there are too many, closes one that waits for a request; returns False if there is none."""
        self.connections.add(connection)
        if len(self.connections) <= self._max_connections:
            return True
        if len(self.connections) >= self._pause_at and self._acceptor is not None:
            self._pause()
        waiting = min((other for other in self.connections if other.reusable), key=lambda other: other.deadline, default=None)
        if waiting is None:
            return False
        waiting.abort()
        return True

    @property
    def stall_seconds(self) -> float:
        return self.application.stall_seconds

    async def _sweep(self) -> None:
        """Ends connections whose deadline has passed.

        A deadline must have passed by the previous sweep: since then the event loop has read what waited in the sockets.
        Without that, a request that came during a busy moment would be closed without an answer.
        """
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = self.loop.time()
            for connection in [each for each in self.connections if each.deadline < self._last_sweep]:
                try:
                    connection.expire()
                except Exception as error:
                    self.application.log_fault("", error)
            self._last_sweep = now
            await self._resume()
            if self._parent and os.getppid() != self._parent:
                self._stop.set()

    # --- calls

    def answer(self, call: HTTPCall) -> None:
        """Starts the task in which a call is answered."""
        try:
            work = self._respond_to_upgrade(call) if call.head.upgrade else self.application.respond(call)
        except Exception as error:
            work = _raised(error)
        task = self.loop.create_task(work)
        call.runs_in(task)
        self.tasks.add(task)
        self.crowded = len(self.tasks) > 1
        task.add_done_callback(call.task_ended)

    def answered(self, task: asyncio.Task[object], error: BaseException | None) -> None:
        self.tasks.discard(task)
        self.crowded = len(self.tasks) > 1
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self.application.log_fault("", error)

    def _respond_to_upgrade(self, call: HTTPCall) -> Coroutine[object, object, None]:
        """Answers a request with an Upgrade.

        Ignores the offer, except for a WebSocket, because its client can do nothing else.
        """
        if call.head.upgrade != b"websocket" or call.method != "GET":
            return self.application.respond(call)
        message = f"there is no WebSocket at {call.path}; send a POST request, with stream: true for a stream"
        return self.application.converse(call) or refuse_upgrade(call, message)

    # --- writes

    def flush_soon(self, connection: HTTPProtocol) -> None:
        """Sends this connection's data at the end of this turn of the event loop, together with that of other connections."""
        if not self._unsent:
            self.loop.call_soon(self._flush)
        self._unsent.append(connection)

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for connection in unsent:
            try:
                connection.flush()
            except Exception as error:  # an error must not affect the other connections
                self.application.log_fault("", error)
                connection.abort()


async def refuse_upgrade(call: HTTPCall, message: str) -> None:
    """Answers 426, so that the client continues with HTTP."""
    await call.send(error_reply(426, "upgrade_not_supported", message, upgrade="HTTP/1.1", connection="upgrade"))


async def _raised(error: Exception) -> None:
    raise error


def accept_waiting(listener: socket.socket) -> list[socket.socket]:
    """Accepts the connections that wait in the listener's queue, because the system resets them when the listener is closed.

    The event loop accepts only one connection per turn.
    """
    accepted = []
    while True:
        try:
            accepted.append(listener.accept()[0])
        except ConnectionAbortedError:  # this client is gone, and others may wait behind it
            continue
        except OSError:  # usually BlockingIOError: nobody waits
            return accepted


def connection_limit() -> int:
    """The number of connections that the limit of open files allows. Each may need a second file for its upstream."""
    try:
        import resource
    except ImportError:  # Windows
        return 4096
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = SPARE_FILES + REFUSED_CONNECTIONS
    return 2**31 if soft == resource.RLIM_INFINITY else max(16, (soft - spare) // 2)


class _Signals:
    """SIGTERM and SIGINT stop the server, SIGHUP reloads it; in the main thread only, where signals arrive.

    Until the handlers are set, ``block_signals`` defers signals, because an earlier one would end the process.
    """

    def __init__(self, stop: Callable[[], object], reload: Callable[[], None]) -> None:
        self._stop = stop
        self._reload = reload
        self._reloading = False

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
            return
        loop = asyncio.get_running_loop()
        for number in _STOP:
            loop.add_signal_handler(number, self._stop)
        # Removing a handler of the loop would restore the default action for an instant, which ends the process.
        signal.signal(signal.SIGHUP, lambda *_: self._reload_soon(loop))
        unblock_signals()

    def _reload_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reloads in the next turn of the event loop. Signals that come before it count once."""
        if not self._reloading:
            self._reloading = True
            loop.call_soon_threadsafe(self._reload_now)

    def _reload_now(self) -> None:
        self._reloading = False
        self._reload()

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
            return
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the process is about to end; blocking would hold for this thread only
        loop = asyncio.get_running_loop()
        for number in _STOP:
            loop.remove_signal_handler(number)


def block_signals() -> None:
    """Defers the signals that a server handles until it has set its handlers."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP, signal.SIGHUP))


def block_reload() -> None:
    """Defers SIGHUP for a process that is about to end: without a handler the signal would end it with another status."""
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGHUP,))


def unblock_signals() -> None:
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_STOP, signal.SIGHUP))
