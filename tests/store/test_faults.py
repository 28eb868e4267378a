"""The database is locked, full, gone or replaced: streams continue, nothing waits, and losses are counted."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from store.servers import Postgres, writing
from store.turns import answer, ask, assistant, asynchronous, begin, take, thought, user
from streamglot.errors import ConfigError
from streamglot.store import (
    Filter,
    Finished,
    Session,
    SessionHints,
    Started,
    Store,
    StoreSettings,
    StoreUnavailable,
    database,
    writer,
)
from streamglot.store.database import schema
from streamglot.store.database.sql import Connection
from streamglot.store.recent import Recent, Seen
from streamglot.store.sessions import Sessions
from waiting import WAIT_SECONDS, soon

OUTAGE_SECONDS = 10.0


async def stream_for(store: Store, seconds: float, prefix: str) -> list[str]:
    """Runs turns for some seconds and returns their ids. None waits for the database, which only comes back afterwards."""
    ids: list[str] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        async with asyncio.timeout(WAIT_SECONDS):
            turn = await begin(store, ask(user(f"{prefix} {len(ids)}")), name=f"{prefix}{len(ids)}")
        turn.finish(Finished(ending="end", response=answer("x" * 500)))
        ids.append(turn.id)
        await asyncio.sleep(0.02)
    return ids


@asynchronous
async def test_a_locked_database_delays_writes(tmp_path: Path) -> None:
    logged: list[Mapping[str, Any]] = []
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db"), logged.append)
    locker = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    ids = await stream_for(store, 2.0, "locked")
    await soon(lambda: logged)  # the writer has tried
    report = store.report()
    assert report.failing
    assert report.failures >= 1
    assert "locked" in report.last_error
    assert report.behind > 1
    locker.execute("COMMIT")
    await store.writer.flush()
    assert {turn.id for turn in await store.queries.turns(Filter(limit=1000))} == set(ids)
    assert [line["event"] for line in logged] == ["store_failing", "store_back"]
    report = await store.close()
    assert (report.dropped, report.failing, report.queued) == ({}, False, 0)


@asynchronous
async def test_a_full_disk_drops_content_and_counts_it(tmp_path: Path) -> None:
    """SQLite's own limit of pages gives the error of a full disk."""
    logged: list[Mapping[str, Any]] = []
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db"), logged.append)
    await take(store, ask(user("before")), answer("fine"))
    await store.writer.flush()
    pages = (await store.database.fetch("PRAGMA page_count"))[0][0]
    await store.database.execute(f"PRAGMA max_page_count = {pages + 1}")
    big = "no room for this " * 20_000
    for number in range(10):
        await take(store, ask(user(f"{number} {big}")), answer("fine"))
    await soon(lambda: logged)  # the writer has tried
    assert "full" in store.report().last_error
    assert store.report().queued == 20
    await store.database.execute("PRAGMA max_page_count = 1000000")
    await store.writer.flush()
    assert len(await store.queries.turns()) == 11
    assert (await store.close()).dropped == {}
    assert [line["event"] for line in logged] == ["store_failing", "store_back"]


@asynchronous
async def test_entries_that_do_not_fit_are_dropped_and_counted(tmp_path: Path) -> None:
    """A queue of 100 during an outage: raw bytes are dropped first, then contents. No turn, ending or usage is lost."""
    logged: list[Mapping[str, Any]] = []
    settings = StoreSettings(url=f"sqlite:///{tmp_path}/s.db", queue_entries=100, raw=True)
    store = await Store.open(settings, logged.append)
    locker = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    first = await take(store, ask(user("first")), answer("x"), name="first")
    await soon(lambda: logged)  # the writer has tried
    turns = []
    for number in range(120):
        turn = await begin(store, ask(user(f"{number}")), name="s")
        turn.frame("up", 0.0, b"x" * 100)
        turns.append(turn)
    for turn in turns:
        turn.finish(Finished(ending="end", response=answer("x")))
    dropped = store.report().dropped
    assert set(dropped) == {"frames", "contents"}
    assert dropped["frames"] == 120
    assert dropped["contents"] > 100
    locker.execute("COMMIT")
    await store.writer.flush()
    rows = await store.queries.turns(Filter(limit=1000))
    assert {row.id for row in rows} == {first.id, *(turn.id for turn in turns)}
    assert {(row.ending, row.usage.output_tokens if row.usage else None) for row in rows} == {("end", 15)}
    whole = [detail for row in rows if (detail := await store.queries.turn(row.id)) is not None and detail.request is not None]
    assert len(whole) >= 40
    assert [line["event"] for line in logged] == ["store_failing", "store_dropping", "store_back", "store_dropped"]
    assert logged[-1]["dropped"] == dropped
    report = await store.close()
    assert report.dropped == dropped
    assert logged[-1]["event"] == "store_lost"


@asynchronous
async def test_postgresql_does_not_answer_for_ten_seconds(postgres: Postgres) -> None:
    if not postgres.own:
        pytest.skip("the configured server must not be stopped")
    logged: list[Mapping[str, Any]] = []
    store = await Store.open(StoreSettings(url=await postgres.database()), logged.append)
    before = await stream_for(store, 0.5, "before")
    await asyncio.to_thread(postgres.stop, "immediate")
    try:
        during = await stream_for(store, OUTAGE_SECONDS, "during")
        await soon(lambda: logged)  # the writer has tried
        assert store.report().failing
        assert store.report().missed == store.sessions.missed > 0
    finally:
        await asyncio.to_thread(postgres.start)
    after = await stream_for(store, 0.5, "after")
    await store.writer.flush()
    ids = {turn.id for turn in await store.queries.turns(Filter(limit=1000))}
    assert ids == {*before, *during, *after}
    report = await store.close()
    assert (report.dropped, report.unfit) == ({}, {})
    assert [line["event"] for line in logged if line["event"] != "store_missed"] == ["store_failing", "store_back"]
    assert max(line["missed"] for line in logged if line["event"] == "store_missed") <= store.sessions.missed


@asynchronous
async def test_a_file_that_was_moved_away_and_back(tmp_path: Path) -> None:
    """Rows are not written to a file that was moved away."""
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/here/s.db"))
    await take(store, ask(user("before")), answer("x"))
    await store.writer.flush()
    (tmp_path / "here").rename(tmp_path / "there")
    await take(store, ask(user("during")), answer("x"))
    await soon(lambda: "gone" in store.report().last_error)
    (tmp_path / "there").rename(tmp_path / "here")
    await store.writer.flush()
    assert [turn.title for turn in await store.queries.turns()] == ["during", "before"]
    await store.close()


@asynchronous
async def test_a_file_that_was_replaced(tmp_path: Path) -> None:
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db"))
    await take(store, ask(user("before")), answer("x"))
    await store.writer.flush()
    for name in ("s.db", "s.db-wal", "s.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / "s.db").touch()
    await take(store, ask(user("after")), answer("x"))
    await store.writer.flush()
    assert [turn.title for turn in await store.queries.turns()] == ["after"]
    await store.close()


@asynchronous
async def test_the_store_opens_while_another_process_writes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCK_WAIT_SECONDS", 0.2)
    before = await Store.open(StoreSettings(url=url))
    await take(before, ask(user("before")), answer("x"))
    await before.close()
    async with writing(url):
        store = await Store.open(StoreSettings(url=url))
        assert [turn.title for turn in await store.queries.turns()] == ["before"]
        turn = await begin(store, ask(user("during")))
    await store.writer.flush()
    assert (
        len(await store.database.fetch("SELECT * FROM processes WHERE id = :id", id=store.process.id)) == 1
    )  # its turns must not stay open
    turn.finish(Finished(ending="end"))
    await store.close()


@asynchronous
async def test_closing_with_a_database_that_does_not_answer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is frozen or behind a broken network. All steps that need it give up together."""
    monkeypatch.setattr(writer, "SILENT_SECONDS", 0.1)
    logged: list[Mapping[str, Any]] = []
    store = await Store.open(StoreSettings(url=url), logged.append)

    async def hang(*_: object) -> Any:
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        for way in ("read", "write", "close"):
            patch.setattr(store.database._engine, way, hang)
        store.buffer.open("turn_1", "", lambda: None, lambda: None)
        await take(store, ask(user("lost")), answer("x"))
        await soon(lambda: store.report().failing)
        assert store.report().failures == 0
        async with asyncio.timeout(WAIT_SECONDS):
            report = await store.close(seconds=1.0)
    assert report.dropped == {"starts": 1, "endings": 1, "streams": 2}
    assert logged[-1] == {"event": "store_lost", "dropped": report.dropped, "unfit": {}}
    await store.database._engine.close()


@asynchronous
async def test_closing_writes_everything_whatever_else_fails(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Mapping[str, Any]] = []
    store = await Store.open(StoreSettings(url=url, commit_seconds=60), logged.append)

    async def fail(*_: object) -> Any:
        raise ValueError("a fault")

    monkeypatch.setattr(store.buffer, "close", fail)
    monkeypatch.setattr(store.process, "end", fail)
    await take(store, ask(user("kept")), answer("x"))
    report = await store.close()
    assert report.written == {"starts": 1, "endings": 1}
    assert [line["event"] for line in logged] == ["store_fault", "store_fault"]
    again = await Store.open(StoreSettings(url=url))
    assert [turn.title for turn in await again.queries.turns()] == ["kept"]
    await again.close()


@pytest.mark.parametrize("stalled", [0.0, 1.0])
@asynchronous
async def test_closing_with_a_database_that_does_not_come_back(tmp_path: Path, stalled: float) -> None:
    """What is lost is counted, even if the process stands still for so long that all times of the closing are over at once."""
    logged: list[Mapping[str, Any]] = []
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db"), logged.append)
    locker = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    await take(store, ask(user("lost")), answer("x"))
    asyncio.get_running_loop().call_later(0.5, time.sleep, stalled)
    report = await store.close(seconds=1.0)
    assert report.dropped == {"starts": 1, "endings": 1}
    assert logged[-1] == {"event": "store_lost", "dropped": report.dropped, "unfit": {}}
    locker.close()
    again = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db"))
    assert await again.queries.turns() == []
    await again.close()


@asynchronous
async def test_closing_writes_everything(url: str) -> None:
    store = await Store.open(StoreSettings(url=url, commit_seconds=60))
    session = await store.find_session(SessionHints(name="one"), ask())
    for number in range(5 * writer.BATCH_ENTRIES // 2):
        store.start(session, Started(request=ask(user(str(number))))).finish(Finished(ending="end"))
    report = await store.close(WAIT_SECONDS)
    assert report.written == {"starts": 5000, "endings": 5000}
    assert report.queued == 0


@asynchronous
async def test_a_database_that_cannot_be_opened_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"no database " * 1000)
    with pytest.raises(ConfigError, match="cannot be opened: file is not a database"):
        await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/file"))
    with pytest.raises(ConfigError, match="cannot be opened") as refused:
        await Store.open(StoreSettings(url="postgresql://me:secret@127.0.0.1:9/none"))
    assert "secret" not in refused.value.message


@asynchronous
async def test_a_database_that_connects_late_is_opened(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process stands still while it connects, the time is over before it sees the connection."""
    version, tries = schema.version, 0

    async def late_once(connection: Connection, shown: str) -> int:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise TimeoutError
        return await version(connection, shown)

    monkeypatch.setattr(schema, "version", late_once)
    store = await Store.open(StoreSettings(url=url))
    await store.close()
    assert tries > 1


@asynchronous
async def test_an_unfit_entry_does_not_affect_others(url: str) -> None:
    logged: list[Mapping[str, Any]] = []
    store = await Store.open(StoreSettings(url=url), logged.append)
    before = await take(store, ask(user("before")), answer("x"))
    wrong: Any = ["no", "time"]
    session = await store.find_session(SessionHints(), ask(user("wrong")))
    store.start(session, Started(request=ask(user("wrong")), at=1.0)).started.at = wrong
    after = await take(store, ask(user("after")), answer("x"))
    await store.writer.flush()
    assert {turn.id for turn in await store.queries.turns()} == {before.id, after.id}
    assert [line["event"] for line in logged] == ["store_unfit"]
    report = await store.close()
    assert (report.unfit, report.dropped, report.failures) == ({"starts": 1}, {}, 0)


@asynchronous
async def test_sessions_are_found_in_memory_while_the_database_does_not_answer(tmp_path: Path) -> None:
    """Sessions that this process knows are found; others are new. Only a named response that must be found raises."""
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db"))
    named = await take(store, ask(user("a")), answer("b", ident="resp_1"), caller="me", name="s")
    plain = await take(store, ask(user("c")), answer("d"), caller="me")
    await store.writer.flush()
    silent = Sessions(Silent(), store.sessions._recent)  # type: ignore[arg-type]  # stands for a database

    async def found(**want: Any) -> Session:
        return await silent.find(SessionHints(caller="me", **want), ask(user("c"), assistant("d"), user("e")))

    assert (await found(name="s")).id == named.session.id
    assert (await found(name=named.session.id)).id == named.session.id
    assert (await found(response_id="resp_1")).id == named.session.id
    assert (await found()).id == plain.session.id
    assert (await found(response_id="resp_2")).new
    assert (await silent.find(SessionHints(caller="you", name=named.session.id), ask())).id != named.session.id
    assert await silent.answers(named.session) == []
    assert silent.missed > 2
    with pytest.raises(StoreUnavailable):
        await silent.previous("me", "resp_2")
    await store.close()


class Silent:
    """A database that does not answer."""

    async def fetch(self, *_question: object, **_values: object) -> list[Any]:
        raise StoreUnavailable("no answer")


def test_recent_turns_are_bounded() -> None:
    recent = Recent(max_turns=10, max_bytes=100_000)
    for number in range(50):
        asked = bytes([number])
        recent.start(Seen(f"t{number}", f"s{number}", "me", asked), probe=False)
        recent.finish(f"t{number}", asked * 2, b"x", f"r{number}", assistant(thought("x", "sig")), 1000)
    assert recent.by_response("me", "r39") is None
    assert recent.answers("s39") == []
    assert recent.owner("s39") is None
    assert recent.by_response("me", "r40") is not None
    recent.start(Seen("big", "s", "me", None), probe=True)
    recent.finish("big", None, b"", "", assistant(thought("x", "sig")), 200_000)
    recent.finish("gone", None, b"", "", assistant("x"), 1)
    recent.start(Seen("last", "s", "me", None), probe=False)
    assert recent.answers("s") == []
    assert len(recent._by) == 1
