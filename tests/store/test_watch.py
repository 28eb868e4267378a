"""Repeated queries: they are skipped if nobody else can have changed the rows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from store.tables import add
from store.turns import asynchronous
from streamglot.store import Store, StoreSettings
from streamglot.store import streams as buffer
from streamglot.store.database import Database, StoreUnavailable, Watch
from streamglot.store.database.sql import Connection
from waiting import soon

COLUMNS = {"place": "elsewhere", "pid": 1, "born": "", "started": 1.0, "seen": 1.0}


async def sign_in(database: Database, name: str) -> None:
    await add(database, "processes", {"id": name, **COLUMNS})


def names(rows: Any) -> list[str] | None:
    return None if rows is None else [row.id for row in rows]


@asynchronous
async def test_a_watch_sees_only_changes_of_other_processes(url: str) -> None:
    ours, theirs = await Database.open(url), await Database.open(url)
    watch = Watch(ours, "SELECT * FROM processes ORDER BY id")
    assert names(await watch.look()) == []
    unchanged: list[str] | None = None if ours.is_sqlite else []  # PostgreSQL runs the query again: it cannot tell
    assert names(await watch.look()) == unchanged
    await sign_in(theirs, "a")
    assert names(await watch.look()) == ["a"]
    assert names(await watch.look()) == (None if ours.is_sqlite else ["a"])
    await sign_in(ours, "b")
    watch.forget()
    assert names(await watch.look()) == ["a", "b"]
    await ours.close()
    await theirs.close()


@asynchronous
async def test_a_failed_look_is_repeated(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = [await Database.open(f"sqlite:///{tmp_path}/s.db") for _ in range(2)]
    watch = Watch(ours, "SELECT * FROM processes")
    await watch.look()
    await sign_in(theirs, "a")

    async def gone(*_: object, **_named: object) -> Any:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(ours, "fetch", gone)
        with pytest.raises(StoreUnavailable):
            await watch.look()
    assert names(await watch.look()) == ["a"]
    await ours.close()
    await theirs.close()


@asynchronous
async def test_rows_that_change_during_a_look_are_looked_at_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    database = await Database.open(f"sqlite:///{tmp_path}/s.db")
    watch = Watch(database, "SELECT * FROM processes")
    fetch = database.fetch

    async def changed_meanwhile(*question: Any, **values: Any) -> Any:
        rows = await fetch(*question, **values)
        watch.forget()
        return rows

    with monkeypatch.context() as patch:
        patch.setattr(database, "fetch", changed_meanwhile)
        assert names(await watch.look()) == []
    assert names(await watch.look()) == [], "it was changed"
    assert await watch.look() is None
    await database.close()


@asynchronous
async def test_a_replaced_file_counts_as_changed(tmp_path: Any) -> None:
    database = await Database.open(f"sqlite:///{tmp_path}/s.db")
    await sign_in(database, "a")
    watch = Watch(database, "SELECT * FROM processes")
    while await watch.look() is not None:
        pass
    (tmp_path / "s.db").rename(tmp_path / "away.db")
    for more in ("s.db-wal", "s.db-shm"):
        (tmp_path / more).unlink(missing_ok=True)
    other = await Database.open(f"sqlite:///{tmp_path}/s.db")
    await sign_in(other, "b")
    await other.close()
    await sign_in(database, "c")
    assert names(await watch.look()) == ["b", "c"]
    await database.close()


@asynchronous
async def test_the_version_is_unknown_during_a_write(tmp_path: Any) -> None:
    database = await Database.open(f"sqlite:///{tmp_path}/s.db")
    assert database.version() is not None
    seen: list[object] = []

    async def work(_: Connection) -> None:
        seen.append(database.version())

    await database.write(work)
    assert seen == [None]
    assert database.version() is not None
    await database.close()
    assert database.version() is None


@pytest.mark.usefixtures("no_periodic_steps")
@asynchronous
async def test_streams_of_a_single_process_cause_no_queries(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer, "WATCH_SECONDS", 0.01)
    url = f"sqlite:///{tmp_path}/s.db"
    store = await Store.open(StoreSettings(url=url))
    asked: list[str] = []
    wanted: list[str] = []
    fetch, version = Database.fetch, Database.version
    looks = 0

    async def counted(database: Database, *question: Any, **values: Any) -> Any:
        if database is store.database:
            asked.append(str(question[0]))
        return await fetch(database, *question, **values)

    def looked(database: Database) -> Any:
        nonlocal looks
        looks += database is store.database
        return version(database)

    monkeypatch.setattr(Database, "fetch", counted)
    monkeypatch.setattr(Database, "version", looked)
    store.buffer.open("turn_1", "", lambda: None, lambda: wanted.append("turn_1"))
    await store.writer.flush()
    before = looks
    await soon(lambda: looks > before + 1)  # the first look after the commit queries
    asked.clear()
    before = looks
    await soon(lambda: looks > before + 5)
    assert asked == []
    other = await Store.open(StoreSettings(url=url))
    reader = asyncio.ensure_future(anext(aiter(other.buffer.read("turn_1"))))
    await soon(lambda: bool(wanted))
    assert asked
    store.buffer.append("turn_1", 1, 1, b"x")
    assert (await reader).data == b"x"
    await store.close()
    await other.close()
