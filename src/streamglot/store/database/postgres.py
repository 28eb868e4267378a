"""Runs work on PostgreSQL, in the event loop, on asyncpg."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

import asyncpg  # type: ignore[import-untyped]  # it has no types

from . import schema
from .sql import (
    Connection,
    DatabaseRow,
    Insert,
    NotUnique,
    PostgresError,
    SqlRow,
    SqlValue,
    SqlValues,
    for_postgres,
    row_class,
    searchable,
)

T = TypeVar("T")
AsyncpgConnection: TypeAlias = Any  # Any: asyncpg has no types

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 30.0
"""Seconds. A database that takes longer for one statement counts as unreachable."""
IDLE_SECONDS: Final = 1.0
"""Seconds. A connection that was idle for longer is tested before its next use: a round trip, as half a transaction takes. A server
that stops closes its connections, which is known without a test."""
PLANNING: Final = "SELECT " + ", ".join(
    f"set_config('{name}', '{value}', false)"
    for name, value in {
        **dict.fromkeys(("enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"), "off"),
        **dict.fromkeys(("random_page_cost", "seq_page_cost"), "0.01"),
    }.items()
)
"""Makes PostgreSQL plan the queries of a connection by the indexes, which are made for them, and not by statistics, which are missing or
old while a table grows. It looks up what it joins instead of reading whole tables. Pages cost little, so that it reads rows in the order
of an index instead of collecting and sorting them. What no index can do it does as before; that seems expensive then, and must not be
compiled for it (``jit``)."""
TEST: Final = "SELECT 1"
READERS: Final = 6
"""Read connections per process."""
ROWS_PER_STATEMENT: Final = 1_000
"""Rows per statement: some megabytes of contents, and far less overhead than rows."""


class PostgresConnection:
    """A ``Connection`` to a server. ``driver`` is that of asyncpg."""

    is_sqlite = False

    def __init__(self, driver: AsyncpgConnection) -> None:
        self.driver = driver
        self.used = time.monotonic()
        self._configured: set[str] = set()

    async def fetch(self, sql: str, /, **values: SqlValue) -> list[DatabaseRow]:
        statement, names = for_postgres(sql)
        rows = await self.driver.fetch(statement, *[searchable(values[name]) for name in names])
        return [make(*row) for row in rows] if rows and (make := row_class(tuple(rows[0].keys()))) else []

    async def execute(self, sql: str, /, **values: SqlValue) -> int:
        statement, names = for_postgres(sql)
        return _count(await self.driver.execute(statement, *[searchable(values[name]) for name in names]))

    async def execute_each(self, sql: str, rows: Sequence[SqlRow]) -> None:
        statement, names = for_postgres(sql)
        if rows:
            await self.driver.executemany(statement, [[row[name] for name in names] for row in rows])

    async def insert(self, insert: Insert, rows: Sequence[SqlValues]) -> int:
        changed = 0
        for begin in range(0, len(rows), ROWS_PER_STATEMENT):
            columns = map(list, zip(*rows[begin : begin + ROWS_PER_STATEMENT], strict=True))
            changed += _count(await self.driver.execute(_of_arrays(insert), *columns))
        return changed

    async def configure(self, setting: str) -> None:
        if setting not in self._configured:
            await self.driver.execute(setting)
            self._configured.add(setting)


class PostgresEngine:
    """The connections to one database."""

    def __init__(self, options: Mapping[str, SqlValue]) -> None:
        """``options`` are those of ``asyncpg.connect``."""
        self._writers = _Connections(options, 1)
        self._readers = _Connections(options, READERS, PLANNING)

    async def read(self, work: Callable[[Connection], Coroutine[object, None, T]]) -> T:
        """Runs one query, which sees one moment without a transaction."""
        with _translated():
            async with self._readers.one() as connection:
                return await work(connection)

    async def write(self, work: Callable[[Connection], Coroutine[object, None, T]], lock: str = "") -> T:
        """Runs a transaction. Begins it with the statement ``lock``, in one round trip."""
        with _translated():
            async with self._writers.one() as connection:
                try:
                    await connection.driver.execute(f"BEGIN; {lock}")
                    done = await work(connection)
                    if await connection.driver.execute("COMMIT") != "COMMIT":
                        raise PostgresError("a statement of the transaction had failed, so it was rolled back")
                except BaseException:
                    await _roll_back(connection.driver)
                    raise
                return done

    async def write_each(self, work: Callable[[Connection], Coroutine[object, None, T]]) -> T:
        """Saves the round trips of a transaction's begin and end."""
        with _translated():
            async with self._writers.one() as connection:
                return await work(connection)

    async def probe(self, whole: bool) -> None:  # noqa: ARG002  # only SQLite checks whole files
        """Reads one row. The server checks its own files."""
        await self.read(lambda connection: connection.fetch("SELECT 1 FROM turns LIMIT 1"))

    async def release_space(self) -> None:
        """Does nothing: PostgreSQL does this automatically."""

    def version(self) -> None:
        """None: the server does not say whether another process has written."""

    async def dispose(self) -> None:
        """Closes the connections. They are opened again when they are needed."""
        await self._readers.dispose()
        await self._writers.dispose()

    async def close(self) -> None:
        await self.dispose()


class _Connections:
    """Connections that are used one after another, the last one first."""

    def __init__(self, options: Mapping[str, SqlValue], most: int, setting: str = "") -> None:
        self._options = {"timeout": CONNECT_SECONDS, "command_timeout": ANSWER_SECONDS, **options}
        self._setting = setting
        self._free = asyncio.Semaphore(most)
        self._idle: list[PostgresConnection] = []

    @asynccontextmanager
    async def one(self) -> AsyncIterator[PostgresConnection]:
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._free.acquire()
        try:
            connection = await self._usable() or await self._connect()
            idle = self._idle
            try:
                yield connection
            finally:
                connection.used = time.monotonic()
                if idle is not self._idle:  # they were disposed of meanwhile
                    connection.driver.terminate()
                elif not connection.driver.is_closed():
                    idle.append(connection)
        finally:
            self._free.release()

    async def _usable(self) -> PostgresConnection | None:
        """An idle connection. If it is lost, all others are given up, too."""
        if not self._idle:
            return None
        connection = self._idle.pop()
        driver = connection.driver
        if not driver.is_closed():
            if time.monotonic() - connection.used <= IDLE_SECONDS:
                return connection
            try:
                await driver.execute(TEST, timeout=CONNECT_SECONDS)
            except BaseException as error:  # any error: this connection cannot run a transaction
                driver.terminate()
                if not isinstance(error, Exception):
                    raise
            else:
                return connection
        others, self._idle = self._idle, []
        for other in others:
            other.driver.terminate()
        return None

    async def _connect(self) -> PostgresConnection:
        driver = await asyncpg.connect(**self._options)
        if self._setting:
            await driver.execute(self._setting)
        return PostgresConnection(driver)

    async def dispose(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            with suppress(Exception):  # the server may be gone
                await connection.driver.close(timeout=CONNECT_SECONDS)


@contextmanager
def _translated() -> Iterator[None]:
    """Raises the errors of asyncpg as those of the store."""
    try:
        yield
    except asyncpg.PostgresError as error:  # its first argument is the message; the rest may quote values
        if isinstance(error, asyncpg.UniqueViolationError):
            raise NotUnique(error.args[0]) from error
        message = error.args[0].partition(":")[0] if isinstance(error, asyncpg.DataError) else error.args[0]
        raise PostgresError(message, str(error.sqlstate or "")) from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise PostgresError(str(error)) from error


async def _roll_back(driver: AsyncpgConnection) -> None:
    """Rolls back. A connection on which this fails is given up; a new one replaces it."""
    if driver.is_closed():
        return
    try:
        await driver.execute("ROLLBACK")
    except BaseException as error:
        driver.terminate()
        if not isinstance(error, Exception):
            raise


@cache
def _of_arrays(insert: Insert) -> str:
    """The statement that adds rows from an array for each column."""
    types, names = schema.columns(insert.table), ", ".join(insert.columns)
    arrays = ", ".join(f"${place}::{types[name]}[]" for place, name in enumerate(insert.columns, 1))
    new = f"SELECT {', '.join(f'new.{name}' for name in insert.columns)} FROM unnest({arrays}) AS new ({names})"
    return f"INSERT INTO {insert.table} ({names}) {new} {insert.where} {insert.end}"


def _count(status: str) -> int:
    """The number at the end of a status such as ``INSERT 0 5``."""
    count = status.rpartition(" ")[2]
    return int(count) if count.isdecimal() else 0
