"""The database file is replaced by another file or by something that is not a database: running turns go to the new file, or
wait."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from store.turns import answer, ask, asynchronous, begin, take, user
from streamglot.messages import Message, TextPart
from streamglot.store import Finished, Store, StoreSettings, StoreUnavailable
from streamglot.store.database import is_transient
from waiting import WAIT_SECONDS, soon


@asynchronous
async def test_turns_that_run_while_the_file_is_replaced(tmp_path: Path) -> None:
    """The new file has none of the earlier rows: not the start of a turn, not a message, not the row of this process."""
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db"))
    instructions = Message("system", [TextPart("told to all")])
    await take(store, ask(instructions, user("before")), answer("x"), name="one")
    running = await begin(store, ask(instructions, user("running")), name="one")
    hanging = await begin(store, ask(instructions, user("hanging")), name="one")
    await store.writer.flush()
    for name in ("s.db", "s.db-wal", "s.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / "s.db").touch()
    running.finish(Finished(ending="end", response=answer("y")))
    await take(store, ask(instructions, user("after")), answer("z"), name="one")
    await store.writer.flush()
    for turn, ending in zip(await store.queries.turns(), ("end", "end"), strict=True):
        shown = await store.queries.turn(turn.id)
        assert shown is not None
        assert shown.request is not None
        assert shown.response is not None
        assert ([message.text for message in shown.request.messages], turn.ending) == (["told to all", turn.title], ending)
    (process,) = await store.database.fetch("SELECT id FROM processes")
    assert process.id == store.process.id
    (session,) = await store.database.fetch("SELECT id FROM sessions")
    assert session.id == running.session.id
    hanging.finish(Finished(ending="end"))
    assert (await store.close()).dropped == {}


@asynchronous
async def test_a_database_that_was_replaced_by_another_kind_of_file(tmp_path: Path) -> None:
    """Requests continue without their history, and their turns are written when the file is back."""
    logged: list[Mapping[str, Any]] = []
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/here/s.db"), logged.append)
    await take(store, ask(user("before")), answer("x"), name="known")
    await store.writer.flush()
    (tmp_path / "here").rename(tmp_path / "there")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "s.db").write_bytes(b"no database " * 1000)
    await take(store, ask(user("during")), answer("x"), name="known")
    await soon(lambda: logged)  # the writer has tried
    assert "not a database" in store.report().last_error
    with pytest.raises(StoreUnavailable, match="not a database"):
        await store.queries.turns()
    await take(store, ask(user("unknown")), answer("x"), name="unknown")
    (tmp_path / "here").rename(tmp_path / "gone")
    (tmp_path / "there").rename(tmp_path / "here")
    await store.writer.flush()
    assert {turn.title for turn in await store.queries.turns()} == {"before", "during", "unknown"}
    assert (await store.close()).unfit == {}
    assert [line["event"] for line in logged if line["event"] != "store_missed"] == ["store_failing", "store_back"]


@asynchronous
async def test_a_file_that_was_emptied_where_it_stands(tmp_path: Path) -> None:
    """The same file without the tables: they are created again."""
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db"))
    running = await begin(store, ask(user("running")))
    await store.writer.flush()
    with closing(sqlite3.connect(tmp_path / "s.db", isolation_level=None)) as other:
        tables = [name for (name,) in other.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if not table.startswith(("search_", "sqlite_")):  # those are dropped with their own tables
                other.execute(f"DROP TABLE {table}")
    running.finish(Finished(ending="end", response=answer("y")))
    async with asyncio.timeout(WAIT_SECONDS):
        await store.writer.flush()
    assert [(turn.title, turn.ending) for turn in await store.queries.turns()] == [("running", "end")]
    await store.close()


def test_a_damaged_file_is_a_transient_error(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "s.db")) as made, made:
        made.execute("CREATE TABLE x (y)")
        made.execute("INSERT INTO x VALUES (zeroblob(100000))")
    whole = (tmp_path / "s.db").read_bytes()
    (tmp_path / "s.db").write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with closing(sqlite3.connect(tmp_path / "s.db")) as opened:
        with pytest.raises(sqlite3.DatabaseError, match="malformed") as damaged:
            opened.execute("SELECT * FROM x").fetchall()
        with pytest.raises(sqlite3.DatabaseError, match="no such column") as wrong:
            opened.execute("SELECT z FROM x")
    assert is_transient(damaged.value)
    assert not is_transient(wrong.value)
