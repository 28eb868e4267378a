"""The queue on both databases: jobs are claimed once, results are written once, dead owners lose their jobs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from batch_durable.queued import line, queued, results_of
from store.tables import add
from store.turns import asynchronous
from streamglot.batch.durable.model import RANGE_ITEMS, Batch, Totals
from streamglot.batch.durable.queue import LEASE_SECONDS
from streamglot.store.database.sql import Connection
from streamglot.store.processes import pid_scope

pytestmark = pytest.mark.usefixtures("patient_writers")


@asynchronous
async def test_every_item_is_claimed_once_by_two_processes(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one, queued(url, tmp_path) as two:
        batch = await one.imported(line(number) for number in range(1050))
        assert (batch.status, batch.total) == ("in_progress", 1050)
        seen: list[int] = []
        size_at: dict[int, int] = {}

        async def work(which: int) -> None:
            own = (one, two)[which]
            while (job := await own.queue.claim()) is not None:
                seen.extend(item.number for item in job.items)
                size_at[job.first] = job.last - job.first
                await own.queue.commit(results_of(job), [job])

        await asyncio.gather(work(0), work(1))
        assert sorted(seen) == list(range(1050))
        sizes = [size_at[first] for first in sorted(size_at)]
        assert max(sizes) <= RANGE_ITEMS
        assert sizes[0] > sizes[-1], "the ranges become smaller towards the end"
        ended = await two.catalog.settle(batch.id)
        assert ended is not None
        assert ended.status == "completed"
        assert ended.totals is not None
        assert (ended.totals.succeeded, ended.totals.input_tokens, ended.totals.output_tokens) == (1050, 2100, 3150)
        assert [one["custom_id"] for one in await two.lines_of(ended, True)] == list(map(str, range(1050)))


@asynchronous
async def test_the_first_result_of_an_item_stays(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one, queued(url, tmp_path) as two:
        batch = await one.imported([line("a"), line("b")])
        job = await one.queue.claim()
        assert job is not None
        first, second = results_of(job), results_of(job)
        second[0].line = b'{"custom_id": "later"}'
        await one.queue.commit(first[:1])
        await two.queue.commit(second[:1])
        assert [one["custom_id"] for one in await one.lines_of(batch, True)] == ["a"]
        totals = await one.queue.totals(await one.now(batch))
        assert (totals.succeeded, totals.done) == (1, 1)


@asynchronous
async def test_results_can_be_read_and_counted_while_a_batch_runs(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.imported(line(number) for number in range(400))
        job = await one.queue.claim()
        assert job is not None
        results = results_of(job, lambda number: number % 10 != 0)
        await one.queue.commit(results[:50])
        totals = await one.queue.totals(await one.now(batch))
        assert (totals.succeeded, totals.errored) == (45, 5)
        assert len(await one.lines_of(batch, True)) == 45
        assert len(await one.lines_of(batch, False)) == 5
        assert totals.output_bytes == sum(len(result.line) + 1 for result in results[:50] if result.outcome == "succeeded")


@asynchronous
async def test_a_job_continues_where_its_dead_owner_stopped(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        await one.imported(line(number) for number in range(RANGE_ITEMS))
        dead = {"id": "dead", "place": pid_scope(), "pid": 2**22 + 1, "born": "1", "started": 1.0, "seen": time.time()}
        await add(one.database, "processes", dead)
        first = await one.queue.claim()
        assert first is not None
        await one.queue.commit(results_of(first)[:7])
        await one.database.execute("UPDATE batch_jobs SET process = 'dead' WHERE first = :first", first=first.first)
        assert await one.queue.recover() == 1
        again = await one.queue.claim()
        assert again is not None
        assert again.first == first.first
        assert [item.number for item in again.items] == [item.number for item in first.items][7 : 7 + len(again.items)]


@asynchronous
async def test_a_process_elsewhere_loses_its_jobs_when_its_lease_is_over(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        await one.imported([line("a")])
        elsewhere = {"id": "far", "place": "far away", "pid": 1, "born": "1", "started": 1.0, "seen": time.time()}
        await add(one.database, "processes", elsewhere)
        assert await one.queue.claim() is not None
        await one.database.execute("UPDATE batch_jobs SET process = 'far'")
        assert await one.queue.recover() == 0
        await one.database.execute("UPDATE batch_jobs SET lease = :past", past=time.time() - 1)
        assert await one.queue.recover() == 1
        assert await one.queue.claim() is not None


@asynchronous
async def test_leases_are_renewed_and_lost_jobs_are_reported(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.imported(line(number) for number in range(2))
        job, other = await one.queue.claim(), await one.queue.claim()
        assert job is not None
        assert other is not None
        keys = {(batch.id, job.first), (batch.id, other.first)}
        await one.database.execute("UPDATE batch_jobs SET process = 'another' WHERE first = :first", first=other.first)
        ours, closing = await one.queue.renew(keys)
        assert (ours, closing) == ({(batch.id, job.first)}, set())
        row = (await one.database.fetch("SELECT * FROM batch_jobs WHERE first = :first", first=job.first))[0]
        assert row.lease > time.time() + LEASE_SECONDS / 2
        await one.catalog.close_batch(batch.id, "cancelled")
        assert (await one.queue.renew(keys))[1] == {batch.id}


@asynchronous
async def test_upstreams_that_take_no_calls_are_passed_over(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        await one.imported([*(line(f"a{n}", "slow") for n in range(3)), *(line(f"b{n}", "fast") for n in range(3))])
        job = await one.queue.claim({"slow"})
        assert job is not None
        assert job.upstream == "fast"
        assert {item.custom_id for item in job.items} <= {"b0", "b1", "b2"}


@asynchronous
async def test_a_small_batch_does_not_wait_behind_a_large_one(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        large = await one.imported(line(number) for number in range(10 * RANGE_ITEMS))
        first = await one.queue.claim()
        small = await one.imported([line("only")])
        second = await one.queue.claim()
        assert first is not None
        assert second is not None
        assert (first.batch.id, second.batch.id) == (large.id, small.id)


@asynchronous
async def test_a_cancelled_batch_reports_every_item_once(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.imported(line(number) for number in range(250))
        job = await one.queue.claim()
        assert job is not None
        await one.queue.commit(results_of(job)[:10])
        assert await one.catalog.close_batch(batch.id, "cancelled")
        assert not await one.catalog.close_batch(batch.id, "expired")
        assert (await one.now(batch)).status == "cancelling"
        assert await one.queue.claim() is None
        assert await one.catalog.settle(batch.id) is None, "a job of it is under way"
        await one.queue.give_back([(batch.id, job.first)])
        ended = await one.catalog.settle(batch.id)
        assert ended is not None
        assert ended.status == "cancelled"
        assert ended.totals is not None
        assert (ended.totals.succeeded, ended.totals.canceled) == (10, 240)
        failed = await one.lines_of(ended, False)
        assert {entry["error"]["code"] for entry in failed} == {"batch_cancelled"}
        names = [entry["custom_id"] for entry in [*await one.lines_of(ended, True), *failed]]
        assert sorted(names, key=int) == list(map(str, range(250)))
        late = results_of(job)[20:21]
        assert await one.queue.commit(late) == 0, "a result that comes after the end is dropped"


@asynchronous
async def test_a_job_that_is_done_can_be_finished_again(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        await one.imported(line(number) for number in range(2))
        job = await one.queue.claim(maximum=2)
        assert job is not None

        async def finish(connection: Connection) -> bool:
            return await one.queue.finish_job(connection, job.batch.id, job.first, job.last)

        assert not await one.database.write(finish), "no item has a result"
        await one.queue.commit(results_of(job), [job])
        assert await one.database.write(finish), "the answer to the first commit may have been lost"
        totals = await one.queue.totals(await one.now(job.batch))
        assert (totals.succeeded, totals.input_tokens) == (len(job.items), 2 * len(job.items))


@asynchronous
async def test_a_batch_is_finalizing_while_its_results_are_counted(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with queued(url, tmp_path) as here:
        batch = await here.imported([line(1)])
        job = await here.queue.claim()
        assert job is not None
        await here.queue.commit(results_of(job), [job])
        seen: list[str] = []
        totals = here.queue.totals

        async def counted(batch: Batch) -> Totals:
            seen.append((await here.now(batch)).status)
            return await totals(batch)

        monkeypatch.setattr(here.queue, "totals", counted)
        assert await here.catalog.settle(batch.id) is not None
        assert seen == ["finalizing"]
        ended = await here.now(batch)
        assert ended.status == "completed"
        assert ended.times["in_progress"] <= ended.times["finalizing"] <= ended.times["completed"]


@asynchronous
@pytest.mark.parametrize("status", ["cancelled", "expired"])
async def test_a_batch_that_is_closed_while_its_state_is_read_does_not_end_as_completed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.imported(line(number) for number in range(3))
        fetch = one.database.fetch

        async def closed_after_the_first_query(*asked: Any, **values: Any) -> Any:  # Any: the rows are passed on
            rows = await fetch(*asked, **values)
            monkeypatch.setattr(one.database, "fetch", fetch)
            assert await one.catalog.close_batch(batch.id, status)
            return rows

        monkeypatch.setattr(one.database, "fetch", closed_after_the_first_query)
        assert await one.catalog.settle(batch.id) is None
        ended = await one.catalog.settle(batch.id)
        assert ended is not None
        assert ended.status == status
        assert {entry["error"]["code"] for entry in await one.lines_of(ended, False)} == {f"batch_{status}"}


@asynchronous
async def test_a_batch_that_is_cancelled_while_its_results_are_counted_ends_as_cancelled(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.imported([line(1)])
        job = await one.queue.claim()
        assert job is not None
        await one.queue.commit(results_of(job), [job])
        totals = one.queue.totals

        async def cancelled(batch: Batch) -> Totals:
            await one.catalog.close_batch(batch.id, "cancelled")
            return await totals(batch)

        monkeypatch.setattr(one.queue, "totals", cancelled)
        assert await one.catalog.settle(batch.id) is None
        ended = await one.catalog.settle(batch.id)
        assert ended is not None
        assert (ended.status, ended.totals.succeeded if ended.totals else 0) == ("cancelled", 1)


@asynchronous
async def test_an_expired_batch_reports_what_did_not_run(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.imported(line(number) for number in range(3))
        assert await one.catalog.close_batch(batch.id, "expired")
        ended = await one.catalog.settle(batch.id)
        assert ended is not None
        assert (ended.status, ended.totals.expired if ended.totals else 0) == ("expired", 3)
        assert {entry["error"]["code"] for entry in await one.lines_of(ended, False)} == {"batch_expired"}


@asynchronous
async def test_a_removed_batch_leaves_nothing_behind(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.imported(line(number) for number in range(30))
        await one.catalog.remove_batch(batch.id)
        assert await one.catalog.batch(batch.id, None) is None
        assert await one.database.fetch("SELECT * FROM batch_items") == []
        assert await one.database.fetch("SELECT * FROM batch_jobs") == []
