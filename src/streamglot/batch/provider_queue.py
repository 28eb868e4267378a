"""The queue of jobs that run in a provider's batches: sending, polling and fetching.

It uses the same table and rules as the queue.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from ..store.database.sql import Connection, SqlRow, SqlValue, assignments
from .model import OPEN, PROVIDER, REMOTE, SENDING, Batch, Item
from .queue import OPEN_OR_CLOSED, UNFINISHED, BatchQueue
from .rows import batch_of

REMOTE_ITEMS: Final = 50_000
"""Items of one batch at a provider: the smallest limit of the supported providers."""
SENDING_SECONDS: Final = 900.0
"""Seconds that preparing and uploading one batch may take before its sender counts as dead."""
POLLING_SECONDS: Final = 900.0
"""Seconds that fetching the results of one batch may take before its reader counts as dead."""
_TO_SEND: Final = f"state = '{OPEN}' AND upstream LIKE '{PROVIDER}%'"
_TO_LOOK_AT: Final = f"state = '{REMOTE}' AND (lease IS NULL OR lease < :now)"
_WAITING: Final = f"SELECT first FROM batch_jobs WHERE {_TO_SEND} OR {_TO_LOOK_AT} LIMIT 1"
_FIRST: Final = f"SELECT * FROM batch_jobs WHERE {_TO_SEND} ORDER BY priority, first LIMIT 1 FOR UPDATE SKIP LOCKED"
_SAME: Final = f"""
    SELECT first, last FROM batch_jobs WHERE {_TO_SEND} AND batch_id = :batch_id AND upstream = :upstream
    ORDER BY first FOR UPDATE SKIP LOCKED
"""
_DUE: Final = f"SELECT * FROM batch_jobs WHERE {_TO_LOOK_AT} LIMIT 1 FOR UPDATE SKIP LOCKED"
_TOGETHER: Final = f"batch_id = :batch_id AND remote = :remote AND state = '{REMOTE}'"
_THESE: Final = "batch_id = :batch_id AND first IN :firsts"


class RemoteJobs(Struct):
    """Ranges of items that go to a provider together."""

    batch: Batch
    upstream: str
    ranges: list[tuple[int, int]]
    remote: str = ""

    @property
    def name(self) -> str:
        """A name that is the same whenever the same ranges are sent, so that a batch whose id was lost can be found."""
        return f"{self.batch.id}-{self.ranges[0][0]}"


class ProviderQueue:
    def __init__(self, queue: BatchQueue) -> None:
        self._queue = queue
        self._database = queue.database

    async def any_waiting(self) -> bool:
        """Whether there is a job to send or to poll."""
        return bool(await self._database.fetch(_WAITING, now=time.time()))

    async def claim(self) -> RemoteJobs | None:
        """Claims jobs of one batch and one upstream that wait to be sent."""

        async def work(connection: Connection) -> RemoteJobs | None:
            found = await connection.fetch(_FIRST)
            if not found:
                return None
            [first] = found
            ranges, size = list[tuple[int, int]](), 0
            for row in await connection.fetch(_SAME, batch_id=first.batch_id, upstream=first.upstream):
                size += row.last - row.first
                if size > REMOTE_ITEMS:
                    break
                ranges.append((row.first, row.last))
            lease = time.time() + SENDING_SECONDS
            await _change(connection, first.batch_id, ranges, state=SENDING, process=self._queue.process, lease=lease)
            return RemoteJobs(await _batch(connection, first.batch_id), first.upstream.removeprefix(PROVIDER), ranges)

        return await self._database.write(work)

    async def items(self, batch_id: str, first: int, last: int) -> list[Item]:
        """The items of a range that have no result."""
        rows = await self._database.fetch(f"{UNFINISHED} ORDER BY number", batch_id=batch_id, first=first, last=last)
        return [Item(row.number, row.custom_id, row.body, row.line) for row in rows]

    async def items_of(self, batch_id: str, numbers: Sequence[int]) -> list[Item]:
        """Those of these items that have no result."""
        if not numbers:
            return []
        question = f"{UNFINISHED} AND number IN :numbers ORDER BY number"
        rows = await self._database.fetch(question, batch_id=batch_id, first=0, last=2**31 - 1, numbers=list(numbers))
        return [Item(row.number, row.custom_id, row.body, row.line) for row in rows]

    async def sent(self, jobs: RemoteJobs, remote: str, next_look: float) -> None:
        await self._change(jobs, state=REMOTE, remote=remote, lease=next_look)

    async def not_sent(self, jobs: RemoteJobs, upstream: str | None = None) -> None:
        """Puts jobs back into the queue. ``upstream``: run them as calls of this upstream from now on."""
        moved = "" if upstream is None else ", upstream = :upstream"
        release = f"UPDATE batch_jobs SET state = {OPEN_OR_CLOSED}, lease = NULL {moved} WHERE {_THESE} AND state = '{SENDING}'"
        firsts = [first for first, _ in jobs.ranges]
        await self._database.execute(release, batch_id=jobs.batch.id, firsts=firsts, upstream=upstream)

    async def due(self) -> RemoteJobs | None:
        """Claims a provider's batch whose state is due to be polled. No other process polls it at the same time."""
        now = time.time()

        async def work(connection: Connection) -> RemoteJobs | None:
            found = await connection.fetch(_DUE, now=now)
            if not found:
                return None
            [first] = found
            same: SqlRow = {"batch_id": first.batch_id, "remote": first.remote}
            rows = await connection.fetch(f"SELECT first, last FROM batch_jobs WHERE {_TOGETHER} ORDER BY first", **same)
            take = f"UPDATE batch_jobs SET lease = :lease, process = :process WHERE {_TOGETHER}"
            await connection.execute(take, lease=now + POLLING_SECONDS, process=self._queue.process, **same)
            ranges = [(row.first, row.last) for row in rows]
            batch = await _batch(connection, first.batch_id)
            return RemoteJobs(batch, first.upstream.removeprefix(PROVIDER), ranges, first.remote)

        return await self._database.write(work)

    async def look_again(self, jobs: RemoteJobs, when: float) -> None:
        await self._change(jobs, lease=when)

    async def _change(self, jobs: RemoteJobs, **values: SqlValue) -> None:
        await self._database.write(lambda connection: _change(connection, jobs.batch.id, jobs.ranges, **values))

    async def landed(self, jobs: RemoteJobs) -> None:
        """Marks jobs whose results are all stored as done. Other jobs go back to the queue, or are closed."""

        release = f"UPDATE batch_jobs SET state = {OPEN_OR_CLOSED}, lease = NULL, remote = NULL WHERE {_THESE}"

        async def work(connection: Connection) -> None:
            for first, last in jobs.ranges:
                if not await self._queue.finish_job(connection, jobs.batch.id, first, last):
                    await connection.execute(release, batch_id=jobs.batch.id, firsts=[first])

        await self._database.write(work)


async def _change(connection: Connection, batch_id: str, ranges: Sequence[tuple[int, int]], **values: SqlValue) -> None:
    """Sets these columns of jobs of one batch."""
    change = f"UPDATE batch_jobs SET {assignments(values)} WHERE {_THESE}"
    await connection.execute(change, batch_id=batch_id, firsts=[first for first, _ in ranges], **values)


async def _batch(connection: Connection, id: str) -> Batch:
    return batch_of((await connection.fetch("SELECT * FROM batches WHERE id = :id", id=id))[0])
