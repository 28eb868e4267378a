"""Pruning frees space, and never frees spent budgets."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from store.turns import answer, ask, asynchronous, begin, take, user
from streamglot.errors import RequestError
from streamglot.store import Finished, Store, StoreSettings, prune_turns


@pytest.mark.usefixtures("no_periodic_steps")
@asynchronous
async def test_pruning_shrinks_the_file(tmp_path: Path) -> None:
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path / 'store.db'}"))
    for number in range(20):
        await take(store, ask(user(os.urandom(600_000).hex())), answer("y"), name=f"{number}")
    await store.writer.flush()
    await prune_turns(store.database)
    files = [tmp_path / "store.db", tmp_path / "store.db-wal"]
    before = [file.stat().st_size for file in files]
    assert before[0] > 10_000_000
    assert before[1] == 0
    assert (await prune_turns(store.database, older_than=-60)).turns == 20
    assert files[0].stat().st_size < 1_000_000
    assert files[1].stat().st_size == 0
    assert (await store.database.fetch("PRAGMA freelist_count"))[0][0] == 0
    await store.close()


@asynchronous
async def test_turns_that_count_for_a_budget_are_not_pruned(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    await store.keys.add("ever", budget_cost=1.0)
    await store.keys.add("daily", budget_tokens=50, budget_seconds=86_400.0)
    await store.keys.add("free")
    await store.keys.add("gone", budget_tokens=1)
    await store.keys.revoke("gone")
    for caller in ("free", "gone", "daily", "ever"):
        turn = await begin(store, ask(user(caller)), caller, at=time.time() - (100_000 if caller == "daily" else 90_000))
        turn.finish(Finished(ending="end", response=answer("x")))
    await store.writer.flush()
    assert (await prune_turns(store.database, older_than=1000)).turns == 4  # outside the period, or without cost
    for caller in ("daily", "ever"):
        await take(store, ask(user(caller)), answer("x"), caller=caller, cost=2.0)
    await store.writer.flush()
    with pytest.raises(RequestError, match=r"nothing was removed.*'daily', 'ever'.*--forget-spending"):
        await prune_turns(store.database, older_than=-60)
    oldest = await begin(store, ask(user("free")), "free", at=1.0)
    oldest.finish(Finished(ending="end", response=answer("x")))
    await store.writer.flush()
    with pytest.raises(RequestError, match=r"1 turns were removed, then pruning stopped.*'daily'"):
        await prune_turns(store.database, max_bytes=0)
    assert [over.key.name for over in await store.keys.budget_exceeded()] == ["ever"]
    assert (await prune_turns(store.database, older_than=-60, forget_spending=True)).turns == 2
    await store.close()
