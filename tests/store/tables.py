"""Rows of any table, for tests."""

from __future__ import annotations

from typing import Any

from streamglot.store.database import Database
from streamglot.store.database.sql import Connection, insert_row


async def add(database: Database, table: str, *rows: dict[str, Any]) -> None:
    """Adds rows that have the same columns."""

    async def work(connection: Connection) -> None:
        for row in rows:
            await connection.execute(insert_row(table, row), **row)

    await database.write(work)


async def counted(database: Database, table: str) -> int:
    return int((await database.fetch(f"SELECT count(*) AS rows FROM {table}"))[0].rows)
