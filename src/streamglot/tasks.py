"""Background tasks that survive their own errors: a failure is logged, and the task continues.

A periodic task that ends silently is worse than one that fails: no timeout fires any more, no lease is renewed, no key is
refreshed. Every background task of the gateway, the store, the upstreams and the client is started here.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from .errors import FOREIGN_ERRORS
from .json_types import JsonValue

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
