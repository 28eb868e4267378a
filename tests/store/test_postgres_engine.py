"""Connections of PostgreSQL: which statements are transactions, and how a lost connection is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import pytest

from store.servers import Postgres
from store.tables import counted
from store.turns import asynchronous
from streamglot.store.database import Database, StoreUnavailable
from streamglot.store.database import postgres as engines
from streamglot.store.database.sql import Connection, Insert, NotUnique, PostgresError

BACKEND = "SELECT pg_backend_pid() AS pid"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = await Database.open(url)
    try:
        yield database
    finally:
        await database.close()


async def add(connection: Connection, number: int) -> None:
    await connection.execute("INSERT INTO steps VALUES ('t', :number, '')", number=number)


async def add_and_fail(connection: Connection) -> None:
    await add(connection, 1)
    raise ValueError("a fault after the first statement")


async def count(database: Database) -> int:
    return await counted(database, "steps")


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
                " AND backend_type = 'client backend'"  # and not a worker that cleans up
            )
        finally:
            await other.close()
        assert {row["state"] for row in states} == {"idle"}


class Pings:
    """Counts the tests of connections, before their next use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        execute = asyncpg.Connection.execute

        async def noted(connection: asyncpg.Connection, sql: str, *values: Any, **more: Any) -> Any:
            self.count += sql == engines.TEST
            return await execute(connection, sql, *values, **more)

        monkeypatch.setattr(asyncpg.Connection, "execute", noted)


@asynchronous
async def test_a_connection_is_tested_only_after_it_was_idle(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(await postgres.database()) as database:
        pings = Pings(monkeypatch)
        monkeypatch.setattr(engines, "IDLE_SECONDS", 1e9)
        for _ in range(3):
            await count(database)
            await database.write_each(lambda connection: connection.fetch(BACKEND))
        assert pings.count == 0
        monkeypatch.setattr(engines, "IDLE_SECONDS", -1.0)
        await count(database)
        await database.write(lambda connection: connection.fetch(BACKEND))
        assert pings.count == 2


@asynchronous
async def test_a_connection_that_the_server_ended_is_replaced(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "IDLE_SECONDS", -1.0)
    url = await postgres.database()
    async with opened(url) as database:

        async def backends() -> set[int]:
            reader = (await database.fetch(BACKEND))[0][0]
            writer = (await database.write(lambda connection: connection.fetch(BACKEND)))[0].pid
            alone = (await database.write_each(lambda connection: connection.fetch(BACKEND)))[0].pid
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


@asynchronous
async def test_a_transaction_with_a_failed_statement_is_not_taken_for_committed(postgres: Postgres) -> None:
    """PostgreSQL answers a COMMIT after a failed statement with ROLLBACK, and with no error."""
    async with opened(await postgres.database()) as database:

        async def work(connection: Connection) -> None:
            await add(connection, 1)
            with suppress(asyncpg.PostgresError):
                await connection.execute("SELECT 1 / 0")

        with pytest.raises(StoreUnavailable, match="rolled back"):
            await database.write(work)
        assert await count(database) == 0
        await database.write(lambda connection: add(connection, 1))
        assert await count(database) == 1


@asynchronous
async def test_errors_of_bulk_statements_are_those_of_the_store(postgres: Postgres) -> None:
    url = await postgres.database()
    async with opened(url) as database:
        insert = Insert("steps", ("turn_id", "number", "body"), "")
        await database.write(lambda connection: connection.insert(insert, [("t", 1, "")]))
        with pytest.raises(NotUnique):
            await database.write(lambda connection: connection.insert(insert, [("t", 1, "")]))
        with pytest.raises(PostgresError, match="invalid input for query argument"):
            await database.write(lambda connection: connection.insert(insert, [("t", 2**40, "")]))
        assert await count(database) == 1
        backend = (await database.write(lambda connection: connection.fetch(BACKEND)))[0].pid

        async def lose_the_connection(connection: Connection) -> int:
            await end(url, backend)
            return await connection.insert(insert, [("t", 2, "")])

        with pytest.raises(StoreUnavailable):
            await database.write(lose_the_connection)
        assert await database.write(lambda connection: connection.insert(insert, [("t", 2, "")])) == 1


async def end(url: str, backend: int) -> None:
    other = await asyncpg.connect(url)
    try:
        assert await other.fetchval("SELECT pg_terminate_backend($1, 10000)", backend)
    finally:
        await other.close()


@asynchronous
async def test_a_cancelled_transaction_is_rolled_back(postgres: Postgres) -> None:
    async with opened(await postgres.database()) as database:
        waits = asyncio.Event()

        async def work(connection: Connection) -> None:
            await add(connection, 1)
            waits.set()
            await connection.execute("SELECT pg_sleep(600)")

        writing = asyncio.create_task(database.write(work))
        await waits.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await count(database) == 0
        await database.write(lambda connection: add(connection, 1))
        assert await count(database) == 1
