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
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Double,
    Integer,
    Text,
    Update,
    and_,
    any_,
    bindparam,
    case,
    func,
    insert,
    or_,
    select,
    text,
    update,
)

from ..store import schema
from ..store.batch_schema import SUMS, batch_items, batch_jobs, batch_results, batches
from ..store.bulk import BulkStatement
from ..store.database import Database
from ..store.processes import is_alive, pid_scope
from ..store.sql_types import DatabaseRow, Query, SqlColumns, SqlRow, SqlValue, SqlValues
from .model import CLOSED, DONE, OPEN, PROVIDER, RANGE_ITEMS, RUNNING, SENDING, Batch, Item, Job, Result, Totals
from .rows import batch_of

LEASE_SECONDS: Final = 60.0
"""Seconds after which a worker on another machine counts as dead if it did not renew its leases. A database restart takes
less."""
COUNTED_JOBS: Final = 64
"""Open jobs that a claim counts. With more open jobs the end of the batch is not near, and whole ranges are claimed."""
SHARES: Final = 2
"""Near the end, a claim takes one of this many shares per worker, so that the last calls are spread over all workers."""

COLUMNS: Final = (*SUMS, "cost")
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
        of_unended = None if database.is_sqlite else _of_unended_batch
        self._insert_results = BulkStatement(database, database.insert_new(batch_results), batch_results, where=of_unended)
        unended = select(batches.c.id).where(batches.c.id == bindparam("key"), batches.c.ended.is_(None))
        self._unended = BulkStatement(database, unended, batches, ("key",))
        self._finish_job = BulkStatement(database, _finish_job(), batch_jobs, ("key_batch", "key_first", "key_last"))
        self._next_jobs = BulkStatement(database, _next_jobs(()).limit(bindparam("most", type_=Integer)), batch_jobs, ("most",))
        self._few_open = BulkStatement(database, _few_open(), batch_jobs, ("state",))
        self._take_job = BulkStatement(database, _take_job(), batch_jobs, ("key_batch", "key_first", "to", "by", "until"))
        self._batch = BulkStatement(database, select(batches).where(batches.c.id == bindparam("key")), batches, ("key",))
        range_of_items = unfinished(
            bindparam("key", type_=Text), bindparam("low", type_=Integer), bindparam("high", type_=Integer)
        )
        self._items = BulkStatement(database, range_of_items, batch_items, ("key", "low", "high"))

    # --- claiming

    async def claim(self, except_upstreams: Collection[str] = (), most: int = RANGE_ITEMS) -> Job | None:
        """Claims one job, of at most this many items; None if there is none."""
        return next(iter(await self.claim_some(except_upstreams, most, 1)), None)

    async def claim_some(self, except_upstreams: Collection[str], most: int, jobs: int) -> list[Job]:
        """Claims the next jobs and returns them with those of their items that have no result. ``except_upstreams`` accept no
        calls now. ``most``: items of a job. ``jobs``: how many are claimed, while there are plenty."""
        until = time.time() + LEASE_SECONDS

        def work(connection: Connection) -> list[Job]:
            self._plan_for_values(connection)
            if except_upstreams:
                rows: Sequence[Sequence[SqlValue]] = connection.execute(_next_jobs(except_upstreams).limit(jobs)).all()
            else:
                rows = self._next_jobs.rows(connection, most=jobs)
            if not rows:
                return []
            found = [_Claimable(*row) for row in rows]
            share = self._share(connection)
            found = found[: max(1, share // RANGE_ITEMS)]
            ranges = [(job, job.first + min(job.last - job.first, most, share)) for job in found]
            taken = [
                {"key_batch": job.batch_id, "key_first": job.first, "to": last, "by": self.process, "until": until}
                for job, last in ranges
            ]
            self._take_job.execute(connection, taken)
            for job, last in ranges:
                if last < job.last:
                    rest = {"batch_id": job.batch_id, "first": last, "last": job.last, "state": OPEN}
                    rest |= {"upstream": job.upstream, "priority": job.priority, "process": job.process}
                    connection.execute(insert(batch_jobs).values(rest))
            of = {id: batch_of(self._batch.one(connection, key=id).one()) for id in {job.batch_id for job in found}}
            return [
                Job(of[job.batch_id], job.first, last, job.upstream, self._read(connection, job, last)) for job, last in ranges
            ]

        return await self.database.write(work)

    def _read(self, connection: Connection, job: _Claimable, last: int) -> list[Item]:
        rows = self._items.rows(connection, key=job.batch_id, low=job.first, high=last)
        return [Item(number, custom_id, body, line) for _, number, line, custom_id, body in rows]

    def _share(self, connection: Connection) -> int:
        """Returns how many items one claim takes: fewer near the end, so that no worker holds the last ones alone."""
        left = self._few_open.rows(connection, state=OPEN)
        if len(left) == COUNTED_JOBS:
            return COUNTED_JOBS * RANGE_ITEMS
        elsewhere = select(func.count(batch_jobs.c.process.distinct())).where(_runs_elsewhere(self.process))
        others: int = connection.execute(elsewhere).scalar_one()
        share: float = sum(last - first for first, last in left) / (SHARES * (1 + others))
        return max(1, math.ceil(share))

    async def workers(self) -> int:
        """Returns the number of processes that run jobs now, including this one."""
        count = select(func.count(batch_jobs.c.process.distinct())).where(_runs_elsewhere(self.process))
        return 1 + int((await self.database.fetch(count))[0][0])

    async def has_open(self) -> bool:
        """Returns whether there is a job to claim. This is a cheap query for an idle worker."""
        return bool(await self.database.fetch(select(batch_jobs.c.first).where(_claimable()).limit(1)))

    # --- results

    async def commit(self, results: Sequence[Result], finished: Sequence[Job] = ()) -> int:
        """Writes results, and ends jobs whose items all have one. It can be repeated.

        Results of batches that have ended are too late and are dropped. Returns the number of new results. Rows are sorted, so
        that two workers that write the same results never deadlock.
        """
        rows = [astuple(result) for result in sorted(results, key=_place)]

        def work(connection: Connection) -> int:
            self._plan_for_values(connection)
            written = self._insert_results.execute_tuples(connection, self._of_unended(connection, rows))
            for job in finished:
                self.finish_job(connection, job.batch.id, job.first, job.last)
            return written

        return await self.database.write_each(work) if rows or finished else 0

    def _of_unended(self, connection: Connection, rows: list[SqlValues]) -> list[SqlValues]:
        """Returns the results whose batch has not ended. On SQLite no batch can end before this transaction does, so a query for
        each batch is enough. PostgreSQL has the condition in its insert, which locks the batch."""
        if not self.database.is_sqlite:
            return rows
        ids = {row[0] for row in rows}
        unended = {id for id in ids if self._unended.rows(connection, key=id)}
        return rows if len(unended) == len(ids) else [row for row in rows if row[0] in unended]

    def finish_job(self, connection: Connection, batch_id: str, first: int, last: int) -> bool:
        """Writes the sums of a job and marks it as done, if every item of it has a result. False if one has none.
        It can be repeated."""
        return bool(self._finish_job.run(connection, key_batch=batch_id, key_first=first, key_last=last))

    async def renew(self, held: Collection[Key]) -> tuple[set[Key], set[str]]:
        """Renews the leases of this process. Returns the jobs of ``held`` that it still owns, and the batches that are closing.

        A job that it owns but does not hold was claimed in a transaction whose outcome was lost. It is given back.
        """
        now = time.time()
        ours = and_(batch_jobs.c.state == RUNNING, batch_jobs.c.process == self.process)

        def work(connection: Connection) -> tuple[set[Key], set[str]]:
            self._plan_for_values(connection)
            rows = connection.execute(
                select(batch_jobs.c.batch_id, batch_jobs.c.first, batches.c.closing)
                .join(batches, batches.c.id == batch_jobs.c.batch_id)
                .where(ours)
            ).all()
            found = {(row.batch_id, row.first) for row in rows}
            if found:
                connection.execute(update(batch_jobs).where(ours).values(lease=now + LEASE_SECONDS))
            if unknown := found.difference(held):
                self._give_back(connection, unknown)
            return found.intersection(held), {row.batch_id for row in rows if row.closing}

        return await self.database.write(work)

    async def give_back(self, jobs: Collection[Key]) -> None:
        """Releases jobs that this process will not finish, so that others may claim them. Jobs of a closing batch are closed."""
        if jobs:
            await self.database.write(lambda connection: self._give_back(connection, jobs))

    def _give_back(self, connection: Connection, jobs: Collection[Key]) -> None:
        keys = [{"key_batch": batch_id, "key_first": first} for batch_id, first in jobs]
        statement = (
            update(batch_jobs)
            .where(
                batch_jobs.c.batch_id == bindparam("key_batch"),
                batch_jobs.c.first == bindparam("key_first"),
                batch_jobs.c.state == RUNNING,
                batch_jobs.c.process == self.process,
            )
            .values(state=open_or_closed(), lease=None)
        )
        connection.execute(statement, keys)

    async def recover(self) -> int:
        """Releases the jobs of dead processes: at once on this machine, after the lease on others. Returns their number."""
        now = time.time()
        dead = await self.dead_processes(now)
        lost = and_(
            batch_jobs.c.state.in_((RUNNING, SENDING)),
            or_(batch_jobs.c.lease < now, batch_jobs.c.process.in_(dead)),
        )
        if not await self.database.fetch(select(batch_jobs.c.first).where(lost).limit(1)):
            return 0
        return await self.database.execute(update(batch_jobs).where(lost).values(state=open_or_closed(), lease=None))

    async def dead_processes(self, now: float) -> list[str]:
        """Returns the owners of jobs and imports that are known to be dead: they ended, or no longer run on this machine."""
        running = select(batch_jobs.c.process).where(batch_jobs.c.state.in_((RUNNING, SENDING)))
        importing = select(batches.c.process).where(batches.c.status == "validating", batches.c.process.is_not(None))
        owners = running.union(importing).subquery()
        processes = schema.processes
        rows = await self.database.fetch(select(processes).where(processes.c.id.in_(select(owners.c.process))))
        here = pid_scope()
        return [
            row.id
            for row in rows
            if row.id != self.process and (row.recovered is not None or (row.place == here and not is_alive(row, now)))
        ]

    # --- progress

    async def totals(self, batch: Batch) -> Totals:
        """Returns the counts of a batch. The sums of finished jobs are stored; only running jobs are counted."""
        if batch.totals is not None:
            return batch.totals
        done = and_(batch_jobs.c.batch_id == batch.id, batch_jobs.c.state == DONE)
        columns = [func.coalesce(func.sum(batch_jobs.c[name]), 0).label(name) for name in COLUMNS]
        under_way = and_(
            batch_jobs.c.batch_id == batch.id,
            batch_jobs.c.state != DONE,
            batch_jobs.c.process.is_not(None),
            batch_results.c.batch_id == batch_jobs.c.batch_id,
            batch_results.c.number >= batch_jobs.c.first,
            batch_results.c.number < batch_jobs.c.last,
        )

        both = select(*columns).where(done).union_all(select(*sum_columns()).where(under_way))
        totals = Totals()
        for row in await self.database.fetch(both):  # one query, so that each job is counted exactly once
            totals.add(_totals(row))
        return totals

    def _plan_for_values(self, connection: Connection) -> None:
        """Makes PostgreSQL plan each query for its values, once per connection.

        Otherwise it would cache a plan made for empty tables, and scan the tables from then on.
        """
        if not self.database.is_sqlite and _CUSTOM_PLANS not in connection.info:
            connection.execute(_FORCE_CUSTOM_PLANS)
            connection.info[_CUSTOM_PLANS] = True


_CUSTOM_PLANS: Final = "streamglot.custom_plans"
_FORCE_CUSTOM_PLANS: Final = text("SET plan_cache_mode = force_custom_plan")


_place: Final = attrgetter("batch_id", "number")


def _of_unended_batch(new: SqlColumns) -> ColumnElement[bool]:
    """Returns the condition of PostgreSQL for results whose batch has not ended. It locks the batch, so that it does not end before
    the results are committed, and once for all rows."""
    unended = select(batches.c.id).where(batches.c.ended.is_(None))
    of_rows = batches.c.id == any_(bindparam("batch_id", type_=ARRAY(Text)))
    return new.batch_id.in_(unended.where(of_rows).with_for_update(read=True))


def _few_open() -> Query:
    few = select(batch_jobs.c.first, batch_jobs.c.last).where(batch_jobs.c.state == bindparam("state", type_=Text))
    return few.limit(COUNTED_JOBS)


def _take_job() -> Update:
    key = and_(
        batch_jobs.c.batch_id == bindparam("key_batch", type_=Text), batch_jobs.c.first == bindparam("key_first", type_=Integer)
    )
    values = {
        "process": bindparam("by", type_=Text),
        "lease": bindparam("until", type_=Double),
        "last": bindparam("to", type_=Integer),
    }
    return update(batch_jobs).where(key).values(state=RUNNING, **values)


def _finish_job() -> Update:
    """One statement: sums up the results of a job, and writes the sums if there is a result for each item. Results are written once, so
    a job that is done already gets the same sums again."""
    results, jobs = batch_results.c, batch_jobs.c
    batch_id, first, last = (
        bindparam("key_batch", type_=Text),
        bindparam("key_first", type_=Integer),
        bindparam("key_last", type_=Integer),
    )
    inside = and_(results.batch_id == batch_id, results.number >= first, results.number < last)
    sums = select(*sum_columns()).where(inside).subquery("sums").c
    whole = sums.succeeded + sums.errored + sums.canceled + sums.expired == jobs.last - jobs.first
    key = and_(jobs.batch_id == batch_id, jobs.first == first, jobs.last == last)
    return update(batch_jobs).where(key, whole).values(state=DONE, lease=None, **{name: sums[name] for name in COLUMNS})


def sum_columns() -> list[ColumnElement[SqlValue]]:
    """Returns the totals of results as columns of a query."""
    results = batch_results.c
    size = func.length(results.line) + 1
    succeeded = results.outcome == "succeeded"
    counted: dict[str, ColumnElement[SqlValue]] = {
        name: case((results.outcome == name, 1), else_=0) for name in ("succeeded", "errored", "canceled", "expired")
    }
    counted |= {name: results[name] for name in SUMS if name.endswith("_tokens")}
    counted |= {
        "output_bytes": case((succeeded, size), else_=0),
        "error_bytes": case((succeeded, 0), else_=size),
        "retried": case((results.attempts > 1, 1), else_=0),
        "cost": results.cost,
    }
    return [func.coalesce(func.sum(counted[name]), 0).label(name) for name in COLUMNS]


def _totals(row: DatabaseRow) -> Totals:
    values = {name: int(getattr(row, name)) for name in SUMS}
    return Totals(**values, cost=float(row.cost))


def _next_jobs(except_upstreams: Collection[str]) -> Query:
    """Selects the next jobs.

    Jobs of the same position in their batches alternate, so that a small batch does not wait behind a large one.
    """
    question = select(*(batch_jobs.c[name] for name in _Claimable.__struct_fields__)).where(_claimable())
    if except_upstreams:
        question = question.where(batch_jobs.c.upstream.not_in(list(except_upstreams)))
    order = (batch_jobs.c.priority, batch_jobs.c.first)
    return question.order_by(*order).with_for_update(skip_locked=True)


def unfinished(batch_id: object, first: object, last: object) -> Query:
    items, results = batch_items.c, batch_results.c
    there = select(results.number).where(results.batch_id == items.batch_id, results.number == items.number).exists()
    inside = and_(items.batch_id == batch_id, items.number >= first, items.number < last)
    return select(batch_items).where(inside, ~there).order_by(items.number)


def _claimable() -> ColumnElement[bool]:
    """Returns the condition for jobs that wait for a worker. Jobs for a provider's batches are not among them."""
    return and_(batch_jobs.c.state == OPEN, ~batch_jobs.c.upstream.startswith(PROVIDER))


def open_or_closed() -> ColumnElement[str]:
    """Returns the state of a job that is released: closed if its batch is closing, otherwise open."""
    closing = select(batches.c.closing).where(batches.c.id == batch_jobs.c.batch_id).scalar_subquery()
    return case((closing == "", OPEN), else_=CLOSED)


def _runs_elsewhere(process: str) -> ColumnElement[bool]:
    return and_(batch_jobs.c.state == RUNNING, batch_jobs.c.process != process)


def result_row(result: Result) -> SqlRow:
    return asdict(result)
