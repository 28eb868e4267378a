"""A bounded queue of commands for Valkey, and a task that sends them in batches.

As with the database writer, ``put`` never waits. Commands that do not fit are counted; commands that cannot be sent are retried
until ``close`` gives up; both are reported.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ..tasks import TaskSupervisor, WriteLine
from .writer import FIRST_PAUSE, LONGEST_PAUSE, SHARES, Report

QUEUE_BYTES: Final = 64 * 2**20
"""Bytes that may wait for a server that does not answer; further commands are dropped and counted."""
COMMAND_BYTES: Final = 280
"""Bytes that a command takes in the queue, without its data."""
BATCH: Final = 1_000
BATCH_BYTES: Final = 4 * 2**20
"""Bytes per batch. This gets through in time even on a slow connection."""
FLUSH_SECONDS: Final = 0.01
"""Seconds in which commands are collected before they are sent."""
CLOSE_SECONDS: Final = 3.0
DUPLICATE: Final = "equal or smaller"
"""Part of the server's error for a chunk that it has already."""
TEMPORARY_ERRORS: Final = ("BUSY", "CLUSTERDOWN", "MASTERDOWN", "MISCONF", "NOREPLICAS", "TRYAGAIN")
"""Errors with which a server temporarily refuses commands. Those for which the client has classes (OOM, READONLY…) are not
listed."""


class Command(NamedTuple):
    kind: str
    weight: int
    words: tuple[object, ...]


class ValkeyQueue:
    """``refusal`` is the exception class for a refused command. ``back`` is called when the server is reachable again."""

    def __init__(
        self,
        client: Any,  # Any: the package has no types for asyncio
        refusal: type[Exception],
        *,
        bytes: int,
        back: Callable[[], None],
        log: WriteLine | None,
    ) -> None:
        self._client, self._refusal = client, refusal
        self._bytes = bytes
        self._back = back
        self._write_line = log or (lambda line: None)
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
        self._task = TaskSupervisor(log).start("valkey writer", self._run)

    # --- from outside

    @property
    def failing(self) -> bool:
        return bool(self._failing_since)

    def put(self, kind: str, *words: object, size: int = 0) -> None:
        """Queues a command that carries ``size`` bytes, or counts it as dropped."""
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
        """Counts a dropped command. The first of a series is logged at once, the total when there is room again."""
        if self._dropped_before is None:
            self._dropped_before = self._dropped.copy()
            self._log("store_dropping", kind=kind, queued=len(self._queue), queued_bytes=self._weight)
        self._dropped[kind] += 1

    async def check_connection(self) -> None:
        """Checks whether the server answers. If commands are queued, sending them will show it."""
        if not self._queue:
            try:
                await self._client.ping()
            except Exception as error:
                self._failed(error)
            else:
                self._succeeded()

    async def close(self) -> None:
        """Sends everything. If the server does not come back in time, the rest is counted as dropped."""
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
                    self.log_fault(error)
                self._mark_done(batch)
            if not self._queue and not self._closing:
                self._wake.clear()

    def _batch(self) -> list[Command]:
        """The first commands of the queue. They stay in it until they are sent, so that the rest can be counted at the end."""
        batch: list[Command] = []
        size = 0
        for command in self._queue:
            batch.append(command)
            size += command.weight
            if len(batch) >= BATCH or size >= BATCH_BYTES:
                break
        return batch

    def _mark_done(self, batch: list[Command]) -> None:
        for command in batch:
            self._queue.popleft()
            self._weight -= command.weight
        self._oldest = time.monotonic()
        self._succeeded()
        if self._dropped_before is not None and self._weight < self._bytes / 2:
            self._log("store_dropped", dropped=dict(self._dropped - self._dropped_before))
            self._dropped_before = None

    async def _send(self, batch: list[Command]) -> None:
        """Sends a batch until it succeeds. A chunk that is sent twice is refused as a duplicate, which is harmless."""
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
        """Sends a batch once. Returns the kinds of the commands that no server would accept. Raises if the server does not
        answer or temporarily refuses."""
        pipeline = self._client.pipeline(transaction=False)
        for command in batch:
            pipeline.execute_command(*command.words)
        replies = await pipeline.execute(raise_on_error=False)
        refused: Counter[str] = Counter()
        message = ""
        for command, reply in zip(batch, replies, strict=True):
            if isinstance(reply, Exception) and DUPLICATE not in str(reply):
                if type(reply) is not self._refusal or str(reply).startswith(TEMPORARY_ERRORS):
                    raise reply
                refused[command.kind] += 1
                message = message or f"{command.words[0]}: {reply}"
        if refused:
            self._last_error = message[:300]
            self._log("store_unfit", kind=next(iter(refused)), message=self._last_error)
        return refused

    def _failed(self, error: Exception) -> None:
        self._last_error = str(error)[:300] or type(error).__name__
        if not self._failing_since:
            self._failing_since = time.monotonic()
            self._log("store_failing", message=self._last_error)

    def _succeeded(self) -> None:
        if self._failing_since:
            seconds, self._failing_since = time.monotonic() - self._failing_since, 0.0
            self._log("store_back", seconds=round(seconds, 3))
            self._back()

    def log_fault(self, error: Exception) -> None:
        """Logs a fault of our own in a task that continues."""
        self._log("store_fault", message=f"{type(error).__name__}: {error}"[:300])

    def _log(self, event: str, **more: object) -> None:
        self._write_line({"event": event, "where": "valkey", **more})


async def ended(task: asyncio.Task[None]) -> None:
    """Cancels the task until it ends: before Python 3.12, ``wait_for``, which the client uses, may lose a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=FIRST_PAUSE)
