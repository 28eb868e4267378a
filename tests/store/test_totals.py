"""What triggers keep: the totals of sessions, the running turns, and what keys spent. They equal the sums over all turns."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from store.turns import answer, ask, asynchronous, begin, take, user
from streamglot.messages import TokenCounts
from streamglot.store import Filter, Finished, Store, StoreSettings, prune_turns
from streamglot.store.keys import DAY, MINUTE
from streamglot.store.retention import delete_session
from streamglot.store.rows import TurnEntry, rows_of
from streamglot.store.turns import TURN, first_id, mint_id

pytestmark = pytest.mark.usefixtures("patient_lookups", "patient_writers", "no_periodic_steps")


async def check_totals(store: Store) -> None:
    """Compares what triggers kept with the sums over all turns."""
    summed = """
        SELECT turns.session_id, count(*) AS turns, max(turns.started) AS updated, coalesce(sum(endings.input_tokens), 0) AS input_tokens,
            coalesce(sum(endings.output_tokens), 0) AS output_tokens, sum(endings.cost) AS cost
        FROM turns LEFT JOIN endings ON endings.turn_id = turns.id WHERE NOT turns.probe GROUP BY turns.session_id
    """
    names = ("turns", "updated", "input_tokens", "output_tokens", "cost")
    fetch = store.database.fetch
    expected = {row.session_id: tuple(getattr(row, name) for name in names) for row in await fetch(summed)}
    kept = {row.id: tuple(getattr(row, name) for name in names) for row in await fetch("SELECT * FROM sessions WHERE turns > 0")}
    assert kept.keys() == expected.keys()
    for id, totals in kept.items():
        assert totals == pytest.approx(expected[id])
    open_turns = "SELECT id FROM turns WHERE id NOT IN (SELECT turn_id FROM endings)"
    assert {row.id for row in await fetch(open_turns)} == {row.turn_id for row in await fetch("SELECT * FROM running")}
    for size in (0, MINUTE, DAY):
        rows = await fetch("SELECT * FROM spending WHERE size = :size AND turns > 0", size=size)
        assert sum(row.tokens for row in rows) == sum(
            (row.input_tokens or 0) + (row.output_tokens or 0)
            for row in await fetch("SELECT * FROM endings WHERE caller IN (SELECT name FROM keys)")
        )
        assert all(row.at == row.at // max(size, 1) * size for row in rows)


@asynchronous
async def test_totals_are_the_sums_over_all_turns(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    await take(store, ask(user("before the key")), answer("x"), caller="me", cost=0.5)
    await store.writer.flush()
    await store.keys.add("me", budget_tokens=1000)
    named = [await take(store, ask(user(f"q{n}")), answer("x"), caller="me", name="s", cost=0.25) for n in range(3)]
    probe = await begin(store, ask(user("title?")), "me", "s", probe=True)
    probe.finish(Finished(ending="end", response=answer("a title"), cost=1.0))
    unpriced = await take(store, ask(user("free")), answer("x"))
    open_turn = await begin(store, ask(user("still runs")), "me", "s")
    await store.writer.flush()
    await check_totals(store)
    session = await store.queries.session(named[0].session.id)
    assert session is not None
    assert (session.turns, session.input_tokens, session.cost, session.title) == (4, 75, 0.75, "q0")
    free = await store.queries.session(unpriced.session.id)
    assert free is not None
    assert free.cost is None
    assert [turn.id for turn in await store.queries.turns(Filter(ending=""))] == [open_turn.id]
    assert await store.queries.turns(Filter(ending="", caller="you")) == []
    assert (await store.keys.spent((await store.keys.all())[0])).tokens == 5 * 40  # with the probe, without the running turn

    again = TurnEntry(kind="starts", turn=open_turn, process=store.process.id, content=True)
    open_turn.written = 0
    await store.writer._commit(rows_of([again], 1))  # a commit whose answer was lost is repeated
    await store.process.end()  # another process ends the turn as interrupted
    await check_totals(store)
    assert await store.queries.turns(Filter(ending="")) == []
    open_turn.finish(Finished(ending="end", response=answer("it lived"), cost=0.125))
    await store.writer.flush()
    await check_totals(store)
    session = await store.queries.session(named[0].session.id)
    assert session is not None
    assert (session.turns, session.input_tokens, session.cost) == (4, 100, 0.875)
    await store.close()


@asynchronous
async def test_pruning_subtracts(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    await store.keys.add("me", budget_tokens=1000)
    for number in range(4):
        turn = await begin(store, ask(user(f"q{number}")), "me", "s", at=time.time() - (4 - number) * DAY)
        turn.finish(Finished(ending="end", response=answer("x"), cost=0.5))
    other = await take(store, ask(user("other")), answer("x"))
    await store.writer.flush()
    done = await prune_turns(store.database, older_than=2.5 * DAY, forget_spending=True)
    assert done.turns == 2
    await check_totals(store)
    session = await store.queries.session(turn.session.id)
    assert session is not None
    assert (session.turns, session.title, session.input_tokens, session.cost) == (2, "q2", 50, 1.0)
    assert (await store.keys.spent((await store.keys.all())[0])).tokens == 80
    assert await delete_session(store.database, other.session.id) == 1
    await check_totals(store)
    assert len(await store.queries.sessions()) == 1
    await store.close()


@asynchronous
async def test_a_budget_counts_from_the_second_on_which_its_period_begins(url: str) -> None:
    """The turns of the first minute, the minutes of the first day and the days are added up; each turn once."""
    store = await Store.open(StoreSettings(url=url))
    now = 1_000 * DAY + 12 * 3600 + 30.5
    key, _ = await store.keys.add("me", budget_tokens=100, budget_seconds=3 * DAY + 45.0)
    begin_at = now - (key.budget_seconds or 0)
    times = [begin_at - 0.5, begin_at + 0.5, begin_at + 5.0, begin_at + 70.0, begin_at + 3600.0, begin_at + DAY, now - 1.0]
    for number, at in enumerate(times):
        turn = await begin(store, ask(user(f"q{number}")), "me", at=at)
        large = answer("x")
        large.usage = TokenCounts(10**number, 0)
        turn.finish(Finished(ending="end", response=large))
    await store.writer.flush()
    assert (await store.keys.spent(key, now)).tokens == 1_111_110
    assert (await store.keys.spent(key, now + 5.0)).tokens == 1_111_000 + 100
    assert (await store.keys.spent(key, now + 5.5)).tokens == 1_111_000
    assert (await store.keys.spent(key, now + 71.0)).tokens == 1_110_000
    assert (await store.keys.spent(key, now + 2 * DAY)).tokens == 1_000_000
    for at, last in ((now, times[-1]), (now + 5 * DAY, None)):
        over = await store.keys.budget_exceeded(at)
        assert [found.renews for found in over] == (
            [] if last is None else [pytest.approx(last + (key.budget_seconds or 0), abs=0.001)]
        )
    limits = (1_111_101, 1_111_001, 1_110_001, 1_100_001, 1_000_001, 99_999)
    for limit, last in zip(limits, times[1:], strict=True):
        await store.database.execute("UPDATE keys SET budget_tokens = :limit", limit=limit)
        [found] = await store.keys.budget_exceeded(now)
        assert found.renews == pytest.approx(last + (key.budget_seconds or 0), abs=0.001), limit
    await store.close()


@asynchronous
async def test_processes_that_write_the_same_sessions_do_not_wait_for_each_other(url: str) -> None:
    """Two processes end turns of the same sessions, each in another order."""
    logged: list[Any] = []
    stores = [await Store.open(StoreSettings(url=url), logged.append) for _ in range(2)]
    names = [f"s{number}" for number in range(8)]
    for _ in range(6):
        turns = [[await begin(store, ask(user(name)), "me", name) for name in names] for store in stores]
        for some in (turns[0], turns[1][::-1]):
            for turn in some:
                turn.finish(Finished(ending="end", response=answer("x")))
        await asyncio.gather(*(store.writer.flush() for store in stores))
    await check_totals(stores[0])
    assert [line for line in logged if line["event"] == "store_failing"] == []
    for store in stores:
        assert (await store.close()).failures == 0


@asynchronous
async def test_a_conversation_of_which_there_are_many_is_continued_at_the_newest(url: str) -> None:
    """Many turns have the same history; a search reads only the newest of them."""
    store = await Store.open(StoreSettings(url=url))
    for _ in range(30):
        last = await take(store, ask(user("hi")), answer("Hello!", ident="resp_same"), caller="me")
    await store.writer.flush()
    await store.close()
    store = await Store.open(StoreSettings(url=url))
    session = await store.sessions.previous("me", "resp_same")
    assert session == (last.id, last.session.id)
    assert await store.sessions.previous("you", "resp_same") is None
    found = await store.queries.turn("resp_same", "me")
    assert found is not None
    assert found.id == last.id
    await store.close()


def test_the_first_id_of_a_moment_separates_the_ids_before_and_after() -> None:
    assert mint_id(TURN, 99.0) < first_id(TURN, 100.0) <= mint_id(TURN, 100.0) < first_id(TURN, 100.1)
    assert first_id(TURN, -5.0) == first_id(TURN, 0.0) < first_id(TURN, 1e300) == f"{TURN}{'f' * 14}"


@asynchronous
async def test_lists_with_several_conditions(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    for number in range(60):
        turn = await begin(store, ask(user(f"word{number} often"), model="ab"[number % 2]), "me", at=1000.0 + number)
        turn.finish(
            Finished(ending="end" if number % 3 else "error", response=answer("x"), upstream="one" if number % 5 else "two")
        )
    await store.writer.flush()

    async def listed(**more: Any) -> list[float]:
        return [turn.started - 1000.0 for turn in await store.queries.turns(Filter(limit=100, **more))]

    def expected(when: Any) -> list[int]:
        return [number for number in range(59, -1, -1) if when(number)]

    for search in ("", "often"):
        for caller in ("me", None):
            same: dict[str, Any] = {"search": search, "caller": caller}
            assert await listed(model="a", upstream="two", **same) == expected(lambda n: n % 2 == 0 and n % 5 == 0)
            assert await listed(model="b", ending="error", **same) == expected(lambda n: n % 2 == 1 and n % 3 == 0)
            assert await listed(upstream="one", since=1010.0, until=1020.0, **same) == expected(lambda n: n % 5 and 10 <= n < 20)
            assert await listed(upstream="none", **same) == await listed(session_id="none", **same) == []
            found = await store.queries.turns(Filter(limit=7, upstream="two", **same))
            rest = await store.queries.turns(Filter(limit=100, upstream="two", before=found[-1].id, **same))
            assert [turn.started - 1000.0 for turn in (*found, *rest)] == expected(lambda n: n % 5 == 0)
    assert await listed(caller="you", search="often") == await listed(caller="you") == []
    await store.database.execute("DELETE FROM turns WHERE started = 1030")
    gone = f"{first_id(TURN, 1030.0)}x@1030.0"
    assert (await listed(search="often", before=gone))[:2] == [29, 28]
    await store.close()
