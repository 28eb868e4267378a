"""Runs statements of PostgreSQL on asyncpg, without SQLAlchemy.

SQLAlchemy takes 200 µs of CPU for each statement, four times as much as asyncpg. The functions for a ``Connection`` are called
within SQLAlchemy's ``run_sync``, like other work on a connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError
from sqlalchemy.util import await_only

from .sql_types import SqlValue, SqlValues

T = TypeVar("T")
AsyncpgConnection: TypeAlias = Any  # Any: asyncpg has no types


def run(connection: Connection, sql: str, values: Sequence[SqlValue]) -> int:
    """Runs a statement and returns the number of rows that it changed."""
    return _count(await_only(_translated(sql, _driver(connection).execute, sql, *values)))


def run_each(connection: Connection, sql: str, rows: Sequence[SqlValues]) -> None:
    """Runs a statement once for each row, in one round trip."""
    await_only(_translated(sql, _driver(connection).executemany, sql, rows))


def fetch(connection: Connection, sql: str, values: Sequence[SqlValue]) -> list[SqlValues]:
    """Returns the rows of a query."""
    rows: list[SqlValues] = await_only(_translated(sql, _driver(connection).fetch, sql, *values))
    return rows


async def begin(driver: AsyncpgConnection, lock: str) -> None:
    """Begins a transaction and takes a lock, in one round trip. ``lock`` is a statement, or empty."""
    await _translated("BEGIN", driver.execute, f"BEGIN; {lock}")


async def commit(driver: AsyncpgConnection) -> None:
    """Commits. Raises if the database rolled back because a statement had failed."""
    if await _translated("COMMIT", driver.execute, "COMMIT") != "COMMIT":
        raise DBAPIError("COMMIT", None, RuntimeError("a statement of the transaction had failed, so it was rolled back"))


async def roll_back(driver: AsyncpgConnection) -> None:
    """Rolls back. A connection on which this fails is given up; a new one replaces it."""
    if driver.is_closed():
        return
    try:
        await driver.execute("ROLLBACK")
    except BaseException as error:
        driver.terminate()
        if not isinstance(error, Exception):
            raise


def _driver(connection: Connection) -> AsyncpgConnection:
    return connection.connection.driver_connection


async def _translated(sql: str, call: Callable[..., Awaitable[T]], *values: object) -> T:
    """Calls asyncpg, and raises its errors as those of SQLAlchemy, which the store knows."""
    import asyncpg  # type: ignore[import-untyped]  # it has no types; loaded here, because only PostgreSQL needs it

    try:
        return await call(*values)
    except asyncpg.IntegrityConstraintViolationError as error:
        raise IntegrityError(sql, None, error, hide_parameters=True) from error
    except asyncpg.PostgresError as error:
        raise DBAPIError(sql, None, error, hide_parameters=True) from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:  # the connection is lost, or not usable
        raise InterfaceError(sql, None, error, hide_parameters=True) from error


def _count(status: str) -> int:
    """Returns the number at the end of a status such as ``INSERT 0 5``."""
    count = status.rpartition(" ")[2]
    return int(count) if count.isdecimal() else 0
