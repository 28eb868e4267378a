"""The worker with a runner of the test's own: slots, retries, lost jobs, and databases that do not answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from batch_durable.queued import Queued, line, queued
from store.turns import asynchronous
from streamglot.batch.durable import worker as worker_module
from streamglot.batch.durable.background import BackgroundTraffic
from streamglot.batch.durable.model import OPEN, RUNNING, Answer, Batch, Item
from streamglot.batch.durable.worker import Worker
from streamglot.store.database import StoreUnavailable
from streamglot.tasks import TaskSupervisor
from waiting import soon


class FakeRunner:
    """Answers what ``answer`` says, and counts the runs of each item. Items wait for ``go``."""

    def __init__(self, answer: Callable[[Item, int], Answer] = lambda item, run: Answer(200, b"{}")) -> None:
        self.runs: Counter[str] = Counter()
        self.open = self.most_open = 0
        self.go = asyncio.Event()
        self.go.set()
        self._answer = answer

    async def run(self, batch: Batch, item: Item, request_id: str) -> Answer:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        self.runs[str(item.custom_id)] += 1
        try:
            await self.go.wait()
            await asyncio.sleep(0)
            return self._answer(item, self.runs[str(item.custom_id)])
        finally:
            self.open -= 1


@asynccontextmanager
async def working(one: Queued, runner: FakeRunner, **options: Any) -> AsyncIterator[Worker]:
    tasks = TaskSupervisor(lambda line: None)
    settings: dict[str, Any] = {"concurrency": 4, "attempts": 3, **options}
    worker = Worker(one.queue, runner, BackgroundTraffic(settings["concurrency"]), tasks, **settings)
    worker.start()
    try:
        yield worker
    finally:
        runner.go.set()
        await worker.stop(1.0)
        await tasks.close()


async def finished(one: Queued, batch: Batch) -> Batch:
    async def over() -> bool:
        await one.catalog.settle(batch.id)
        return (await one.now(batch)).ended is not None

    async with asyncio.timeout(60):
        while not await over():
            await asyncio.sleep(0.01)
    return await one.now(batch)


@asynchronous
async def test_every_item_is_run_once_within_the_slots(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.imported(line(number) for number in range(300))
        runner = FakeRunner()
        async with working(one, runner):
            done = await finished(one, batch)
        assert set(runner.runs.values()) == {1}
        assert len(runner.runs) == 300
        assert runner.most_open <= 4
        assert done.totals is not None
        assert done.totals.succeeded == 300


@asynchronous
async def test_items_that_may_succeed_later_run_again(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "FIRST_PAUSE", 0.001)

    def answer(item: Item, run: int) -> Answer:
        if item.custom_id == "passes" and run < 3:
            return Answer(503, b"{}", retry=True)
        if item.custom_id == "fails":
            return Answer(503, b"{}", retry=True)
        if item.custom_id == "limited" and run < 8:
            return Answer(429, b"{}", retry=True, throttled=True, retry_after=0.001)
        return Answer(400, b"{}") if item.custom_id == "refused" else Answer(200, b"{}")

    async with queued(url, tmp_path) as one:
        batch = await one.imported([line(name) for name in ("passes", "fails", "limited", "refused", "plain")])
        runner = FakeRunner(answer)
        async with working(one, runner):
            done = await finished(one, batch)
        assert runner.runs == {"passes": 3, "fails": 3, "limited": 8, "refused": 1, "plain": 1}
        assert done.totals is not None
        assert (done.totals.succeeded, done.totals.errored, done.totals.retried) == (3, 2, 3)


@asynchronous
async def test_a_call_holds_its_slot_until_its_result_is_committed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "DATABASE_PAUSE", 0.01)
    async with queued(url, tmp_path) as one:
        batch = await one.imported(line(number) for number in range(50))
        commit, away = one.queue.commit, True

        async def refused(*arguments: Any) -> Any:
            if away:
                raise StoreUnavailable("the database is away")
            return await commit(*arguments)

        monkeypatch.setattr(one.queue, "commit", refused)
        runner = FakeRunner()
        async with working(one, runner) as worker:
            await soon(lambda: sum(runner.runs.values()) == 4)
            await asyncio.sleep(0.05)
            assert (sum(runner.runs.values()), worker.busy) == (4, 4), "no call is made whose result could be lost"
            away = False
            await finished(one, batch)
        assert set(runner.runs.values()) == {1}


@asynchronous
async def test_a_fault_of_ours_in_a_commit_loses_no_result(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.imported(line(number) for number in range(20))
        commit, faults = one.queue.commit, iter([ValueError("a fault")])

        async def faulty(*arguments: Any) -> Any:
            for fault in faults:
                raise fault
            return await commit(*arguments)

        monkeypatch.setattr(one.queue, "commit", faulty)
        runner = FakeRunner()
        async with working(one, runner):
            done = await finished(one, batch)
        assert set(runner.runs.values()) == {1}
        assert done.totals is not None
        assert done.totals.succeeded == 20


@asynchronous
async def test_a_fault_in_one_item_is_the_result_of_that_item(url: str, tmp_path: Path) -> None:
    def answer(item: Item, _run: int) -> Answer:
        if item.custom_id == "7":
            raise ValueError("a fault")
        return Answer(200, b"{}")

    async with queued(url, tmp_path) as one:
        batch = await one.imported(line(number) for number in range(10))
        async with working(one, FakeRunner(answer)):
            done = await finished(one, batch)
        assert done.totals is not None
        assert (done.totals.succeeded, done.totals.errored) == (9, 1)
        assert [entry["response"]["status_code"] for entry in await one.lines_of(done, False)] == [500]


@asynchronous
async def test_a_job_whose_claim_was_not_received_is_released(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.imported(line(number) for number in range(10))
        claimed = await one.queue.claim()  # the connection broke before the worker heard of it
        assert claimed is not None
        runner = FakeRunner()
        async with working(one, runner) as worker:
            worker.wake()
            done = await finished(one, batch)
        assert set(runner.runs.values()) == {1}
        assert done.status == "completed"


@asynchronous
async def test_a_worker_that_stops_gives_back_what_has_not_ended(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        await one.imported(line(number) for number in range(10))
        runner = FakeRunner()
        runner.go.clear()
        async with working(one, runner) as worker:
            await soon(lambda: runner.open == 4)
            assert RUNNING in [row.state for row in await one.database.fetch("SELECT state FROM batch_jobs")]
            await worker.stop(0.01)
            assert {row.state for row in await one.database.fetch("SELECT state FROM batch_jobs")} == {OPEN}


@asynchronous
async def test_a_cancelled_batch_starts_nothing_more(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.imported(line(number) for number in range(100))
        runner = FakeRunner()
        runner.go.clear()
        async with working(one, runner) as worker:
            await soon(lambda: runner.open == 4)
            await one.catalog.close_batch(batch.id, "cancelled")
            worker.drop_batch(batch.id)
            runner.go.set()
            done = await finished(one, batch)
        assert done.status == "cancelled"
        assert sum(runner.runs.values()) == 4, "those under way may end"
        assert done.totals is not None
        assert (done.totals.succeeded, done.totals.canceled) == (4, 96)


@asynchronous
async def test_a_worker_beside_live_requests_takes_small_steps(url: str, tmp_path: Path) -> None:
    async with queued(url, tmp_path) as one:
        batch = await one.imported(line(number) for number in range(10))
        runner = FakeRunner()
        async with working(one, runner, live=lambda: True):
            await finished(one, batch)
        assert runner.most_open == 1, "a call that ends at once has ended before the next one starts"
