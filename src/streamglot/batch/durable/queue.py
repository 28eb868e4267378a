"""The queue: jobs (ranges of items) that workers claim, and results that are written once. Both databases use the same functions.

On PostgreSQL a claim is ``FOR UPDATE SKIP LOCKED``; SQLite has one writer at a time. A job belongs to the process that claimed it
until that process gives it back, is found dead on this machine, or lets its lease expire. An existing result is never replaced,
so a job that is run twice reports each item once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict, astuple

from ...store.database import Database
from ...store.database.sql import Connection, DatabaseRow, Insert, SqlValues, insert_row
from ...store.processes import is_alive, pid_scope
from .model import CLOSED, DONE, OPEN, PROVIDER, RANGE_ITEMS, RUNNING, SENDING, Batch, Item, Job, Result, Totals, batch_of

LEASE_SECONDS: Final = 60.0
"""Seconds after which a worker on another machine counts as dead if it did not renew its leases. A database restart takes
less."""
COUNTED_JOBS: Final = 64
"""Open jobs that a claim counts. With more open jobs the end of the batch is not near, and whole ranges are claimed."""
SHARES: Final = 2
"""Near the end, a claim takes one of this many shares per worker, so that the last calls are spread over all workers."""

SUMS: Final = (
    *("succeeded", "errored", "canceled", "expired", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"),
    *("output_bytes", "error_bytes", "retried"),
)
"""Whole numbers that a job has for all of its results."""
COLUMNS: Final = (*SUMS, "cost")
_COUNTED: Final = {
    **{name: f"CASE WHEN outcome = '{name}' THEN 1 ELSE 0 END" for name in ("succeeded", "errored", "canceled", "expired")},
    **{name: f"batch_results.{name}" for name in SUMS if name.endswith("_tokens")},
    "output_bytes": "CASE WHEN outcome = 'succeeded' THEN length(line) + 1 ELSE 0 END",
    "error_bytes": "CASE WHEN outcome <> 'succeeded' THEN length(line) + 1 ELSE 0 END",
    "retried": "CASE WHEN attempts > 1 THEN 1 ELSE 0 END",
    "cost": "batch_results.cost",
}
"""What one result adds to each of the sums."""
SUM_COLUMNS: Final = ", ".join(f"coalesce(sum({_COUNTED[name]}), 0) AS {name}" for name in COLUMNS)
"""The totals of results as columns of a query."""
UNFINISHED: Final = """
    SELECT * FROM batch_items WHERE batch_id = :batch_id AND number >= :first AND number < :last
    AND NOT EXISTS (
        SELECT 1 FROM batch_results WHERE batch_results.batch_id = batch_items.batch_id AND batch_results.number = batch_items.number
    )
"""
"""The items of a range that have no result."""
OPEN_OR_CLOSED: Final = (
    f"(CASE WHEN (SELECT closing FROM batches WHERE batches.id = batch_jobs.batch_id) = '' THEN '{OPEN}' ELSE '{CLOSED}' END)"
)
"""The state of a job that is released: closed if its batch is closing, otherwise open."""
RESULTS: Final = Insert("batch_results", Result.__struct_fields__)
_LOCKED_RESULTS: Final = Insert(
    "batch_results",
    Result.__struct_fields__,
    where="WHERE new.batch_id IN (SELECT id FROM batches WHERE ended IS NULL AND id = ANY($1) FOR SHARE)",
)
"""The results whose batch has not ended. It locks the batch, so that it does not end before the results are committed, and once for all
rows. The first parameter has the ids of the batches."""
_UNENDED: Final = "SELECT id FROM batches WHERE id IN :ids AND ended IS NULL"
_JOB: Final = "batch_id = :batch_id AND first = :first"
_FINISH: Final = f"""
    UPDATE batch_jobs SET state = '{DONE}', lease = NULL, {", ".join(f"{name} = sums.{name}" for name in COLUMNS)}
    FROM (
        SELECT {SUM_COLUMNS} FROM batch_results WHERE batch_id = :batch_id AND number >= :first AND number < :last
    ) AS sums
    WHERE {_JOB} AND batch_jobs.last = :last
        AND sums.succeeded + sums.errored + sums.canceled + sums.expired = batch_jobs.last - batch_jobs.first
"""
"""Sums up the results of a job, and writes the sums if there is a result for each item. Results are written once, so a job that is done
already gets the same sums again."""
_CLAIMABLE: Final = f"state = '{OPEN}' AND NOT upstream LIKE '{PROVIDER}%'"
"""Jobs that wait for a worker. Jobs for a provider's batches are not among them."""
_NEXT: Final = f"""
    SELECT batch_id, first, last, upstream, priority, process FROM batch_jobs WHERE {_CLAIMABLE} {{others}}
    ORDER BY priority, first LIMIT {{jobs}} FOR UPDATE SKIP LOCKED
"""
"""The next jobs. Those of the same position in their batches alternate, so that a small batch does not wait behind a large one."""
_FEW_OPEN: Final = f"SELECT first, last FROM batch_jobs WHERE state = '{OPEN}' LIMIT {COUNTED_JOBS}"
_TAKE: Final = f"UPDATE batch_jobs SET state = '{RUNNING}', process = :process, lease = :until, last = :last WHERE {_JOB}"
_REST: Final = insert_row("batch_jobs", ("batch_id", "first", "last", "upstream", "priority", "process", "state"))
_WORKERS: Final = f"SELECT count(DISTINCT process) AS others FROM batch_jobs WHERE state = '{RUNNING}' AND process <> :process"
_OURS: Final = f"state = '{RUNNING}' AND batch_jobs.process = :process"
_HELD: Final = f"""
    SELECT batch_jobs.batch_id, batch_jobs.first, batches.closing FROM batch_jobs JOIN batches ON batches.id = batch_jobs.batch_id
    WHERE {_OURS}
"""
_RENEW: Final = f"UPDATE batch_jobs SET lease = :until WHERE {_OURS}"
_GIVE_BACK: Final = f"UPDATE batch_jobs SET state = {OPEN_OR_CLOSED}, lease = NULL WHERE {_JOB} AND {_OURS}"
_LOST: Final = f"state IN ('{RUNNING}', '{SENDING}') AND (lease < :now OR process IN :dead)"
_OWNERS: Final = f"""
    SELECT * FROM processes WHERE id IN (
        SELECT process FROM batch_jobs WHERE state IN ('{RUNNING}', '{SENDING}')
        UNION SELECT process FROM batches WHERE status = 'validating' AND process IS NOT NULL
    )
"""
_PROGRESS: Final = f"""
    SELECT {", ".join(f"coalesce(sum({name}), 0) AS {name}" for name in COLUMNS)} FROM batch_jobs
    WHERE batch_id = :batch_id AND state = '{DONE}'
    UNION ALL
    SELECT {SUM_COLUMNS} FROM batch_jobs JOIN batch_results ON batch_results.batch_id = batch_jobs.batch_id
        AND batch_results.number >= batch_jobs.first AND batch_results.number < batch_jobs.last
    WHERE batch_jobs.batch_id = :batch_id AND batch_jobs.state <> '{DONE}' AND batch_jobs.process IS NOT NULL
"""
"""One query, so that each job is counted exactly once."""
_CUSTOM_PLANS: Final = "SET plan_cache_mode = force_custom_plan"
"""Makes PostgreSQL plan each query for its values. Otherwise it would cache a plan made for empty tables, and scan the tables from then
on."""
Key = tuple[str, int]
"""A job's key: its batch and first item."""


class _Claimable(Struct):
    """A row of a job that can be claimed."""

    batch_id: str
    first: int
    last: int
    upstream: str
    priority: int
    process: str | None


class BatchQueue:
    """``process`` is the id of this process in the store's table of processes."""

    def __init__(self, database: Database, process: str) -> None:
        self.database = database
        self.process = process

    # --- claiming

    async def claim(self, except_upstreams: Collection[str] = (), maximum: int = RANGE_ITEMS) -> Job | None:
        """Claims one job, of at most this many items; None if there is none."""
        return next(iter(await self.claim_some(except_upstreams, maximum, 1)), None)

    async def claim_some(self, except_upstreams: Collection[str], maximum: int, jobs: int) -> list[Job]:
        """Claims the next jobs and returns them with those of their items that have no result. ``except_upstreams`` accept no
        calls now. ``most``: items of a job. ``jobs``: how many are claimed, while there are plenty."""
        until = time.time() + LEASE_SECONDS

        async def work(connection: Connection) -> list[Job]:
            await connection.configure(_CUSTOM_PLANS)
            others = "AND upstream NOT IN :others" if except_upstreams else ""
            question = _NEXT.format(others=others, jobs=int(jobs))
            rows = await connection.fetch(question, others=list(except_upstreams))
            if not rows:
                return []
            found = [_Claimable(*row) for row in rows]
            share = await self._share(connection)
            found = found[: max(1, share // RANGE_ITEMS)]
            ranges = [(job, job.first + min(job.last - job.first, maximum, share)) for job in found]
            taken = [
                {"batch_id": job.batch_id, "first": job.first, "last": last, "process": self.process, "until": until}
                for job, last in ranges
            ]
            await connection.execute_each(_TAKE, taken)
            for job, last in ranges:
                if last < job.last:
                    await connection.execute(_REST, **asdict(job) | {"first": last, "state": OPEN})
            of = {
                id: batch_of((await connection.fetch("SELECT * FROM batches WHERE id = :id", id=id))[0])
                for id in {job.batch_id for job in found}
            }
            return [
                Job(of[job.batch_id], job.first, last, job.upstream, await self._read(connection, job, last))
                for job, last in ranges
            ]

        return await self.database.write(work)

    async def _read(self, connection: Connection, job: _Claimable, last: int) -> list[Item]:
        rows = await connection.fetch(f"{UNFINISHED} ORDER BY number", batch_id=job.batch_id, first=job.first, last=last)
        return [Item(row.number, row.custom_id, row.body, row.line) for row in rows]

    async def _share(self, connection: Connection) -> int:
        """How many items one claim takes: fewer near the end, so that no worker holds the last ones alone."""
        left = await connection.fetch(_FEW_OPEN)
        if len(left) == COUNTED_JOBS:
            return COUNTED_JOBS * RANGE_ITEMS
        [row] = await connection.fetch(_WORKERS, process=self.process)
        share: float = sum(last - first for first, last in left) / (SHARES * (1 + row.others))
        return max(1, math.ceil(share))

    async def workers(self) -> int:
        """The number of processes that run jobs now, including this one."""
        return 1 + int((await self.database.fetch(_WORKERS, process=self.process))[0].others)

    async def has_open(self) -> bool:
        """Whether there is a job to claim. This is a cheap query for an idle worker."""
        return bool(await self.database.fetch(f"SELECT first FROM batch_jobs WHERE {_CLAIMABLE} LIMIT 1"))

    # --- results

    async def commit(self, results: Sequence[Result], finished: Sequence[Job] = ()) -> int:
        """Writes results, and ends jobs whose items all have one. It can be repeated.

        Results of batches that have ended are too late and are dropped. Returns the number of new results. Rows are sorted, so
        that two workers that write the same results never deadlock.
        """
        rows = [astuple(result) for result in sorted(results, key=_place)]

        async def work(connection: Connection) -> int:
            await connection.configure(_CUSTOM_PLANS)
            written = await self._insert(connection, rows)
            for job in finished:
                await self.finish_job(connection, job.batch.id, job.first, job.last)
            return written

        return await self.database.write_each(work) if rows or finished else 0

    async def _insert(self, connection: Connection, rows: list[SqlValues]) -> int:
        """Adds the results whose batch has not ended. On SQLite no batch can end before this transaction does, so a query is enough.
        PostgreSQL has the condition in its insert, which locks the batch."""
        if not connection.is_sqlite:
            return await connection.insert(_LOCKED_RESULTS, rows)
        ids = {row[0] for row in rows}
        unended = {row.id for row in await connection.fetch(_UNENDED, ids=list(ids))}
        return await connection.insert(RESULTS, [row for row in rows if row[0] in unended])

    async def finish_job(self, connection: Connection, batch_id: str, first: int, last: int) -> bool:
        """Writes the sums of a job and marks it as done, if every item of it has a result. False if one has none.
        It can be repeated."""
        return bool(await connection.execute(_FINISH, batch_id=batch_id, first=first, last=last))

    async def renew(self, held: Collection[Key]) -> tuple[set[Key], set[str]]:
        """Renews the leases of this process. Returns the jobs of ``held`` that it still owns, and the batches that are closing.

        A job that it owns but does not hold was claimed in a transaction whose outcome was lost. It is given back.
        """
        now = time.time()

        async def work(connection: Connection) -> tuple[set[Key], set[str]]:
            await connection.configure(_CUSTOM_PLANS)
            rows = await connection.fetch(_HELD, process=self.process)
            found = {(row.batch_id, row.first) for row in rows}
            if found:
                await connection.execute(_RENEW, process=self.process, until=now + LEASE_SECONDS)
            if unknown := found.difference(held):
                await self._give_back(connection, unknown)
            return found.intersection(held), {row.batch_id for row in rows if row.closing}

        return await self.database.write(work)

    async def give_back(self, jobs: Collection[Key]) -> None:
        """Releases jobs that this process will not finish, so that others may claim them. Jobs of a closing batch are closed."""
        if jobs:
            await self.database.write(lambda connection: self._give_back(connection, jobs))

    async def _give_back(self, connection: Connection, jobs: Collection[Key]) -> None:
        keys = [{"batch_id": batch_id, "first": first, "process": self.process} for batch_id, first in jobs]
        await connection.execute_each(_GIVE_BACK, keys)

    async def recover(self) -> int:
        """Releases the jobs of dead processes: at once on this machine, after the lease on others. Returns their number."""
        now = time.time()
        dead = await self.dead_processes(now)
        if not await self.database.fetch(f"SELECT first FROM batch_jobs WHERE {_LOST} LIMIT 1", now=now, dead=dead):
            return 0
        release = f"UPDATE batch_jobs SET state = {OPEN_OR_CLOSED}, lease = NULL WHERE {_LOST}"
        return await self.database.execute(release, now=now, dead=dead)

    async def dead_processes(self, now: float) -> list[str]:
        """The owners of jobs and imports that are known to be dead: they ended, or no longer run on this machine."""
        rows = await self.database.fetch(_OWNERS)
        here = pid_scope()
        return [
            row.id
            for row in rows
            if row.id != self.process and (row.recovered is not None or (row.place == here and not is_alive(row, now)))
        ]

    # --- progress

    async def totals(self, batch: Batch) -> Totals:
        """The counts of a batch. The sums of finished jobs are stored; only running jobs are counted."""
        if batch.totals is not None:
            return batch.totals
        totals = Totals()
        for row in await self.database.fetch(_PROGRESS, batch_id=batch.id):
            totals.add(_totals(row))
        return totals


_place: Final = attrgetter("batch_id", "number")


def _totals(row: DatabaseRow) -> Totals:
    values = {name: int(getattr(row, name)) for name in SUMS}
    return Totals(**values, cost=float(row.cost))
