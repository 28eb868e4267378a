"""Versions of the schema: made from nothing, brought up from the first with all that it holds, refused when newer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from store.turns import answer, ask, asynchronous, take, user
from streamglot.errors import ConfigError
from streamglot.store import Database, Filter, Store, StoreSettings, schema
from streamglot.store import rows as rows_module
from streamglot.store.migrations import HEAD
from streamglot.store.rows import rows_of


def test_the_newest_version_is_known_by_its_name() -> None:
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
async def test_the_first_version_is_brought_up_with_all_it_holds(url: str) -> None:
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
            "answer": f'{{"role":"assistant","parts":[{{"type":"text","text":"Zebra {number}"}}]}}',
        }
        for statement in statements:
            used = {name: value for name, value in values.items() if f":{name}" in statement}
            await database.execute(text(statement), used)
    await database.close()
    store = await Store.open(StoreSettings(url=url))
    assert [turn.id for turn in await store.queries.turns()] == ["turn_2", "turn_1", "turn_0"]
    assert len(await store.queries.turns(Filter(search="zebra"))) == 3
    assert [turn.id for turn in await store.queries.turns(Filter(search='zebra "question 1"'))] == ["turn_1"]
    await take(store, ask(user("new")), answer("zebra too"))
    await store.writer.flush()
    assert len(await store.queries.turns(Filter(search="zebra"))) == 4
    await store.close()


@asynchronous
async def test_a_newer_version_is_refused(url: str) -> None:
    database = await Database.open(url)
    await database.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await database.close()
    with pytest.raises(
        ConfigError, match=rf"has version 9999, and this streamglot knows versions up to {HEAD}: a newer one made it"
    ):
        await Database.open(url)


@asynchronous
async def test_several_processes_that_start_at_once_make_it_once(url: str) -> None:
    databases = await asyncio.gather(*(Database.open(url) for _ in range(4)))
    for database in databases:
        await database.close()


def test_an_empty_batch_is_no_rows() -> None:
    assert rows_of([]) == rows_module.Rows()
