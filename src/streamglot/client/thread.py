"""Runs a stream on a worker thread, for an event loop that must not block, such as that of a window.

Its events pass through a bounded, thread-safe mailbox.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TypeAlias

from ..engine.answer import ENDS
from ..errors import ConfigError, StreamglotError
from ..events import Event, StreamEnd, StreamError, StreamStart
from ..messages import Request
from .client import Client
from .stream import Stream

_Fields: TypeAlias = dict[str, Any]  # Any: the arguments of ``Client.stream``
QUEUE_EVENTS = 256
"""Events that wait for the reader: one or two seconds of a fast answer."""


def run_in_thread(
    request: Request | str | None = None, /, *, client: Client | None = None, size: int = QUEUE_EVENTS, **fields: object
) -> Running:
    """Runs a stream on a worker thread, for a program whose event loop must not wait.

        running = streamglot.run_in_thread("Hello", model="gpt-5.5")
        for event in running.drain():  # in a timer of the window
            show(event)

    Takes ``request`` and ``fields``, the arguments of ``Client.stream``. ``client`` must be open by a plain ``with``; without it, the worker opens a
    new one. ``size`` is the number of events that may wait.

    Gives a ``Running``. Raises ``ConfigError`` for a client that is not open; errors of the stream are events."""
    mailbox, control = Mailbox(size), _Control()
    if client is None:
        work = _with_own_client(control, mailbox, request, fields)
        thread = threading.Thread(target=asyncio.run, args=(work,), name="streamglot stream", daemon=True)
        thread.start()
    else:
        if client.loop is None:
            raise ConfigError("the client of a thread must be open: use it inside a plain `with Client() as client`")
        asyncio.run_coroutine_threadsafe(_work(control, mailbox, client, request, fields), client.loop)
    return Running(mailbox, control)


class Running:
    """A stream that runs on another thread: what ``run_in_thread`` gives. Its events wait in ``mailbox``; ``control`` stops the worker.

    All methods may be called from any thread. The stream stops when the last reference to this object is gone."""

    def __init__(self, mailbox: Mailbox, control: _Control) -> None:
        self._mailbox = mailbox
        self._control = control
        weakref.finalize(self, control.stop)

    def drain(self) -> Iterator[Event]:
        """The events that are there now, without waiting."""
        for _ in range(len(self._mailbox)):
            event = self._mailbox.take()
            if event is None:
                return
            yield event

    def get(self, seconds: float | None = None) -> Event | None:
        """The next event; None if none came in time, or if all have been taken."""
        return self._mailbox.take(seconds)

    def __iter__(self) -> Iterator[Event]:
        while (event := self._mailbox.take(None)) is not None:
            yield event

    @property
    def finished(self) -> bool:
        """Whether the last event was taken. It is always a ``StreamEnd`` or a ``StreamError``."""
        return self._mailbox.finished

    def stop(self) -> None:
        """Ends the stream. Earlier events stay; the last event has the reason ``cancelled``."""
        self._control.stop()

    def join(self, seconds: float | None = None) -> bool:
        """Waits until the worker has released the upstream."""
        return self._control.done.wait(seconds)


class _Control:
    """Lets other threads stop the worker through the task that it runs in."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self._lock = threading.Lock()
        self._stopped = False
        self._task: asyncio.Task[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        with self._lock:
            self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
            if self._stopped:
                self._cancel()

    def stop(self) -> None:
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._cancel()

    def end(self) -> None:
        with self._lock:
            self._task = None
        self.done.set()

    def _cancel(self) -> None:
        if self._task is not None and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: there is nothing left to stop
                self._loop.call_soon_threadsafe(self._task.cancel)


async def _with_own_client(control: _Control, mailbox: Mailbox, request: Request | str | None, fields: _Fields) -> None:
    try:
        async with Client() as client:
            await _work(control, mailbox, client, request, fields)
    except Exception as error:  # only errors in opening or closing the client: the stream reports its own
        mailbox.finish([StreamStart(), _error_event(error)])
    finally:
        control.end()


async def _work(control: _Control, mailbox: Mailbox, client: Client, request: Request | str | None, fields: _Fields) -> None:
    """Runs the stream. In every case the last event in the mailbox says how it ended."""
    mailbox.belongs_to(asyncio.get_running_loop())
    stream: Stream | None = None
    last: StreamEnd | StreamError = StreamEnd("cancelled")
    try:
        control.begin()
        stream = client.stream(request, **fields)
        async for event in stream:
            if type(event) in ENDS:
                mailbox.finish([event])
                return
            await mailbox.put(event)
        last = StreamError("upstream_truncated", "the stream ended without an end event; send the request again")
    except asyncio.CancelledError:
        pass
    except Exception as error:
        last = _error_event(error)
    finally:
        if stream is not None:
            mailbox.finish(stream.ending(last))
            stream.hang_up()
        else:
            mailbox.finish([StreamStart(created=int(time.time())), last])
        control.end()


def _error_event(error: Exception) -> StreamError:
    if isinstance(error, StreamglotError):
        return error.as_event()
    return StreamError("internal_error", f"{type(error).__name__}: {error}", "gateway", status=500)


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
