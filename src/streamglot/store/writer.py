"""The one writer of a process: a bounded queue, and a task that commits it in batches.

``put`` never waits: an entry that does not fit is dropped and counted by its kind. What is queued is tried again, with pauses,
for as long as the database is locked, full or gone; only ``close`` gives up, after a time, and counts what it gives up.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from ..tasks import TaskSupervisor
from .commit import Commit
from .database import passing, within
from .rows import Entry, Rows, TurnEntry, rows_of

COMMIT_SECONDS: Final = 0.2
"""A turn that ended longer ago than this is in the database. One that ends while nothing else does is there sooner."""
CHUNK_SECONDS: Final = 0.1
"""Chunks of a stream are waited for by its readers in other processes."""
QUEUE_ENTRIES: Final = 50_000
QUEUE_BYTES: Final = 128 * 2**20
"""Ten seconds of a busy gateway without a database; more is a loss rather than a process without memory."""
SHARES: Final[Mapping[str, float]] = {"frames": 0.5, "chunks": 0.6, "starts": 0.8}
"""How much of the queue each kind may fill; the others may fill all of it. An ending is worth more than a start, which
it holds too, and both are worth more than raw bytes."""
BATCH_ENTRIES: Final = 2_000
BATCH_BYTES: Final = 16 * 2**20
"""One commit: large enough to be cheap, small enough not to hold the lock for long."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
CLOSE_SECONDS: Final = 10.0
SILENT_SECONDS: Final = 5.0
"""A commit that has no answer for so long is as bad as one that failed."""


class Report(Struct, kw_only=True):
    """How the writer is doing. ``dropped`` did not fit, ``unfit`` no database would take; ``behind`` is the age in seconds of
    what waits longest. ``missed`` are looks into the past that had no answer: the request went on without."""

    queued: int
    queued_bytes: int
    behind: float
    written: dict[str, int]
    dropped: dict[str, int]
    unfit: dict[str, int]
    commits: int
    failures: int
    failing: bool
    last_error: str
    missed: int = 0


class Writer:
    def __init__(
        self,
        commit: Commit,
        *,
        entries: int = QUEUE_ENTRIES,
        bytes: int = QUEUE_BYTES,
        interval: float = COMMIT_SECONDS,
        say: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self._commit = commit
        self._entries, self._bytes, self._interval = entries, bytes, interval
        self._say = say or (lambda line: None)
        self._queue: deque[Entry] = deque()
        self._weight = 0
        self._oldest = 0.0
        self._due = self._committed = 0.0
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._settled = asyncio.Condition()
        self._put = self._done = 0
        self._written: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._unfit: Counter[str] = Counter()
        self._commits = self._failures = 0
        self._failing_since = 0.0
        self._dropping = False
        self._dropped_before: Counter[str] = Counter()
        self._last_error = ""
        self._closing = False
        self._deadline = 0.0
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._attempting: asyncio.Task[None] | None = None
        self._task = TaskSupervisor(say).start("store writer", self._run)

    # --- from outside

    def put(self, entry: Entry) -> bool:
        """Queues it, or counts it as dropped."""
        queue, kind, share = self._queue, entry.kind, SHARES.get(entry.kind, 1.0)
        full = self._weight + entry.weight > share * self._bytes or len(queue) >= share * self._entries
        if full or self._task.done():
            self._drop(kind)
            return False
        if not queue:
            self._oldest = time.monotonic()
            self._due = self._oldest + self._interval / 2  # the other half is for the commit itself
            self._wake.set()
        if kind == "chunks":
            self._due = min(self._due, time.monotonic() + CHUNK_SECONDS)
        elif kind == "endings" and self._due > self._committed + self._interval / 2:  # the next request may look for it elsewhere
            self._due = self._committed + self._interval / 2
            self._hurry.set()
        queue.append(entry)
        self._put += 1
        self._weight += entry.weight
        if len(queue) >= BATCH_ENTRIES:
            self._hurry.set()
        return True

    def _drop(self, kind: str) -> None:
        """The first of a row is told at once, the whole row when there is room again."""
        if not self._dropping:
            self._dropping = True
            self._dropped_before = self._dropped.copy()
            self._say({"event": "store_dropping", "kind": kind, "queued": len(self._queue), "queued_bytes": self._weight})
        self._dropped[kind] += 1

    async def flush(self) -> None:
        """Waits until what was put before is in the database (or was unfit for it)."""
        until = self._put
        self._due = 0.0
        self._hurry.set()
        async with self._settled:
            await self._settled.wait_for(lambda: self._done >= until or self._task.done())

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Writes everything. A database that does not come back in time costs what is queued, counted as dropped."""
        self._closing, self._deadline = True, time.monotonic() + seconds
        self._wake.set()
        self._hurry.set()
        timer = asyncio.get_running_loop().call_later(seconds, self._over.cancel)
        try:
            await self._task
        finally:
            timer.cancel()

    def report(self) -> Report:
        behind = time.monotonic() - self._oldest if self._put > self._done else 0.0
        silent = behind > SILENT_SECONDS and self._attempting is not None
        return Report(
            queued=self._put - self._done,
            queued_bytes=self._weight,
            behind=behind,
            written=dict(self._written),
            dropped=dict(self._dropped),
            unfit=dict(self._unfit),
            commits=self._commits,
            failures=self._failures,
            failing=bool(self._failing_since) or silent,
            last_error="the database does not answer" if silent and not self._failing_since else self._last_error,
        )

    # --- the task

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                await self._wait_for_more()
                batch = self._take()
                if batch:
                    try:
                        await self._keep(batch)
                    finally:
                        self._weight -= sum(entry.weight for entry in batch)
                        await self._settle(len(batch))
                elif self._closing:
                    return
        finally:
            async with self._settled:
                self._settled.notify_all()

    async def _wait_for_more(self) -> None:
        while (wait := self._due - time.monotonic()) > 0 and not self._closing and len(self._queue) < BATCH_ENTRIES:
            self._hurry.clear()
            await within(self._hurry, wait)

    def _take(self) -> list[Entry]:
        batch: list[Entry] = []
        size = 0
        while self._queue and len(batch) < BATCH_ENTRIES and size < BATCH_BYTES:
            entry = self._queue.popleft()
            size += entry.weight
            batch.append(entry)
        if not self._queue:
            self._wake.clear()
            if self._closing:
                self._wake.set()
        return batch

    async def _settle(self, count: int) -> None:
        self._done += count
        self._oldest = self._committed = time.monotonic()
        if self._dropping and len(self._queue) < self._entries / 2 and self._weight < self._bytes / 2:
            self._dropping = False
            self._say({"event": "store_dropped", "dropped": dict(self._dropped - self._dropped_before)})
        async with self._settled:
            self._settled.notify_all()

    async def _keep(self, batch: list[Entry]) -> None:
        """Commits the batch. If no database would take it as it is, its entries are tried one by one."""
        try:
            await self._try(batch)
        except _GivenUp:
            self._dropped.update(entry.kind for entry in batch)
        except Exception:
            for entry in batch:
                try:
                    await self._try([entry])
                except _GivenUp:
                    self._dropped[entry.kind] += 1
                except Exception as error:
                    self._unfit[entry.kind] += 1
                    self._last_error = f"{type(error).__name__}: {error}"[:300]
                    self._say({"event": "store_unfit", "kind": entry.kind, "message": self._last_error})

    async def _try(self, batch: list[Entry]) -> None:
        """Until it is written. Every row can be written twice without harm, so a commit whose answer was lost is repeated."""
        rows, pause = Rows(generation=0), FIRST_PAUSE
        while True:
            if self._over.done():
                raise _GivenUp
            try:
                if rows.generation != self._commit.generation:
                    rows = await asyncio.to_thread(rows_of, batch, self._commit.generation)
                await self._attempt(rows)
            except Exception as error:
                if not passing(error):
                    raise
                self._failed(error)
                if self._closing and time.monotonic() + pause > self._deadline:
                    raise _GivenUp from None
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, pause * 2)
            else:
                break
        self._succeeded()
        self._unfit.update(rows.unfit)
        self._written.update(entry.kind for entry in batch)
        self._written.subtract(rows.unfit)
        for entry in batch:
            if isinstance(entry, TurnEntry):
                entry.turn.written = rows.generation

    async def _attempt(self, rows: Rows) -> None:
        """A database that does not even say no must not keep us from closing."""
        attempt = self._attempting = asyncio.get_running_loop().create_task(self._commit(rows))
        try:
            await asyncio.wait({attempt, self._over}, return_when=asyncio.FIRST_COMPLETED)
            if not attempt.done():
                raise _GivenUp
            await attempt
        finally:
            self._attempting = None
            attempt.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may hear how it ends
            attempt.cancel()

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self._last_error = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        if not self._failing_since:
            self._failing_since = time.monotonic()
            self._say({"event": "store_failing", "message": self._last_error})

    def _succeeded(self) -> None:
        self._commits += 1
        if self._failing_since:
            seconds = time.monotonic() - self._failing_since
            self._failing_since = 0.0
            self._say({"event": "store_back", "seconds": round(seconds, 3)})


class _GivenUp(Exception):
    """The time for closing is over."""
