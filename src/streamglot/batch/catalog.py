"""Files and batches as their owners see them: create, list, cancel, end, remove. Those of other owners are invisible."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Final

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, insert, or_, select, update

from ..store.batch_schema import batch_items, batch_jobs, batch_results, batches, files
from ..store.database import Database
from ..store.sql_types import DatabaseRow
from .lines import unrun_line
from .model import CLOSED, DONE, HELD, OPEN, Batch, File, Outcome, Result, Totals
from .queue import BatchQueue, result_row
from .rows import as_json, batch_of, batch_row, file_of, file_row

PAGE_ROWS: Final = 500
"""Results that are read in one query: a page of answers of 10 KB each is 5 MB."""
REMOVED_ROWS: Final = 5_000
"""Rows that one transaction removes, so that others can write in between."""
ENDED: Final = ("failed", "completed", "expired", "cancelled")


class Catalog:
    """Files and batches in the database. ``queue`` counts the progress of batches."""

    def __init__(self, database: Database, queue: BatchQueue) -> None:
        self._database = database
        self._queue = queue

    # --- files

    async def add_file(self, file: File) -> None:
        await self._database.execute(insert(files), file_row(file))

    async def uploaded_bytes(self, owner: str) -> int:
        """Returns the size of all uploaded files of an owner. Result files have no contents of their own and do not count."""
        uploaded = and_(files.c.owner == owner, files.c.batch_id.is_(None))
        return int((await self._database.fetch(select(func.coalesce(func.sum(files.c.bytes), 0)).where(uploaded)))[0][0])

    async def file(self, id: str, owner: str | None) -> File | None:
        rows = await self._database.fetch(select(files).where(files.c.id == id, _of(files, owner)))
        return await self._sized(file_of(rows[0])) if rows else None

    async def list_files(self, owner: str | None, purpose: str, after: str, limit: int, newest_first: bool) -> list[File]:
        where = [_of(files, owner)]
        if purpose:
            where.append(files.c.purpose == purpose)
        rows = await self._page(files, where, after, limit, newest_first)
        return [await self._sized(file_of(row)) for row in rows]

    async def remove_file(self, id: str) -> None:
        await self._database.execute(delete(files).where(files.c.id == id))

    async def expired_files(self, now: float) -> list[File]:
        rows = await self._database.fetch(select(files).where(files.c.expires < now).limit(PAGE_ROWS))
        return [file_of(row) for row in rows]

    async def _sized(self, file: File) -> File:
        """Returns the file with its size. The size of a result file is that of its lines so far."""
        batch = await self.batch(file.batch_id, None) if file.batch_id else None
        if batch is not None:
            totals = await self._queue.totals(batch)
            file.bytes = totals.output_bytes if batch.output_file == file.id else totals.error_bytes
        return file

    # --- batches

    async def add_batch(self, batch: Batch, results: Collection[File]) -> None:
        """Adds a batch. ``results`` are the files that show its results."""

        def work(connection: Connection) -> None:
            connection.execute(insert(batches), batch_row(batch))
            for file in results:
                connection.execute(insert(files), file_row(file))

        await self._database.write(work)

    async def batch(self, id: str, owner: str | None) -> Batch | None:
        rows = await self._database.fetch(select(batches).where(batches.c.id == id, _of(batches, owner)))
        return batch_of(rows[0]) if rows else None

    async def list_batches(
        self, owner: str | None, api: str, after: str = "", limit: int = 20, newest_first: bool = True
    ) -> list[Batch]:
        rows = await self._page(batches, [_of(batches, owner), batches.c.api == api], after, limit, newest_first)
        return [batch_of(row) for row in rows]

    async def _page(
        self, table: Table, where: list[ColumnElement[bool]], after: str, limit: int, newest_first: bool
    ) -> Sequence[DatabaseRow]:
        """Returns the page after the row ``after``. Rows of the same time are ordered by id."""
        if after:
            last = await self._database.fetch(select(table.c.created).where(table.c.id == after))
            if not last:
                return []
            at = last[0][0]
            same = and_(table.c.created == at, table.c.id < after if newest_first else table.c.id > after)
            where.append(or_(table.c.created < at if newest_first else table.c.created > at, same))
        order = (table.c.created, table.c.id)
        question = select(table).where(*where).order_by(*(column.desc() if newest_first else column for column in order))
        return await self._database.fetch(question.limit(limit))

    async def close_batch(self, id: str, status: str) -> bool:
        """Stops starting items.

        The batch ends as cancelled or expired when the running items have ended. Returns False if it has ended or is already
        closing.
        """
        now = time.time()

        def work(connection: Connection) -> bool:
            row = connection.execute(select(batches).where(batches.c.id == id).with_for_update()).first()
            if row is None or row.closing or row.ended is not None:
                return False
            batch = batch_of(row)
            shown = "cancelling" if status == "cancelled" else "finalizing"
            values = {"closing": status, "status": shown, "times": as_json(batch.times | {shown: now})}
            connection.execute(update(batches).where(batches.c.id == id).values(values))
            waiting = and_(batch_jobs.c.batch_id == id, batch_jobs.c.state.in_((HELD, OPEN)))
            connection.execute(update(batch_jobs).where(waiting).values(state=CLOSED))
            return True

        return await self._database.write(work)

    async def remove_batch(self, id: str) -> None:
        """Removes a batch with everything that belongs to it, in several transactions."""
        for table in (batch_results, batch_items, batch_jobs):
            number = table.c.first if table is batch_jobs else table.c.number
            while True:
                some = select(number).where(table.c.batch_id == id).limit(REMOVED_ROWS)
                if not await self._database.execute(delete(table).where(table.c.batch_id == id, number.in_(some))):
                    break

        def work(connection: Connection) -> None:
            connection.execute(delete(files).where(files.c.batch_id == id))
            connection.execute(delete(batches).where(batches.c.id == id))

        await self._database.write(work)

    async def unended(self) -> list[Batch]:
        rows = await self._database.fetch(select(batches).where(batches.c.ended.is_(None)))
        return [batch_of(row) for row in rows]

    async def outdated(self, now: float) -> list[Batch]:
        """Returns the batches whose results have expired."""
        rows = await self._database.fetch(select(batches).where(batches.c.results_expire < now, batches.c.ended.is_not(None)))
        return [batch_of(row) for row in rows]

    # --- the end of a batch

    async def settle(self, id: str) -> Batch | None:
        """Ends a batch that has nothing left to run. Returns the batch if it has ended now.

        Items that did not run are reported as cancelled or expired, then the counts are stored. If two processes do this at once,
        they write the same. A batch that is cancelled or expires meanwhile is left to the next call.
        """
        rows = await self._database.fetch(select(batches, _is_busy().label("busy")).where(batches.c.id == id))
        if not rows or rows[0].busy or rows[0].ended is not None or rows[0].status == "validating":
            return None
        batch = batch_of(rows[0])
        if batch.status != "cancelling":
            await self._note(batch, "finalizing")
        while await self._report_unrun(batch):
            pass
        totals = await self._queue.totals(batch)
        ended = batch.closing or "completed"

        def work(connection: Connection) -> bool:
            row = connection.execute(select(batches).where(batches.c.id == id).with_for_update()).first()
            if row is None or row.ended is not None or row.closing != batch.closing:
                return False
            now = time.time()
            times = batch_of(row).times | {ended: now}
            values = {"status": ended, "ended": now, "times": as_json(times), "totals": as_json(totals)}
            connection.execute(update(batches).where(batches.c.id == id).values(values))
            return True

        return await self.batch(id, None) if await self._database.write(work) else None

    async def fail(self, batch: Batch) -> None:
        """Ends a batch whose input is unusable. ``errors`` give the reasons."""
        now = time.time()
        values = {"status": "failed", "ended": now, "errors": as_json(batch.errors), "totals": as_json(Totals())}
        values |= {"times": as_json(batch.times | {"failed": now}), "process": None, "total": batch.total}
        await self._database.execute(update(batches).where(batches.c.id == batch.id).values(values))

    async def _note(self, batch: Batch, status: str) -> None:
        if batch.status != status:
            times = as_json(batch.times | {status: time.time()})
            here = and_(batches.c.id == batch.id, batches.c.ended.is_(None), batches.c.status != "cancelling")
            await self._database.execute(update(batches).where(here).values(status=status, times=times))

    async def _report_unrun(self, batch: Batch) -> bool:
        """Writes results for the items of one closed job that did not run. Returns False if there is no such job."""
        jobs, items, results = batch_jobs.c, batch_items.c, batch_results.c
        outcome: Outcome = "expired" if batch.closing == "expired" else "canceled"

        def work(connection: Connection) -> bool:
            closed = select(batch_jobs).where(jobs.batch_id == batch.id, jobs.state == CLOSED).order_by(jobs.first).limit(1)
            job = connection.execute(closed.with_for_update()).first()
            if job is None:
                return False
            there = select(results.number).where(results.batch_id == batch.id, results.number == items.number).exists()
            inside = and_(items.batch_id == batch.id, items.number >= job.first, items.number < job.last)
            unrun = connection.execute(select(items.number, items.custom_id).where(inside, ~there)).all()
            now = time.time()
            rows = [
                result_row(Result(batch.id, item.number, outcome, unrun_line(batch, item, outcome), attempts=0, at=now))
                for item in unrun
            ]
            if rows:
                connection.execute(self._database.insert_new(batch_results), rows)
            if not self._queue.finish_job(
                connection, batch.id, job.first, job.last
            ):  # its items were never stored: the import was stopped
                connection.execute(
                    update(batch_jobs).where(jobs.batch_id == batch.id, jobs.first == job.first).values(state=DONE)
                )
            return True

        return await self._database.write(work)

    # --- results

    async def lines(self, batch: Batch, succeeded: bool | None) -> AsyncIterator[bytes]:
        """Yields the lines of a batch's results so far, page by page: the successful ones, the others, or all (None)."""
        results, after = batch_results.c, -1
        which = [] if succeeded is None else [results.outcome == "succeeded" if succeeded else results.outcome != "succeeded"]
        while True:
            question = select(results.number, results.line).where(results.batch_id == batch.id, results.number > after, *which)
            rows = await self._database.fetch(question.order_by(results.number).limit(PAGE_ROWS))
            if not rows:
                return
            after = rows[-1].number
            yield b"".join(bytes(row.line) + b"\n" for row in rows)


def _of(table: Table, owner: str | None) -> ColumnElement[bool]:
    """Returns the condition for rows of this owner. None is the operator, who sees all."""
    return table.c.owner == owner if owner is not None else table.c.owner == table.c.owner


def _is_busy() -> ColumnElement[bool]:
    """Returns the condition for batches that have an item that runs or waits to run, or whose input file is being read. It is a
    column of the query for the batch, because a batch that is closed between two queries would look as if all its items ran."""
    left = and_(batch_jobs.c.batch_id == batches.c.id, batch_jobs.c.state.not_in((CLOSED, DONE)))
    reading = and_(batches.c.process.is_not(None), batches.c.lease > time.time())
    return or_(select(batch_jobs.c.first).where(left).exists(), reading)
