"""The background tasks of the store survive their own faults and log them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from store.turns import answer, ask, asynchronous, begin, user
from streamglot.store import DatabaseBuffer, Finished, Store, StoreSettings
from streamglot.store import store as stores
from streamglot.store.rows import Entry
from streamglot.store.turns import mint_id
from streamglot.tasks import TaskSupervisor
from waiting import soon

Lines = list[Mapping[str, Any]]


def broken() -> None:
    raise ValueError("a fault in a callback")


async def keep_one(store: Store, name: str) -> None:
    turn = await begin(store, ask(user(name)), name=name)
    turn.finish(Finished(ending="end", response=answer("x")))


@asynchronous
async def test_a_writer_continues_after_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: Lines = []
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db"), logged.append)
    keep = store.writer._commit_batch
    faults = 0

    async def fail_once(batch: list[Entry]) -> None:
        nonlocal faults
        faults += 1
        if faults == 1:
            raise RuntimeError("nobody foresaw this")
        await keep(batch)

    monkeypatch.setattr(store.writer, "_commit_batch", fail_once)
    await keep_one(store, "one")
    await store.writer.flush()
    await keep_one(store, "two")
    await store.writer.flush()
    report = store.report()
    assert (report.queued, report.queued_bytes) == (0, 0)
    assert report.written["endings"] >= 1
    assert any("nobody foresaw this" in line["message"] for line in logged if line["event"] == "store_unfit")
    await store.close()


@asynchronous
async def test_the_periodic_task_survives_a_cancelled_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(stores, "SEEN_SECONDS", 0.0)
    logged: Lines = []
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db"), logged.append)
    seen = 0

    async def cancelled() -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            raise asyncio.CancelledError

    monkeypatch.setattr(store.process, "seen", cancelled)
    await soon(lambda: seen > 1)
    assert [line["task"] for line in logged if line["event"] == "task_failed"] == ["store tick"]
    await store.close()


@pytest.mark.usefixtures("patient_writers")
@asynchronous
async def test_a_stream_whose_stop_fails_does_not_affect_others(url: str) -> None:
    """They are asked to stop from another process; one task looks for these requests."""
    logged: Lines = []
    one, two = [await Store.open(StoreSettings(url=url)) for _ in range(2)]
    mine = DatabaseBuffer(one.database, one.writer, log=logged.append)
    theirs = DatabaseBuffer(two.database, two.writer)
    stopped = asyncio.Event()
    names = [mint_id("turn_", 0.0) for _ in range(6)]
    for name in names:
        mine.open(name, "", broken, broken)
    last = mint_id("turn_", 0.0)
    mine.open(last, "", stopped.set, broken)
    await one.writer.flush()
    for name in (*names, last):
        assert await theirs.stop(name)
    await stopped.wait()
    assert {line["task"] for line in logged} <= {"stream stop", "stream wanted"}
    await mine.close()
    for store in (one, two):
        await store.close()


@asynchronous
async def test_a_valkey_stream_whose_stop_fails_does_not_affect_others(valkey_url: str) -> None:
    from streamglot.store import ValkeyBuffer

    logged: Lines = []
    mine, theirs = ValkeyBuffer(valkey_url, log=logged.append), ValkeyBuffer(valkey_url)
    assert isinstance(mine._tasks, TaskSupervisor)
    stopped = asyncio.Event()
    names = [mint_id("turn_", 0.0) for _ in range(3)]
    for name in names:
        mine.open(name, "", broken, broken)
    last = mint_id("turn_", 0.0)
    mine.open(last, "", stopped.set, broken)
    await soon(lambda: not mine.report().queued)
    for name in (*names, last):
        assert await theirs.stop(name)
    await stopped.wait()
    assert {line["task"] for line in logged if line["event"] == "task_failed"} == {"stream stop"}
    await mine.close()
    await theirs.close()
