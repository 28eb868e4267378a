"""Input files: every line becomes an item or a fault with its number, in ranges of one upstream, without growing with the
file."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import pytest

from batch_durable.queued import fault_codes, line, queued, route
from store.servers import Postgres
from store.tables import counted
from store.turns import asynchronous
from streamglot.batch.durable.importer import LineChecker, LineSplitter
from streamglot.batch.durable.model import FILE_API, MESSAGE_API, RANGE_ITEMS
from streamglot.errors import LimitExceeded, StreamglotError
from streamglot.store.database.sql import assignments
from waiting import WAIT_SECONDS

pytestmark = pytest.mark.usefixtures("patient_writers")

LINES = [b'{"a": 1}', b"", b"  ", b'{"b": "\xc3\xa9"}', b"x" * 30, b"last"]


def split(data: bytes, size: int) -> list[tuple[int, bytes | None]]:
    splitter = LineSplitter(20)
    found = [one for start in range(0, len(data), size) for one in splitter.feed(data[start : start + size])]
    return found + splitter.close()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_are_the_same_for_any_cut(size: int) -> None:
    expected = [(number, None if len(one) > 20 else one) for number, one in enumerate(LINES, 1)]
    assert split(b"\n".join(LINES), size) == expected
    assert split(b"\xef\xbb\xbf" + b"\n".join(LINES) + b"\n", size) == expected, (
        "a byte order mark and a last line end change nothing"
    )


@pytest.mark.parametrize(
    ("given", "code", "param"),
    [
        (b"[1]", "invalid_json_line", None),
        (b"\xff", "invalid_json_line", None),
        (b'{"custom_id": 7}', "missing_required_parameter", "custom_id"),
        (b'{"custom_id": ""}', "missing_required_parameter", "custom_id"),
        (line("x" * 600), "invalid_custom_id", "custom_id"),
        (line("a\u0000b"), "invalid_custom_id", "custom_id"),
        (line("a", method="GET"), "invalid_method", "method"),
        (line("a", url="/v1/embeddings"), "mismatched_endpoint", "url"),
        (line("a", body=[]), "invalid_request", "body"),
        (line("a", body={}), "missing_required_parameter", "body.model"),
        (line("a", "unknown"), "model_not_found", "body.model"),
        (None, "request_too_large", None),
    ],
)
def test_a_bad_line_says_what_is_wrong_with_it(given: bytes | None, code: str, param: str | None) -> None:
    fault = LineChecker(FILE_API, "/v1/chat/completions", 100, route).check(12, given).fault
    assert fault is not None
    assert (fault.line, fault.code, fault.param) == (12, code, param)


def test_a_message_batch_has_params_in_place_of_a_body() -> None:
    checker = LineChecker(MESSAGE_API, "/v1/messages", 100, route)
    entry = checker.check(1, b'{"custom_id": "a", "params": {"model": "m"}}')
    assert (entry.fault, entry.body, entry.upstream) == (None, b'{"model": "m"}', "m")
    fault = checker.check(1, b'{"custom_id": "a", "body": {"model": "m"}}').fault
    assert fault is not None
    assert fault.param == "params"


@asynchronous
async def test_ranges_have_one_upstream_each(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        models = ("first", "second", "third")
        batch = await one.imported(line(number, models[number % 3]) for number in range(1000))
        assert batch.total == 1000
        jobs = await one.database.fetch("SELECT * FROM batch_jobs ORDER BY first")
        assert {job.upstream for job in jobs} == set(models)
        assert [job.first for job in jobs] == [0, *(job.last for job in jobs[:-1])], "the ranges leave no gap"
        assert jobs[-1].last == 1000
        assert max(job.last - job.first for job in jobs) == RANGE_ITEMS
        for job in jobs:
            inside = "SELECT body FROM batch_items WHERE number >= :first AND number < :last"
            rows = await one.database.fetch(inside, first=job.first, last=job.last)
            assert {json.loads(row.body)["model"] for row in rows} == {job.upstream}


@asynchronous
async def test_bad_lines_are_reported_and_the_others_run(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.imported([line("a"), b"nonsense", line("b"), line("a"), line("c", "unknown"), b"y" * 20_000])
        assert (batch.status, batch.total) == ("in_progress", 6)
        assert sorted(fault_codes(batch.errors), key=str) == [
            (2, "invalid_json_line"),
            (4, "duplicate_custom_id"),
            (5, "model_not_found"),
            (6, "request_too_large"),
        ]
        faults = await one.lines_of(batch, False)
        assert sorted(str(fault["custom_id"]) for fault in faults) == ["None", "None", "None", "c"]
        assert {fault["error"]["line"] for fault in faults} == {2, 4, 5, 6}
        totals = await one.queue.totals(batch)
        assert (totals.errored, totals.done) == (4, 4)
        claimed = []
        while (job := await one.queue.claim()) is not None:
            claimed += [item.custom_id for item in job.items]
        assert sorted(map(str, claimed)) == ["a", "b"]


@asynchronous
async def test_duplicates_far_apart_are_found(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.imported([*(line(number) for number in range(2500)), line(3), line(2400)])
        assert fault_codes(batch.errors) == [(2501, "duplicate_custom_id"), (2502, "duplicate_custom_id")]
        assert "line 4;" in batch.errors[0].message
        assert await counted(one.database, "batch_items") == 2502


@asynchronous
async def test_one_bad_line_fails_the_batch_where_that_is_wanted(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path, strict=True) as one:
        batch = await one.imported([line("a"), b"nonsense"])
        assert batch.status == "failed"
        assert batch.ended is not None
        assert fault_codes(batch.errors) == [(2, "invalid_json_line")]
        assert await one.database.fetch("SELECT * FROM batch_items") == []


@asynchronous
async def test_too_many_requests_fail_the_batch(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path, max_items=10) as one:
        batch = await one.imported(line(number) for number in range(11))
        assert (batch.status, fault_codes(batch.errors)) == ("failed", [(11, "too_many_requests")])


@asynchronous
async def test_an_import_whose_process_died_starts_again(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one, queued(url, tmp_path) as two:
        batch = await one.add(line(number) for number in range(150))
        claimed = await one.importer.claim()
        assert claimed is not None
        assert await two.importer.claim() is None, "one process reads the file"
        await one.importer.run(claimed)
        dead = {"status": "validating", "process": "dead", "lease": 1.0}  # it died just before it had finished
        await one.database.execute(f"UPDATE batches SET {assignments(dead)}", **dead)
        again = await two.importer.claim()
        assert again is not None
        await two.importer.run(again)
        now = await two.now(batch)
        assert (now.status, now.total, now.errors) == ("in_progress", 150, [])
        assert await counted(one.database, "batch_items") == 150


@asynchronous
@pytest.mark.parametrize("broken", [False, True])
async def test_an_import_that_another_process_took_over_writes_nothing_more(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    async with queued(url, tmp_path) as one, queued(url, tmp_path) as two:
        batch = await one.add(line(number) for number in range(10))
        claimed = await one.importer.claim()
        assert claimed is not None
        chunks = one.storage.chunks

        async def taken_over(name: str) -> AsyncIterator[bytes]:
            async for chunk in chunks(name):
                yield chunk
            await one.database.execute("UPDATE batches SET lease = 1.0")
            again = await two.importer.claim()
            assert again is not None
            await two.importer.run(again)
            if broken:
                raise StreamglotError("the file cannot be read")

        monkeypatch.setattr(one.storage, "chunks", taken_over)
        await one.importer.run(claimed)
        now = await two.now(batch)
        assert (now.status, now.total, now.errors) == ("in_progress", 10, [])
        assert await counted(one.database, "batch_items") == 10


@asynchronous
async def test_a_cancel_that_is_committed_while_items_are_stored_stops_the_import(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL runs both at once: the cancel holds the row of the batch when the import asks for it."""
    monkeypatch.setattr("streamglot.store.database.LOCK_WAIT_SECONDS", WAIT_SECONDS)  # how long a writer waits for a lock
    url = await postgres.database()
    async with queued(url, tmp_path) as one:
        batch = await one.add(line(number) for number in range(10))
        claimed = await one.importer.claim()
        assert claimed is not None
        other = await asyncpg.connect(url)
        try:
            cancel = other.transaction()
            await cancel.start()
            await other.execute("UPDATE batches SET closing = 'cancelled', status = 'cancelling'")
            importing = asyncio.create_task(one.importer.run(claimed))
            blocked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"
            while not importing.done() and not await other.fetchval(blocked):
                await asyncio.sleep(0)
            await cancel.commit()
            await importing
        finally:
            await other.close()
        assert await one.database.fetch("SELECT * FROM batch_jobs") == []
        ended = await one.catalog.settle(batch.id)
        assert ended is not None
        assert (ended.status, ended.total) == ("cancelled", 0)


@asynchronous
async def test_a_batch_that_is_cancelled_while_it_is_read_ends_as_cancelled(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.add(line(number) for number in range(10))
        claimed = await one.importer.claim()
        assert claimed is not None
        await one.catalog.close_batch(batch.id, "cancelled")
        await one.importer.run(claimed)
        ended = await one.catalog.settle(batch.id)
        assert ended is not None
        assert ended.status == "cancelled"


@asynchronous
async def test_a_cancelled_batch_does_not_end_before_its_import(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.add(line(number) for number in range(10))
        assert await one.importer.claim() is not None
        await one.catalog.close_batch(batch.id, "cancelled")
        assert await one.catalog.settle(batch.id) is None, "its file is being read"
        await one.database.execute("UPDATE batches SET lease = :past", past=time.time() - 1)
        ended = await one.catalog.settle(batch.id)
        assert ended is not None, "the process that read it counts as dead"
        assert ended.status == "cancelled"


@asynchronous
async def test_a_file_on_another_machine_is_left_to_a_process_that_has_it(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path / "here") as one, queued(url, tmp_path / "there") as two:
        await one.add([line("a")])
        assert await two.importer.claim() is None
        assert await one.importer.claim() is not None


@asynchronous
async def test_a_batch_whose_file_was_deleted_fails(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.add([line("a")])
        await one.catalog.remove_file(batch.input_file)
        await one.storage.remove(batch.input_file)
        assert await one.importer.claim() is None
        now = await one.now(batch)
        assert (now.status, fault_codes(now.errors)) == ("failed", [(None, "file_unreadable")])


@asynchronous
async def test_a_batch_whose_file_cannot_be_read_fails(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.add([line("a")])
        claimed = await one.importer.claim()
        assert claimed is not None
        await one.storage.remove(batch.input_file)
        await one.importer.run(claimed)
        now = await one.now(batch)
        assert (now.status, fault_codes(now.errors)) == ("failed", [(None, "file_unreadable")])


@asynchronous
async def test_a_file_above_the_limit_leaves_nothing_behind(tmp_path: Path) -> None:
    from streamglot.batch.durable.storage import DirectoryStorage

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 100

    storage = DirectoryStorage(tmp_path / "files")
    with pytest.raises(LimitExceeded, match="max_file_bytes"):
        await storage.save("one", chunks(), 450)
    assert list((tmp_path / "files").iterdir()) == []
    assert await storage.save("two", chunks(), 500) == 500
    assert b"".join([chunk async for chunk in storage.chunks("two")]) == b"x" * 500
    assert (tmp_path / "files" / "two").stat().st_mode & 0o077 == 0
    await storage.remove("two")
    assert not await storage.exists("two")


@asynchronous
async def test_postgresql_gets_the_items_of_a_transaction_in_one_statement(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inserted: list[str] = []
    execute = asyncpg.Connection.execute

    async def noted(connection: asyncpg.Connection, sql: str, *values: Any, **more: Any) -> Any:
        inserted.extend(table for table in ("batch_items", "batch_results") if sql.startswith(f"INSERT INTO {table}"))
        return await execute(connection, sql, *values, **more)

    monkeypatch.setattr(asyncpg.Connection, "execute", noted)
    async with queued(await postgres.database(), tmp_path) as one:
        batch = await one.imported([line(number) for number in range(3 * RANGE_ITEMS + 1)])
        assert batch.total == 3 * RANGE_ITEMS + 1
    assert inserted == ["batch_items"]
