"""Files and batches as their owners see them: create, list, cancel, end, remove. Those of other owners are invisible."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Final

from msgspec.structs import astuple

from ...store.database import Database
from ...store.database.sql import Connection, DatabaseRow, SqlRow, SqlValue, assignments, insert_row
from .model import (
    CLOSED,
    DONE,
    HELD,
    OPEN,
    Batch,
    File,
    Outcome,
    Result,
    Totals,
    as_json,
    batch_of,
    batch_row,
    file_of,
    file_row,
    unrun_line,
)
from .queue import RESULTS, UNFINISHED, BatchQueue

PAGE_ROWS: Final = 500
"""Results that are read in one query: a page of answers of 10 KB each is 5 MB."""
REMOVED_ROWS: Final = 5_000
"""Rows that one transaction removes, so that others can write in between."""
PARTS: Final = {"batch_results": "number", "batch_items": "number", "batch_jobs": "first"}
"""The tables with many rows for each batch, and the column that numbers these."""
_FILE: Final = "SELECT * FROM files WHERE id = :id"
_OF_OWNER: Final = " AND owner = :owner"
_UPLOADED: Final = "SELECT coalesce(sum(bytes), 0) AS bytes FROM files WHERE owner = :owner AND batch_id IS NULL"
_EXPIRED_FILES: Final = f"SELECT * FROM files WHERE expires < :now LIMIT {PAGE_ROWS}"
_BATCH: Final = "SELECT * FROM batches WHERE id = :id"
_STOP_WAITING: Final = f"UPDATE batch_jobs SET state = '{CLOSED}' WHERE batch_id = :batch_id AND state IN ('{HELD}', '{OPEN}')"
_BUSY: Final = f"""
    SELECT batches.*, (
        EXISTS (SELECT 1 FROM batch_jobs WHERE batch_jobs.batch_id = batches.id AND state NOT IN ('{CLOSED}', '{DONE}'))
        OR (batches.process IS NOT NULL AND batches.lease > :now)
    ) AS busy
    FROM batches WHERE id = :id
"""
"""A batch is busy if it has an item that runs or waits to run, or if its input file is being read. It is a column of the query for the
batch, because a batch that is closed between two queries would look as if all its items ran."""
_NOTE: Final = """
    UPDATE batches SET status = :status, times = :times WHERE id = :id AND ended IS NULL AND status <> 'cancelling'
"""
_CLOSED_JOB: Final = (
    f"SELECT * FROM batch_jobs WHERE batch_id = :batch_id AND state = '{CLOSED}' ORDER BY first LIMIT 1 FOR UPDATE"
)
_DONE: Final = f"UPDATE batch_jobs SET state = '{DONE}' WHERE batch_id = :batch_id AND first = :first"
_LINES: Final = "SELECT number, line FROM batch_results WHERE batch_id = :batch_id AND number > :after"
ENDED: Final = ("failed", "completed", "expired", "cancelled")


class Catalog:
    """Files and batches in the database. ``queue`` counts the progress of batches."""

    def __init__(self, database: Database, queue: BatchQueue) -> None:
        self._database = database
        self._queue = queue

    # --- files

    async def add_file(self, file: File) -> None:
        await self._database.write(lambda connection: _insert(connection, "files", file_row(file)))

    async def uploaded_bytes(self, owner: str) -> int:
        """The size of all uploaded files of an owner. Result files have no contents of their own and do not count."""
        return int((await self._database.fetch(_UPLOADED, owner=owner))[0].bytes)

    async def file(self, id: str, owner: str | None) -> File | None:
        rows = await self._database.fetch(_FILE + _of(owner), id=id, owner=owner)
        return await self._sized(file_of(rows[0])) if rows else None

    async def list_files(self, owner: str | None, purpose: str, after: str, limit: int, newest_first: bool) -> list[File]:
        where = {name: value for name, value in (("owner", owner), ("purpose", purpose or None)) if value is not None}
        rows = await self._page("files", where, after, limit, newest_first)
        return [await self._sized(file_of(row)) for row in rows]

    async def remove_file(self, id: str) -> None:
        await self._database.execute("DELETE FROM files WHERE id = :id", id=id)

    async def expired_files(self, now: float) -> list[File]:
        rows = await self._database.fetch(_EXPIRED_FILES, now=now)
        return [file_of(row) for row in rows]

    async def _sized(self, file: File) -> File:
        """The file with its size. The size of a result file is that of its lines so far."""
        batch = await self.batch(file.batch_id, None) if file.batch_id else None
        if batch is not None:
            totals = await self._queue.totals(batch)
            file.bytes = totals.output_bytes if batch.output_file == file.id else totals.error_bytes
        return file

    # --- batches

    async def add_batch(self, batch: Batch, results: Collection[File]) -> None:
        """Adds a batch. ``results`` are the files that show its results."""

        async def work(connection: Connection) -> None:
            await _insert(connection, "batches", batch_row(batch))
            for file in results:
                await _insert(connection, "files", file_row(file))

        await self._database.write(work)

    async def batch(self, id: str, owner: str | None) -> Batch | None:
        rows = await self._database.fetch(_BATCH + _of(owner), id=id, owner=owner)
        return batch_of(rows[0]) if rows else None

    async def list_batches(
        self, owner: str | None, api: str, after: str = "", limit: int = 20, newest_first: bool = True
    ) -> list[Batch]:
        where = {"api": api} if owner is None else {"api": api, "owner": owner}
        rows = await self._page("batches", where, after, limit, newest_first)
        return [batch_of(row) for row in rows]

    async def _page(self, table: str, where: SqlRow, after: str, limit: int, newest_first: bool) -> Sequence[DatabaseRow]:
        """The page after the row ``after``. Rows of the same time are ordered by id."""
        conditions, values = [f"{name} = :{name}" for name in where], dict(where)
        before, order = ("<", "DESC") if newest_first else (">", "ASC")
        if after:
            last = await self._database.fetch(f"SELECT created FROM {table} WHERE id = :id", id=after)
            if not last:
                return []
            conditions.append(f"(created {before} :at OR created = :at AND id {before} :after)")
            values |= {"at": last[0].created, "after": after}
        chosen = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        question = f"SELECT * FROM {table} {chosen} ORDER BY created {order}, id {order} LIMIT {int(limit)}"
        return await self._database.fetch(question, **values)

    async def close_batch(self, id: str, status: str) -> bool:
        """Stops starting items.

        The batch ends as cancelled or expired when the running items have ended. Returns False if it has ended or is already
        closing.
        """
        now = time.time()

        async def work(connection: Connection) -> bool:
            row = await locked_batch(connection, id)
            if row is None or row.closing or row.ended is not None:
                return False
            batch = batch_of(row)
            shown = "cancelling" if status == "cancelled" else "finalizing"
            await update_batch(connection, id, closing=status, status=shown, times=as_json(batch.times | {shown: now}))
            await connection.execute(_STOP_WAITING, batch_id=id)
            return True

        return await self._database.write(work)

    async def remove_batch(self, id: str) -> None:
        """Removes a batch with everything that belongs to it, in several transactions."""
        await self.remove_parts(id)

        async def work(connection: Connection) -> None:
            await connection.execute("DELETE FROM files WHERE batch_id = :id", id=id)
            await connection.execute("DELETE FROM batches WHERE id = :id", id=id)

        await self._database.write(work)

    async def remove_parts(self, batch_id: str) -> None:
        """Removes the items, results and jobs of a batch."""
        for table, number in PARTS.items():
            some = f"SELECT {number} FROM {table} WHERE batch_id = :batch_id LIMIT {REMOVED_ROWS}"
            remove = f"DELETE FROM {table} WHERE batch_id = :batch_id AND {number} IN ({some})"
            while await self._database.execute(remove, batch_id=batch_id):
                pass

    async def unended(self) -> list[Batch]:
        rows = await self._database.fetch("SELECT * FROM batches WHERE ended IS NULL")
        return [batch_of(row) for row in rows]

    async def outdated(self, now: float) -> list[Batch]:
        """The batches whose results have expired."""
        outdated = "SELECT * FROM batches WHERE results_expire < :now AND ended IS NOT NULL"
        rows = await self._database.fetch(outdated, now=now)
        return [batch_of(row) for row in rows]

    # --- the end of a batch

    async def settle(self, id: str) -> Batch | None:
        """Ends a batch that has nothing left to run. Returns the batch if it has ended now.

        Items that did not run are reported as cancelled or expired, then the counts are stored. If two processes do this at once,
        they write the same. A batch that is cancelled or expires meanwhile is left to the next call.
        """
        rows = await self._database.fetch(_BUSY, id=id, now=time.time())
        if not rows or rows[0].busy or rows[0].ended is not None or rows[0].status == "validating":
            return None
        batch = batch_of(rows[0])
        if batch.status != "cancelling":
            await self._note(batch, "finalizing")
        while await self._report_unrun(batch):
            pass
        totals = await self._queue.totals(batch)
        ended = batch.closing or "completed"

        async def work(connection: Connection) -> bool:
            row = await locked_batch(connection, id)
            if row is None or row.ended is not None or row.closing != batch.closing:
                return False
            now = time.time()
            times = as_json(batch_of(row).times | {ended: now})
            await update_batch(connection, id, status=ended, ended=now, times=times, totals=as_json(totals))
            return True

        return await self.batch(id, None) if await self._database.write(work) else None

    async def fail(self, batch: Batch) -> None:
        """Ends a batch whose input is unusable. ``errors`` give the reasons."""
        now = time.time()
        values = {"status": "failed", "ended": now, "errors": as_json(batch.errors), "totals": as_json(Totals())}
        values |= {"times": as_json(batch.times | {"failed": now}), "process": None, "total": batch.total}
        await self._database.write(lambda connection: update_batch(connection, batch.id, **values))

    async def _note(self, batch: Batch, status: str) -> None:
        if batch.status != status:
            times = as_json(batch.times | {status: time.time()})
            await self._database.execute(_NOTE, id=batch.id, status=status, times=times)

    async def _report_unrun(self, batch: Batch) -> bool:
        """Writes results for the items of one closed job that did not run. Returns False if there is no such job."""
        outcome: Outcome = "expired" if batch.closing == "expired" else "canceled"

        async def work(connection: Connection) -> bool:
            jobs = await connection.fetch(_CLOSED_JOB, batch_id=batch.id)
            if not jobs:
                return False
            [job] = jobs
            unrun = await connection.fetch(UNFINISHED, batch_id=batch.id, first=job.first, last=job.last)
            now = time.time()
            rows = [
                astuple(Result(batch.id, item.number, outcome, unrun_line(batch, item, outcome), attempts=0, at=now))
                for item in unrun
            ]
            await connection.insert(RESULTS, rows)
            if not await self._queue.finish_job(
                connection, batch.id, job.first, job.last
            ):  # its items were never stored: the import was stopped
                await connection.execute(_DONE, batch_id=batch.id, first=job.first)
            return True

        return await self._database.write(work)

    # --- results

    async def lines(self, batch: Batch, succeeded: bool | None) -> AsyncIterator[bytes]:
        """The lines of a batch's results so far, page by page: the successful ones, the others, or all (None)."""
        after, outcome = -1, {None: "", True: "AND outcome = 'succeeded'", False: "AND outcome <> 'succeeded'"}[succeeded]
        while True:
            question = f"{_LINES} {outcome} ORDER BY number LIMIT {PAGE_ROWS}"
            rows = await self._database.fetch(question, batch_id=batch.id, after=after)
            if not rows:
                return
            after = rows[-1].number
            yield b"".join(bytes(row.line) + b"\n" for row in rows)


def _of(owner: str | None) -> str:
    """The condition for rows of this owner. None is the operator, who sees all."""
    return _OF_OWNER if owner is not None else ""


async def _insert(connection: Connection, table: str, row: SqlRow) -> None:
    await connection.execute(insert_row(table, row), **row)


async def locked_batch(connection: Connection, id: str) -> DatabaseRow | None:
    """The row of a batch, which no other process changes until the transaction ends."""
    rows = await connection.fetch(f"{_BATCH} FOR UPDATE", id=id)
    return rows[0] if rows else None


async def update_batch(connection: Connection, id: str, **values: SqlValue) -> None:
    await connection.execute(f"UPDATE batches SET {assignments(values)} WHERE id = :id", id=id, **values)
