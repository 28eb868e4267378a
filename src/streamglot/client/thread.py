"""A stream for a loop that must not wait, such as that of a window: it runs on a worker and is drained when convenient."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ..engine.upstream_stream import ENDS
from ..errors import ConfigError, StreamglotError
from ..events import Event, StreamEnd, StreamError, StreamStart
from ..messages import Request
from .client import Client
from .mailbox import Mailbox
from .stream import Stream

QUEUE_EVENTS = 256
"""Events that wait for the loop: a second or two of a quick answer."""


def run_in_thread(
    request: Request | None = None, /, *, client: Client | None = None, size: int = QUEUE_EVENTS, **fields: Any
) -> Running:
    """Runs a stream on a worker. The arguments are those of ``Client.stream``; ``client`` is one that a plain ``with`` has
    opened, and if it is left out the worker opens one of its own. Nothing is raised here that could be told as an event."""
    mailbox, control = Mailbox(size), _Control()
    if client is None:
        work = _with_own_client(control, mailbox, request, fields)
        thread = threading.Thread(target=asyncio.run, args=(work,), name="streamglot stream", daemon=True)
        thread.start()
    else:
        if client.loop is None:
            raise ConfigError("the client of a thread must be open, by a plain `with Client() as client`")
        asyncio.run_coroutine_threadsafe(_work(control, mailbox, client, request, fields), client.loop)
    return Running(mailbox, control)


class Running:
    """A stream that runs elsewhere. All of its methods may be called from any thread. When nobody holds it any more, the
    stream is stopped."""

    def __init__(self, mailbox: Mailbox, control: _Control) -> None:
        self._mailbox = mailbox
        self._control = control
        weakref.finalize(self, control.stop)

    def drain(self) -> Iterator[Event]:
        """The events that are there now. It never waits."""
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
        """Was the last event taken? It is a ``StreamEnd`` or a ``StreamError``, always."""
        return self._mailbox.finished

    def stop(self) -> None:
        """Ends the stream. What came before stays; the last event says ``cancelled``."""
        self._control.stop()

    def join(self, seconds: float | None = None) -> bool:
        """Waits until the worker has let go of the upstream."""
        return self._control.done.wait(seconds)


class _Control:
    """How others reach the worker: by the task that it runs in."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self._lock = threading.Lock()
        self._stopped = False
        self._task: asyncio.Task[Any] | None = None
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


async def _with_own_client(control: _Control, mailbox: Mailbox, request: Request | None, fields: dict[str, Any]) -> None:
    try:
        async with Client() as client:
            await _work(control, mailbox, client, request, fields)
    except Exception as error:  # opening or closing the client: the stream itself tells its own
        mailbox.finish([StreamStart(), _told(error)])
    finally:
        control.end()


async def _work(control: _Control, mailbox: Mailbox, client: Client, request: Request | None, fields: dict[str, Any]) -> None:
    """Whatever happens, the last thing in the mailbox says how it ended."""
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
        last = StreamError("upstream_truncated", "the stream ended without a word")
    except asyncio.CancelledError:
        pass
    except Exception as error:
        last = _told(error)
    finally:
        if stream is not None:
            mailbox.finish(stream.ending(last))
            stream.hang_up()
        else:
            mailbox.finish([StreamStart(created=int(time.time())), last])
        control.end()


def _told(error: Exception) -> StreamError:
    if isinstance(error, StreamglotError):
        return error.as_event()
    return StreamError("internal_error", f"{type(error).__name__}: {error}", "gateway", status=500)
