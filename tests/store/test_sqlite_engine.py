"""Connections and threads of SQLite: how much memory they keep."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from store.turns import asynchronous
from streamglot.store.database import Database
from streamglot.store.database.sql import Connection
from streamglot.store.database.sqlite import READER_CACHE_KB, WRITER_CACHE_KB, SqliteConnection

CACHE = "PRAGMA cache_size"


@asynchronous
async def test_all_writes_run_in_one_thread(tmp_path: Path) -> None:
    """Each thread has a heap of its own. The pages of the writing connection must not spread over all of them."""
    database = await Database.open(f"sqlite:///{tmp_path}/s.db")
    try:
        threads: set[int] = set()

        async def work(connection: Connection) -> None:
            threads.add(threading.get_ident())
            await connection.fetch(CACHE)

        for _ in range(3):
            await asyncio.gather(*(database.write(work) for _ in range(4)), *(database.fetch(CACHE) for _ in range(8)))
        assert len(threads) == 1
    finally:
        await database.close()


@asynchronous
async def test_a_reading_connection_keeps_few_pages(tmp_path: Path) -> None:
    database = await Database.open(f"sqlite:///{tmp_path}/s.db")
    try:
        assert (await database.fetch(CACHE))[0][0] == -READER_CACHE_KB
        assert (await database.write(lambda connection: connection.fetch(CACHE)))[0][0] == -WRITER_CACHE_KB
    finally:
        await database.close()


@asynchronous
async def test_reads_one_after_another_use_the_same_connection(tmp_path: Path) -> None:
    """A connection that was opened for many reads at once is left alone afterwards, with its memory."""
    database = await Database.open(f"sqlite:///{tmp_path}/s.db")
    try:
        await asyncio.gather(*(database.fetch(CACHE) for _ in range(8)))

        async def which(connection: Connection) -> int:
            assert isinstance(connection, SqliteConnection)
            return id(connection._driver)

        assert len({await database._engine.read(which) for _ in range(8)}) == 1
    finally:
        await database.close()


@asynchronous
async def test_a_statement_that_waits_for_something_else_is_a_defect(tmp_path: Path) -> None:
    """The work of a transaction runs in a thread without an event loop."""
    database = await Database.open(f"sqlite:///{tmp_path}/s.db")

    async def work(connection: Connection) -> None:
        await connection.execute("INSERT INTO epochs VALUES (1, 1.0)")
        await asyncio.sleep(0)

    try:
        with pytest.raises(RuntimeError, match="awaits only the methods of its connection"):
            await database.write(work)
        assert await database.fetch("SELECT * FROM epochs") == []
    finally:
        await database.close()
