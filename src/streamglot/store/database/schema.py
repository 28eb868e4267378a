"""The tables, and the version of the schema that a database has.

``schema.sql`` has what both databases have in common, ``sqlite.sql`` and ``postgres.sql`` the rest. A new database is made from these
files. A later version of the schema changes them, and adds a step to ``UPGRADES`` that makes the same of a database of the version
before.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

from ...errors import ConfigError
from .sql import Connection

Upgrade: TypeAlias = Callable[[Connection], Awaitable[object]]
"""Changes the schema by one version."""

UPGRADES: Final[list[Upgrade]] = []
"""The steps from the first version to the newest, in their order."""
_FOLDER: Final = Path(__file__).parent
_TABLE: Final = re.compile(r"^CREATE TABLE (\w+) \(\n(.*?)^\)", re.DOTALL | re.MULTILINE)
_COLUMN: Final = re.compile(r"^ {4}([a-z_]+) (SERIAL|TEXT|INTEGER|BIGINT|BOOLEAN|DOUBLE PRECISION|BYTEA)\b", re.MULTILINE)
_VERSIONS: Final = {
    True: "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ('schema_version', 'alembic_version')",
    False: "SELECT tablename AS name FROM pg_catalog.pg_tables WHERE schemaname = current_schema() "
    "AND tablename IN ('schema_version', 'alembic_version')",
}


def newest() -> int:
    """The version that this release makes."""
    return 1 + len(UPGRADES)


@cache
def script(is_sqlite: bool) -> str:
    """The statements that make the tables."""
    own = (_FOLDER / ("sqlite.sql" if is_sqlite else "postgres.sql")).read_text(encoding="utf-8")
    shared = (_FOLDER / "schema.sql").read_text(encoding="utf-8")
    if not is_sqlite:
        shared = re.sub(r"\bBLOB\b", "BYTEA", shared).replace(") WITHOUT ROWID;", ");")
    return f"{shared}\n{own}"


@cache
def tables() -> Mapping[str, Mapping[str, str]]:
    """The columns of each table with their types on PostgreSQL."""
    return {name: dict(_COLUMN.findall(body)) for name, body in _TABLE.findall(script(False))}


def columns(table: str) -> Mapping[str, str]:
    return tables()[table]


async def version(connection: Connection, shown: str) -> int:
    """The version of the database, 0 for an empty one. Raises if this release cannot use it. ``shown`` is its name in messages."""
    found = {row.name for row in await connection.fetch(_VERSIONS[connection.is_sqlite])}
    if "schema_version" in found:
        [row] = await connection.fetch("SELECT version FROM schema_version")
        if row.version > newest():
            raise ConfigError(
                f"the database {shown} has version {row.version}, but this streamglot knows only versions up to {newest()}: a newer release "
                "made it. Update streamglot, or point store.url at another database"
            )
        return int(row.version)
    if found:
        raise ConfigError(
            f"the database {shown} was made by a streamglot before its first release, and this one cannot read it. Move it away and start "
            "again with an empty one, or keep its turns first: `streamglot logs export` of the streamglot that made it"
        )
    return 0


async def upgrade(connection: Connection, shown: str) -> None:
    """Makes the tables, or changes them to the newest version. Another process may have done so while this one waited for the lock."""
    found = await version(connection, shown)
    if found == newest():
        return
    if not found:
        await connection.execute("CREATE TABLE schema_version (version INTEGER NOT NULL)")
        await connection.execute(f"INSERT INTO schema_version VALUES ({newest()})")
        for statement in statements(connection.is_sqlite):
            await connection.execute(statement)
        return
    for step in UPGRADES[found - 1 :]:
        await step(connection)
    await connection.execute(f"UPDATE schema_version SET version = {newest()}")


def statements(is_sqlite: bool) -> Iterator[str]:
    """The statements of the script. SQLite runs them one by one."""
    if not is_sqlite:
        yield script(False)
        return
    statement = ""
    for line in script(True).splitlines():
        if line.startswith("--"):
            continue
        statement += f"{line}\n"
        if sqlite3.complete_statement(statement):
            yield statement.strip()
            statement = ""
