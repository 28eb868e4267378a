"""Connections of PostgreSQL: which statements are transactions, and how a lost connection is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import pytest
from sqlalchemy import Connection, func, select, text

from store.servers import Postgres
from store.turns import asynchronous
from streamglot.store import engines, schema
from streamglot.store.database import Database

BACKEND = text("SELECT pg_backend_pid()")


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = await Database.open(url)
    try:
        yield database
    finally:
        await database.close()


def add(connection: Connection, number: int) -> None:
    connection.execute(schema.steps.insert().values(turn_id="t", number=number, body=""))


def add_and_fail(connection: Connection) -> None:
    add(connection, 1)
    raise ValueError("a fault after the first statement")


async def count(database: Database) -> int:
    return int((await database.fetch(select(func.count()).select_from(schema.steps)))[0][0])


@asynchronous
async def test_each_statement_of_write_each_is_a_transaction_on_postgresql_only(url: str) -> None:
    async with opened(url) as database:
        with pytest.raises(ValueError, match="a fault"):
            await database.write_each(add_and_fail)
        assert await count(database) == (0 if database.is_sqlite else 1)


@asynchronous
async def test_a_transaction_after_write_each_is_whole_or_nothing(url: str) -> None:
    """They share a connection, and one must not leave its mode to the other."""
    async with opened(url) as database:
        await database.write_each(lambda connection: add(connection, 0))
        with pytest.raises(ValueError, match="a fault"):
            await database.write(add_and_fail)
        assert await count(database) == 1
        await database.write(lambda connection: add(connection, 1))
        await database.write_each(lambda connection: add(connection, 2))
        assert await count(database) == 3


@asynchronous
async def test_no_connection_is_left_inside_a_transaction(postgres: Postgres) -> None:
    url = await postgres.database()
    async with opened(url) as database:
        await database.write(lambda connection: add(connection, 0))
        await database.write_each(lambda connection: add(connection, 1))
        await asyncio.gather(*(count(database) for _ in range(4)))
        other = await asyncpg.connect(url)
        try:
            states = await other.fetch(
                "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        finally:
            await other.close()
        assert {row["state"] for row in states} == {"idle"}


class Pings:
    """Counts the tests of connections."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        engine: Any = database._engines
        ping = engine.dialect.do_ping

        def counted(connection: Any) -> bool:
            self.count += 1
            return bool(ping(connection))

        monkeypatch.setattr(engine.dialect, "do_ping", counted)


@asynchronous
async def test_a_connection_is_tested_only_after_it_was_idle(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(await postgres.database()) as database:
        pings = Pings(database, monkeypatch)
        monkeypatch.setattr(engines, "IDLE_SECONDS", 1e9)
        for _ in range(3):
            await count(database)
            await database.write_each(lambda connection: connection.execute(BACKEND).all())
        assert pings.count == 0
        monkeypatch.setattr(engines, "IDLE_SECONDS", -1.0)
        await count(database)
        await database.write(lambda connection: connection.execute(BACKEND).all())
        assert pings.count == 2


@asynchronous
async def test_a_connection_that_the_server_ended_is_replaced(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "IDLE_SECONDS", -1.0)
    url = await postgres.database()
    async with opened(url) as database:

        async def backends() -> set[int]:
            reader = (await database.fetch(BACKEND))[0][0]
            writer = await database.write(lambda connection: connection.execute(BACKEND).scalar_one())
            alone = await database.write_each(lambda connection: connection.execute(BACKEND).scalar_one())
            assert writer == alone, "both kinds of writes use one connection"
            return {reader, writer}

        before = await backends()
        other = await asyncpg.connect(url)
        try:
            for backend in before:
                assert await other.fetchval("SELECT pg_terminate_backend($1, 10000)", backend)
        finally:
            await other.close()
        assert not before & await backends()
