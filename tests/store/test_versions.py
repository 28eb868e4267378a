"""Schema versions: made from nothing, upgraded by steps, refused when older than the first release or newer than this one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from store.servers import writing
from store.tables import add
from store.turns import answer, ask, asynchronous, take, user
from streamglot.errors import ConfigError
from streamglot.store import Database, Filter, Store, StoreSettings, default_url
from streamglot.store import database as database_module
from streamglot.store import rows as rows_module
from streamglot.store.database import schema
from streamglot.store.database.sql import Connection
from streamglot.store.rows import rows_of
from waiting import WAIT_SECONDS


async def version(database: Database) -> int:
    return int((await database.fetch("SELECT version FROM schema_version"))[0].version)


@asynchronous
async def test_a_new_database_has_the_tables_and_the_newest_version(url: str) -> None:
    database = await Database.open(url)
    for table, columns in schema.tables().items():
        assert await database.fetch(f"SELECT {', '.join(columns)} FROM {table}") == []
    assert await version(database) == schema.newest()
    await database.close()


@pytest.mark.parametrize("is_sqlite", [True, False])
def test_the_columns_are_those_of_the_script(is_sqlite: bool) -> None:
    """Inserts take the types of their columns from the script."""
    script = schema.script(is_sqlite)
    assert script.count("\nCREATE TABLE ") == len(schema.tables()) + is_sqlite  # and ``indexed``, which only SQLite has
    lines = [line for table in schema._TABLE.findall(script) for line in table[1].splitlines()]
    columns = [line for line in lines if not line.strip().startswith(("PRIMARY KEY", "CONSTRAINT"))]
    assert len(columns) == sum(map(len, schema.tables().values()))


async def add_note(connection: Connection) -> None:
    await connection.execute("ALTER TABLE sessions ADD COLUMN note TEXT NOT NULL DEFAULT 'none'")


async def count_notes(connection: Connection) -> None:
    await connection.execute("CREATE TABLE notes (count INTEGER NOT NULL)")
    await connection.execute("INSERT INTO notes SELECT count(*) FROM sessions WHERE note = 'none'")


@asynchronous
async def test_a_database_is_upgraded_step_by_step_with_all_data(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await Store.open(StoreSettings(url=url))
    await take(store, ask(user("asked before")), answer("zebra"))
    await store.close()
    monkeypatch.setattr(schema, "UPGRADES", [add_note])
    await (await Database.open(url)).close()
    monkeypatch.setattr(schema, "UPGRADES", [add_note, count_notes])  # the first step is not run again
    store = await Store.open(StoreSettings(url=url))
    assert (await store.database.fetch("SELECT count FROM notes"))[0].count == 1
    assert await version(store.database) == 3
    await take(store, ask(user("asked after")), answer("zebra"))
    await store.writer.flush()
    assert len(await store.queries.turns(Filter(search="zebra"))) == 2
    await store.close()


@asynchronous
async def test_an_upgrade_that_fails_changes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await (await Database.open(url)).close()

    async def fail(connection: Connection) -> None:
        await count_notes(connection)
        raise ValueError("a fault of the step")

    monkeypatch.setattr(schema, "UPGRADES", [add_note, fail])
    with pytest.raises(ValueError, match="a fault of the step"):
        await Database.open(url)
    monkeypatch.setattr(schema, "UPGRADES", [])
    database = await Database.open(url)
    assert await version(database) == 1
    await add(database, "sessions", {"id": "s", "caller": "", "name": "", "directory": "", "started": 1.0})
    assert not hasattr((await database.fetch("SELECT * FROM sessions"))[0], "note")
    await database.close()


@asynchronous
async def test_a_newer_version_is_refused(url: str) -> None:
    database = await Database.open(url)
    await database.execute("UPDATE schema_version SET version = 9999")
    await database.close()
    told = rf"has version 9999, but this streamglot knows only versions up to {schema.newest()}: a newer release made it"
    with pytest.raises(ConfigError, match=told):
        await Database.open(url)


@asynchronous
async def test_a_database_from_before_the_first_release_is_refused_and_kept(url: str) -> None:
    database = await Database.open(url)
    await database.execute("DROP TABLE schema_version")
    await database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    await database.execute("INSERT INTO alembic_version VALUES ('0010')")
    with pytest.raises(
        ConfigError, match=r"before its first release, .* Move it away .* or keep its turns first: `streamglot logs"
    ):
        await Database.open(url)
    assert (await database.fetch("SELECT version_num FROM alembic_version"))[0].version_num == "0010"
    await database.close()


@asynchronous
async def test_processes_that_start_together_create_the_database_once(url: str) -> None:
    databases = await asyncio.gather(*(Database.open(url) for _ in range(4)))
    for database in databases:
        await database.close()


@asynchronous
async def test_opening_a_current_database_writes_nothing(tmp_path: Path) -> None:
    """Opening a current database does not write, not even a setting of a connection."""
    url, log = f"sqlite:///{tmp_path}/s.db", tmp_path / "s.db-wal"
    first = await Database.open(url)
    (pages,) = await first.fetch("PRAGMA auto_vacuum")
    assert pages[0] == 2  # the file can be shrunk after pruning
    size = log.stat().st_size
    second = await Database.open(url)
    await asyncio.gather(*(second.fetch("SELECT count(*) FROM turns") for _ in range(10)))
    assert log.stat().st_size == size
    await second.close()
    await first.close()


@asynchronous
async def test_an_upgrade_waits_for_other_writers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "LOCK_SECONDS", 0.2)
    first = await Database.open(url)
    monkeypatch.setattr(schema, "UPGRADES", [add_note])
    async with writing(url):
        with pytest.raises(ConfigError, match=r"must be upgraded to version 2, but another process keeps writing to it"):
            await Database.open(url)
        monkeypatch.setattr(database_module, "LOCK_SECONDS", WAIT_SECONDS)
        waits = [asyncio.ensure_future(Database.open(url)) for _ in range(2)]
        await asyncio.sleep(0)
    for database in (first, *await asyncio.gather(*waits)):
        await database.close()


@pytest.mark.parametrize("name", ["with space", "per%20cent", "quest?ion", "ha#sh", "ünï"])
@asynchronous
async def test_a_data_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    database = await Database.open(default_url({"XDG_DATA_HOME": str(tmp_path / name)}))
    assert database.file == tmp_path / name / "streamglot" / "streamglot.db"
    assert database.file.exists()
    await database.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_empty_batch_has_no_rows() -> None:
    assert rows_of([]) == rows_module.Rows()
