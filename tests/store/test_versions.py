"""Schema versions: created from nothing, upgraded from the first version with all data, refused when newer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, select, text

from store.servers import writing
from store.turns import answer, ask, asynchronous, take, user
from streamglot.errors import ConfigError
from streamglot.store import Database, Filter, Store, StoreSettings, default_url, schema
from streamglot.store import database as database_module
from streamglot.store import rows as rows_module
from streamglot.store.migrations import HEAD
from streamglot.store.rows import rows_of
from streamglot.store.tokenizer import wording
from waiting import WAIT_SECONDS


def test_head_is_the_newest_version() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(schema.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


@asynchronous
async def test_the_versions_add_up_to_the_schema(url: str) -> None:
    database = await Database.open(url)

    def differences(connection: Connection) -> list[object]:
        wanted = {*schema.metadata.tables}
        options = {"include_name": lambda name, kind, _parents: kind != "table" or name in wanted}
        found = compare_metadata(MigrationContext.configure(connection, opts=options), schema.metadata)
        return [change for change in found if "texts_search" not in str(change)]

    assert await database.write(differences) == []
    assert [row[0] for row in await database.fetch(text("SELECT version_num FROM alembic_version"))] == [HEAD]
    await database.close()


@asynchronous
async def test_the_first_version_is_upgraded_with_all_data(url: str) -> None:
    database = await Database.open(url, revision="0001")
    for number in range(3):
        statements = [
            f"INSERT INTO turns (id, session_id, caller, process, request_id, started, dialect, model, stream, probe, title, node) "
            f"VALUES ('turn_{number}', 's', '', 'p', 'r', {number}, 'd', 'm', true, false, 't', :node)",
            f"INSERT INTO endings (turn_id, ended, ending) VALUES ('turn_{number}', {number + 1}, 'end')",
            "INSERT INTO nodes (hash, message, depth) VALUES (:node, :asked, 0)",
            "INSERT INTO messages (hash, body) VALUES (:asked, :question)",
            "INSERT INTO messages (hash, body) VALUES (:said, :answer)",
            f"INSERT INTO answers (turn_id, choice, message, echoes) VALUES ('turn_{number}', 0, :said, false)",
        ]
        values = {
            "node": b"n%d" % number,
            "asked": b"q%d" % number,
            "said": b"a%d" % number,
            "question": f'{{"role":"user","parts":[{{"type":"text","text":"Question {number} of the past"}}]}}',
            "answer": f'{{"role":"assistant","parts":[{{"type":"text","text":"Zebra {number}, bei der Straße; 斑马"}}]}}',
        }
        for statement in statements:
            used = {name: value for name, value in values.items() if f":{name}" in statement}
            await database.execute(text(statement), used)
    await database.close()
    store = await Store.open(StoreSettings(url=url))
    assert [turn.id for turn in await store.queries.turns()] == ["turn_2", "turn_1", "turn_0"]
    assert len(await store.queries.turns(Filter(search="zebra"))) == 3
    assert [turn.id for turn in await store.queries.turns(Filter(search='zebra "question 1"'))] == ["turn_1"]
    for words in ("strasse", "马", "斑马"):
        assert len(await store.queries.turns(Filter(search=words))) == 3
    await take(store, ask(user("new")), answer("zebra too"))
    await store.writer.flush()
    assert len(await store.queries.turns(Filter(search="zebra"))) == 4
    await store.close()


def versions() -> list[str]:
    folder = Path(schema.__file__).parent / "migrations" / "versions"
    return sorted(path.stem[1:5] for path in folder.glob("v0*.py"))


@pytest.mark.parametrize("version", versions())
@asynchronous
async def test_a_store_of_every_version_is_upgraded_and_used(url: str, version: str) -> None:
    await (await Database.open(url, revision=version)).close()
    store = await Store.open(StoreSettings(url=url))
    await take(store, ask(user("asked after the upgrade")), answer("answered"))
    await store.writer.flush()
    assert len(await store.queries.turns(Filter(search="upgrade"))) == 1
    assert [row[0] for row in await store.database.fetch(text("SELECT version_num FROM alembic_version"))] == [HEAD]
    await store.close()


@asynchronous
async def test_existing_texts_become_words(url: str) -> None:
    """On SQLite some of the texts were indexed, some not yet, and some are deleted before they are."""
    database = await Database.open(url, revision="0004")
    bodies = ["straße und café: 3.14", "我喜欢猫和狗", "zebra", "x" * 3000, *("filler, filler" for _ in range(600)), "हिन्दी"]
    question = text("INSERT INTO texts (number, turn_id, body) VALUES (:number, :turn, :body)")
    rows = [{"number": number, "turn": f"turn_{number}", "body": body} for number, body in enumerate(bodies, 1)]
    await database.execute(question, rows)
    if database.is_sqlite:
        await database.execute(text("INSERT INTO search(rowid, body) SELECT number, body FROM texts WHERE number <= 2"))
        await database.execute(text("UPDATE indexed SET number = 2"))
    await database.close()
    store = await Store.open(StoreSettings(url=url))
    database = store.database
    kept = [row.body for row in await database.fetch(select(schema.texts).order_by(schema.texts.c.number))]
    assert kept == [wording(body) for body in bodies]
    await database.execute(text("DELETE FROM texts WHERE turn_id = 'turn_3'"))

    async def found(words: str) -> list[str]:
        return [turn async for page in store.queries.search.pages(Filter(search=words, limit=1_000), "") for turn in page]

    for words, turn in (("STRASSE cafe", 1), ("3.14", 1), ("猫和狗", 2), ("x" * 3000, 4), ("हिन्दी", 605)):
        assert await found(words) == [f"turn_{turn}"], words[:20]
    assert (len(await found("filler")), await found("zebra"), await found("हिन")) == (600, [], [])
    await database.execute(text("DELETE FROM texts WHERE turn_id IN ('turn_2', 'turn_605')"))
    assert await found("猫") == await found("हिन्दी") == []
    if database.is_sqlite:
        await database.execute(text("INSERT INTO search(search, rank) VALUES ('integrity-check', 1)"))
    await store.close()


@asynchronous
async def test_a_newer_version_is_refused(url: str) -> None:
    database = await Database.open(url)
    await database.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await database.close()
    with pytest.raises(
        ConfigError, match=rf"has version 9999, but this streamglot knows only versions up to {HEAD}: a newer release made it"
    ):
        await Database.open(url)


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
    (pages,) = await first.fetch(text("PRAGMA auto_vacuum"))
    assert pages[0] == 2  # the file can be shrunk after pruning
    size = log.stat().st_size
    second = await Database.open(url)
    await asyncio.gather(*(second.fetch(text("SELECT count(*) FROM turns")) for _ in range(10)))
    assert log.stat().st_size == size
    await second.close()
    await first.close()


@asynchronous
async def test_a_migration_waits_for_other_writers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "LOCK_SECONDS", 0.2)
    first = await Database.open(url, revision="0001")
    async with writing(url):
        with pytest.raises(ConfigError, match=rf"must be upgraded to version {HEAD}, but another process keeps writing to it"):
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
