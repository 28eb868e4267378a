"""The queue of jobs that run in a provider's batches: sending, polling and fetching.

It uses the same table and rules as the queue.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, and_, or_, select, update

from ..store.batch_schema import batch_items, batch_jobs, batches
from ..store.sql_types import SqlRow
from .model import OPEN, PROVIDER, REMOTE, SENDING, Batch, Item
from .queue import BatchQueue, open_or_closed, unfinished
from .rows import batch_of

REMOTE_ITEMS: Final = 50_000
"""Items of one batch at a provider: the smallest limit of the supported providers."""
SENDING_SECONDS: Final = 900.0
"""Seconds that preparing and uploading one batch may take before its sender counts as dead."""
POLLING_SECONDS: Final = 900.0
"""Seconds that fetching the results of one batch may take before its reader counts as dead."""


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
        """Returns whether there is a job to send or to poll."""
        jobs = batch_jobs.c
        to_send = and_(jobs.state == OPEN, jobs.upstream.startswith(PROVIDER))
        to_look_at = and_(jobs.state == REMOTE, or_(jobs.lease.is_(None), jobs.lease < time.time()))
        return bool(await self._database.fetch(select(jobs.first).where(or_(to_send, to_look_at)).limit(1)))

    async def claim(self) -> RemoteJobs | None:
        """Claims jobs of one batch and one upstream that wait to be sent."""
        jobs = batch_jobs.c

        def work(connection: Connection) -> RemoteJobs | None:
            waiting = and_(jobs.state == OPEN, jobs.upstream.startswith(PROVIDER))
            order = select(batch_jobs).where(waiting).order_by(jobs.priority, jobs.first).limit(1)
            first = connection.execute(order.with_for_update(skip_locked=True)).first()
            if first is None:
                return None
            same = and_(waiting, jobs.batch_id == first.batch_id, jobs.upstream == first.upstream)
            rows = connection.execute(select(batch_jobs).where(same).order_by(jobs.first).with_for_update(skip_locked=True))
            ranges, size = [], 0
            for row in rows:
                size += row.last - row.first
                if size > REMOTE_ITEMS:
                    break
                ranges.append((row.first, row.last))
            values = {"state": SENDING, "process": self._queue.process, "lease": time.time() + SENDING_SECONDS}
            connection.execute(update(batch_jobs).where(_these(first.batch_id, ranges)).values(values))
            batch = connection.execute(select(batches).where(batches.c.id == first.batch_id)).one()
            return RemoteJobs(batch_of(batch), first.upstream.removeprefix(PROVIDER), ranges)

        return await self._database.write(work)

    async def items(self, batch_id: str, first: int, last: int) -> list[Item]:
        """Returns the items of a range that have no result."""
        rows = await self._database.fetch(unfinished(batch_id, first, last))
        return [Item(row.number, row.custom_id, row.body, row.line) for row in rows]

    async def items_of(self, batch_id: str, numbers: Sequence[int]) -> list[Item]:
        """Returns those of these items that have no result."""
        if not numbers:
            return []
        rows = await self._database.fetch(unfinished(batch_id, 0, 2**31 - 1).where(batch_items.c.number.in_(numbers)))
        return [Item(row.number, row.custom_id, row.body, row.line) for row in rows]

    async def sent(self, jobs: RemoteJobs, remote: str, next_look: float) -> None:
        values = {"state": REMOTE, "remote": remote, "lease": next_look}
        await self._database.execute(update(batch_jobs).where(_these(jobs.batch.id, jobs.ranges)).values(values))

    async def not_sent(self, jobs: RemoteJobs, upstream: str | None = None) -> None:
        """Returns jobs to the queue. ``upstream``: run them as calls of this upstream from now on."""
        values: SqlRow = {"state": open_or_closed(), "lease": None}
        if upstream is not None:
            values["upstream"] = upstream
        mine = and_(_these(jobs.batch.id, jobs.ranges), batch_jobs.c.state == SENDING)
        await self._database.execute(update(batch_jobs).where(mine).values(values))

    async def due(self) -> RemoteJobs | None:
        """Claims a provider's batch whose state is due to be polled. No other process polls it at the same time."""
        jobs, now = batch_jobs.c, time.time()

        def work(connection: Connection) -> RemoteJobs | None:
            waiting = and_(jobs.state == REMOTE, or_(jobs.lease.is_(None), jobs.lease < now))
            first = connection.execute(select(batch_jobs).where(waiting).limit(1).with_for_update(skip_locked=True)).first()
            if first is None:
                return None
            same = and_(jobs.batch_id == first.batch_id, jobs.remote == first.remote, jobs.state == REMOTE)
            ranges = [(row.first, row.last) for row in connection.execute(select(batch_jobs).where(same).order_by(jobs.first))]
            connection.execute(update(batch_jobs).where(same).values(lease=now + POLLING_SECONDS, process=self._queue.process))
            batch = connection.execute(select(batches).where(batches.c.id == first.batch_id)).one()
            return RemoteJobs(batch_of(batch), first.upstream.removeprefix(PROVIDER), ranges, first.remote)

        return await self._database.write(work)

    async def look_again(self, jobs: RemoteJobs, when: float) -> None:
        await self._database.execute(update(batch_jobs).where(_these(jobs.batch.id, jobs.ranges)).values(lease=when))

    async def landed(self, jobs: RemoteJobs) -> None:
        """Marks jobs whose results are all stored as done. Other jobs go back to the queue, or are closed."""

        def work(connection: Connection) -> None:
            for first, last in jobs.ranges:
                if not self._queue.finish_job(connection, jobs.batch.id, first, last):
                    values = {"state": open_or_closed(), "lease": None, "remote": None}
                    connection.execute(update(batch_jobs).where(_these(jobs.batch.id, [(first, last)])).values(values))

        await self._database.write(work)


def _these(batch_id: str, ranges: Sequence[tuple[int, int]]) -> ColumnElement[bool]:
    return and_(batch_jobs.c.batch_id == batch_id, batch_jobs.c.first.in_([first for first, _ in ranges]))
