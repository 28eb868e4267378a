"""Background tasks and threads, and waits that end: at a signal, at a deadline.

A periodic task that ends silently is worse than one that fails: no timeout fires any more, no lease is renewed, no key is
refreshed. So ``TaskSupervisor`` starts every background task of the gateway, the store, the upstreams and the client; it logs a
failure, and the task continues.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from types import TracebackType
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from .errors import FOREIGN_ERRORS
from .json_types import JsonValue

T = TypeVar("T")

WriteLine: TypeAlias = Callable[[Mapping[str, JsonValue]], None]
"""Writes one line of the log."""

FIRST_PAUSE: Final = 0.25
"""Seconds before failed work starts again: long enough not to use up a processor, short enough for timeouts of seconds."""
LONGEST_PAUSE: Final = 30.0
"""Seconds. The pause doubles up to this. Work that ran for longer before it failed starts again after the first pause."""
REPEAT_SECONDS: Final = 60.0
"""Seconds within which the same error of the same task is logged once, with a count. A task may fail several times a second."""
GRACE_SECONDS: Final = 0.1
"""Seconds that a timeout lasts longer, so that the event loop handles what arrived before it: a few turns of the loop."""
MESSAGE_CHARS: Final = 300
"""Characters of an error's message on a log line. Some drivers put a whole statement there."""
TRACE_FRAMES: Final = 6
"""Frames of the traceback on a log line: the innermost ones, which show the cause."""


class _Fault(Struct):
    """When an error was last logged, and how often it has happened since."""

    logged: float
    unlogged: int = 0


class TaskSupervisor:
    """Starts the background tasks of one owner (a gateway, a store, a connection pool) and logs their faults.

    Without ``write`` the lines go to the logger ``streamglot`` of the standard library.
    """

    def __init__(
        self,
        write: WriteLine | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._write = write or _to_logging
        self._clock = clock
        self._sleep = sleep
        self._faults: dict[tuple[str, str], _Fault] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, work: Callable[[], Coroutine[object, object, object]]) -> asyncio.Task[None]:
        """Runs ``work()`` until it returns or the task is cancelled. If it raises, logs the error and starts it again."""
        return self._hold(name, self._again(name, work))

    def spawn(self, name: str, work: Coroutine[object, object, object]) -> asyncio.Task[None]:
        """Runs ``work`` once. If it raises, logs the error."""
        task = self._hold(name, self._once(name, work))
        task.add_done_callback(lambda _: work.close())  # a task that is cancelled before its first step has not begun the work
        return task

    def attempt(self, name: str, step: Callable[..., object], *arguments: object) -> None:
        """Calls one step of a periodic task. If it raises, logs the error, so that the following steps still run."""
        try:
            step(*arguments)
        except FOREIGN_ERRORS as error:
            self.report(name, error)

    def report(self, name: str, error: BaseException) -> None:
        """Logs the error of a task. It never raises, because an unwritable log must not end the task."""
        kind = type(error).__name__
        now = self._clock()
        fault = self._faults.get((name, kind))
        if fault is not None and now - fault.logged < REPEAT_SECONDS:
            fault.unlogged += 1
            return
        times = 1 if fault is None else fault.unlogged + 1
        self._faults[name, kind] = _Fault(now)
        with suppress(Exception):
            frames = traceback.extract_tb(error.__traceback__)[-TRACE_FRAMES:]
            self._write(
                {
                    "event": "task_failed",
                    "task": name,
                    "message": f"{kind}: {error}"[:MESSAGE_CHARS],
                    "times": times,
                    "trace": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
                }
            )

    @property
    def running(self) -> list[str]:
        """The names of the running tasks."""
        return sorted(task.get_name() for task in self._tasks)

    async def close(self) -> None:
        """Cancels every task that was started here, and waits until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- internals

    def _hold(self, name: str, run: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Keeps a reference to the task, because the event loop only has weak ones."""
        task = asyncio.get_running_loop().create_task(run, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _once(self, name: str, work: Coroutine[object, object, object]) -> None:
        try:
            await work
        except FOREIGN_ERRORS as error:
            self.report(name, error)

    async def _again(self, name: str, work: Callable[[], Coroutine[object, object, object]]) -> None:
        pause = FIRST_PAUSE
        while True:
            began = self._clock()
            try:
                await work()
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    raise
                self.report(name, error)  # something that the work waited for was cancelled, not the work itself
            except FOREIGN_ERRORS as error:
                self.report(name, error)
            else:
                return
            if self._clock() - began > LONGEST_PAUSE:
                pause = FIRST_PAUSE
            await self._sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)


def _is_cancelled() -> bool:
    """Whether the current task itself was asked to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _to_logging(line: Mapping[str, JsonValue]) -> None:
    logging.getLogger("streamglot").error("%s", msgspec.json.encode(line).decode())


@asynccontextmanager
async def patient_timeout(seconds: float) -> AsyncIterator[None]:
    """``asyncio.timeout`` that first lets the event loop handle what has arrived. If the process stood still, the timer and the
    event that it waits for are due at the same time, and ``asyncio.timeout`` would decide for the timer."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as timeout:
        timer = loop.call_later(seconds, lambda: timeout.reschedule(loop.time() + GRACE_SECONDS))
        try:
            yield
        finally:
            timer.cancel()


async def within(event: asyncio.Event, seconds: float) -> bool:
    """Waits for an event, for exactly this time at the most. Returns False if it did not happen in time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


class LoopThread:
    """A thread with an event loop that runs the steps of a synchronous program."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()  # streams that still run in other threads end with a cancelled event
        if left:
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def begin(self, step: Coroutine[object, object, T]) -> Future[T]:
        """Starts a step without waiting for it."""
        return asyncio.run_coroutine_threadsafe(step, self.loop)

    def run(self, step: Coroutine[object, object, T]) -> T:
        future = self.begin(step)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


@contextmanager
def woken_by_signals() -> Iterator[socket.socket]:
    """A socket that gets a byte from every handled signal, and from every child that ends. A caller checks what it waits for,
    then reads from the socket, then checks again.

    A signal interrupts a system call only if it arrives while the call blocks, in the same thread: one that comes just before it,
    or to another thread, would be handled only when the call returns for another reason.
    """
    woken, wake = socket.socketpair()
    with woken, wake:
        wake.setblocking(False)
        before = signal.signal(signal.SIGCHLD, lambda *_: None)  # a signal without a handler would write nothing
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, before)


class Deadlines:
    """Cheap deadlines: the owner's clock calls ``tick`` a few times a second. A timer of the event loop for each wait would cost
    more than reading the request; here a wait is one entry in a table."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.open: set[Deadline] = set()

    def tick(self, now: float) -> None:
        for deadline in [deadline for deadline in self.open if deadline.due <= now]:
            deadline.expire()


class Deadline:
    """Cancels what its task waits for when the time is over, and turns that cancellation, and no other, into a TimeoutError."""

    __slots__ = ("_before", "_expired", "_owner", "_task", "due", "seconds")

    def __init__(self, owner: Deadlines, seconds: float) -> None:
        self.seconds = seconds
        self.due = 0.0
        self._owner = owner
        self._task: asyncio.Task[object] | None = None
        self._before = 0
        self._expired = False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        if self._task is not None:
            self._before = self._task.cancelling()
        self.due = self._owner.clock() + self.seconds
        self._owner.open.add(self)

    def expire(self) -> None:
        self._owner.open.discard(self)
        self._expired = True
        if self._task is not None:
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._owner.open.discard(self)
        if self._expired and self._task is not None and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error
