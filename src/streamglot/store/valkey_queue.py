"""What is on its way to Valkey: a bounded queue of commands, and a task that sends them in batches.

As with the writer of the database, ``put`` never waits; what does not fit is counted, what cannot be sent is tried again until
``close`` gives up, and all of it is told.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ..tasks import TaskSupervisor
from .writer import FIRST_PAUSE, LONGEST_PAUSE, SHARES, Report

QUEUE_BYTES: Final = 64 * 2**20
"""What may wait for a server that does not answer; more is dropped, and counted."""
COMMAND_BYTES: Final = 280
"""What a command weighs in the queue, without what it keeps."""
BATCH: Final = 1_000
BATCH_BYTES: Final = 4 * 2**20
"""So much gets through in time on a slow line, too."""
FLUSH_SECONDS: Final = 0.01
"""Chunks that come together go together."""
CLOSE_SECONDS: Final = 3.0
TAKEN: Final = "equal or smaller"
"""What is said of a chunk that came before."""
STATES: Final = ("BUSY", "CLUSTERDOWN", "MASTERDOWN", "MISCONF", "NOREPLICAS", "TRYAGAIN")
"""Why a server refuses for now what it takes later; those that the client has classes for (OOM, READONLY…) are not listed."""


class Command(NamedTuple):
    kind: str
    weight: int
    words: tuple[Any, ...]


class ValkeyQueue:
    """``refusal`` is the class of what the server says against a command. ``back`` is called when it was gone and is there."""

    def __init__(
        self,
        client: Any,
        refusal: type[Exception],
        *,
        bytes: int,
        back: Callable[[], None],
        say: Callable[[Mapping[str, Any]], None] | None,
    ) -> None:
        self._client, self._refusal = client, refusal
        self._bytes = bytes
        self._back = back
        self._say = say or (lambda line: None)
        self._queue: deque[Command] = deque()
        self._weight = 0
        self._oldest = 0.0
        self._wake = asyncio.Event()
        self._closing = False
        self._written: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._dropped_before: Counter[str] | None = None
        self._unfit: Counter[str] = Counter()
        self._batches = self._failures = 0
        self._failing_since = 0.0
        self._last_error = ""
        self._task = TaskSupervisor(say).start("valkey writer", self._run)

    # --- from outside

    @property
    def failing(self) -> bool:
        return bool(self._failing_since)

    def put(self, kind: str, *words: Any, size: int = 0) -> None:
        """Queues a command that keeps ``size`` bytes, or counts it as dropped."""
        weight = COMMAND_BYTES + size
        if self._weight + weight > SHARES.get(kind, 1.0) * self._bytes or self._task.done():
            self._drop(kind)
            return
        if not self._queue:
            self._oldest = time.monotonic()
        self._weight += weight
        self._queue.append(Command(kind, weight, words))
        self._wake.set()

    def _drop(self, kind: str) -> None:
        """The first of a row is told at once, the whole row when there is room again."""
        if self._dropped_before is None:
            self._dropped_before = self._dropped.copy()
            self._tell("store_dropping", kind=kind, queued=len(self._queue), queued_bytes=self._weight)
        self._dropped[kind] += 1

    async def greet(self) -> None:
        """Is it there at all? Where something waits to be sent, that will tell."""
        if not self._queue:
            try:
                await self._client.ping()
            except Exception as error:
                self._failed(error)
            else:
                self._succeeded()

    async def close(self) -> None:
        """Sends everything. A server that does not come back in time costs what is queued, counted as dropped."""
        self._closing = True
        self._wake.set()
        await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
        await ended(self._task)
        self._dropped.update(command.kind for command in self._queue)
        self._queue.clear()
        self._weight = 0

    def report(self) -> Report:
        return Report(
            queued=len(self._queue),
            queued_bytes=self._weight,
            behind=time.monotonic() - self._oldest if self._queue else 0.0,
            written=dict(self._written),
            dropped=dict(self._dropped),
            unfit=dict(self._unfit),
            commits=self._batches,
            failures=self._failures,
            failing=self.failing,
            last_error=self._last_error,
        )

    # --- the task

    async def _run(self) -> None:
        while self._queue or not self._closing:
            await self._wake.wait()
            await asyncio.sleep(0 if self._closing else FLUSH_SECONDS)
            batch = self._batch()
            if batch:
                try:
                    await self._send(batch)
                except Exception as error:  # a fault of our own must not end the sending
                    self._unfit.update(command.kind for command in batch)
                    self.tell_fault(error)
                self._settle(batch)
            if not self._queue and not self._closing:
                self._wake.clear()

    def _batch(self) -> list[Command]:
        """The first that wait. They do so until they are sent: what is in the queue in the end is lost."""
        batch: list[Command] = []
        size = 0
        for command in self._queue:
            batch.append(command)
            size += command.weight
            if len(batch) >= BATCH or size >= BATCH_BYTES:
                break
        return batch

    def _settle(self, batch: list[Command]) -> None:
        for command in batch:
            self._queue.popleft()
            self._weight -= command.weight
        self._oldest = time.monotonic()
        self._succeeded()
        if self._dropped_before is not None and self._weight < self._bytes / 2:
            self._tell("store_dropped", dropped=dict(self._dropped - self._dropped_before))
            self._dropped_before = None

    async def _send(self, batch: list[Command]) -> None:
        """Until it is there. A chunk that was sent twice has a number that is taken, which is well."""
        pause = FIRST_PAUSE
        while True:
            try:
                refused = await self._try(batch)
            except Exception as error:
                self._failures += 1
                self._failed(error)
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, pause * 2)
            else:
                break
        self._batches += 1
        self._written.update(command.kind for command in batch)
        self._written.subtract(refused)
        self._unfit.update(refused)

    async def _try(self, batch: list[Command]) -> Counter[str]:
        """The kinds of what no server would take. Raises where this one does not answer, or takes nothing for now."""
        pipeline = self._client.pipeline(transaction=False)
        for command in batch:
            pipeline.execute_command(*command.words)
        replies = await pipeline.execute(raise_on_error=False)
        refused: Counter[str] = Counter()
        message = ""
        for command, reply in zip(batch, replies, strict=True):
            if isinstance(reply, Exception) and TAKEN not in str(reply):
                if type(reply) is not self._refusal or str(reply).startswith(STATES):
                    raise reply
                refused[command.kind] += 1
                message = message or f"{command.words[0]}: {reply}"
        if refused:
            self._last_error = message[:300]
            self._tell("store_unfit", kind=next(iter(refused)), message=self._last_error)
        return refused

    def _failed(self, error: Exception) -> None:
        self._last_error = str(error)[:300] or type(error).__name__
        if not self._failing_since:
            self._failing_since = time.monotonic()
            self._tell("store_failing", message=self._last_error)

    def _succeeded(self) -> None:
        if self._failing_since:
            seconds, self._failing_since = time.monotonic() - self._failing_since, 0.0
            self._tell("store_back", seconds=round(seconds, 3))
            self._back()

    def tell_fault(self, error: Exception) -> None:
        """A fault of our own, in a task that goes on."""
        self._tell("store_fault", message=f"{type(error).__name__}: {error}"[:300])

    def _tell(self, event: str, **more: Any) -> None:
        self._say({"event": event, "where": "valkey", **more})


async def ended(task: asyncio.Task[None]) -> None:
    """Cancels it until it ends: before Python 3.12 ``wait_for``, which the client uses, may lose a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=FIRST_PAUSE)
