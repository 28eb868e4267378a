"""The engine of each database. Work on a connection is plain synchronous code. SQLite runs a whole transaction in a thread,
because a thread switch per statement costs more than the statements; PostgreSQL runs it in the event loop.

Readers and writers have separate connections, so that a write never waits behind reads.
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from sqlalchemy import URL, Connection, Dialect, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import InvalidatePoolError

from ..extras import missing_package
from . import asyncpg_statements
from .sql_types import SqlValue

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.pool import ConnectionPoolEntry

T = TypeVar("T")

BUSY_SECONDS: Final = 1.0
"""How long SQLite itself waits for a lock, in seconds. After that the writer waits, and counts it."""
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 30.0
"""Seconds. A database that takes longer for one statement counts as unreachable."""
IDLE_SECONDS: Final = 1.0
"""Seconds. A PostgreSQL connection that was idle for longer is tested before its next use. A test takes three round trips, as
many as a transaction. A server that stops closes its connections, which is known without a test."""
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
READERS: Final = 6
"""Read connections per process."""
WRITER_CACHE_KB: Final = 4_000
"""KiB of pages that the writing connection of SQLite keeps: the ends of all tables and indexes, and the pages of a transaction."""
READER_CACHE_KB: Final = 500
"""KiB of pages that each reading connection of SQLite keeps. Each write makes them outdated, so more would only fill memory: a query
over a million items would keep megabytes of pages that are never used again."""
CHECKPOINT_PAGES: Final = 4_000
"""Size at which SQLite moves its log into the file: 16 MB, about a second of a busy gateway."""

PROBED: Final = ("turns", "sessions", "messages", "endings", "texts", "frames", "chunks", "keys", "streams")
"""Tables whose first and last rows are read to check that the file can be used."""
FREED_PAGES: Final = 2_000
"""Pages freed per transaction: 8 MB, which other writers can wait for."""


class Engines(Protocol):
    dialect: Dialect

    async def read(self, work: Callable[[Connection], T]) -> T: ...

    async def write(self, work: Callable[[Connection], T], lock: str = "") -> T:
        """Runs a transaction: all of it, or nothing. PostgreSQL begins it with the statement ``lock``."""
        ...

    async def migrate(self, work: Callable[[Connection], T]) -> T:
        """Runs a transaction that SQLAlchemy manages, as migrations expect."""
        ...

    async def write_each(self, work: Callable[[Connection], T]) -> T:
        """Runs statements of which each may be a transaction of its own, if that is cheaper."""
        ...

    async def probe(self, whole: bool) -> None:
        """Raises if the database cannot be read. Reads some rows of each table, or checks everything (``whole``) where that is
        possible."""
        ...

    async def release_space(self) -> None:
        """Returns unused pages of the file to the file system."""
        ...

    def version(self) -> tuple[int, int] | None:
        """Changes when another process has written; None if that is unknown. Must not be called during a write."""
        ...

    async def dispose(self) -> None:
        """Closes the connections. They are opened again when they are needed."""

    async def close(self) -> None: ...


class SqliteEngine:
    """Runs work on SQLite, in threads."""

    def __init__(self, place: URL) -> None:
        self._reading = self._engine(place, READERS, READER_CACHE_KB)
        self._writing = self._engine(place, 1, WRITER_CACHE_KB)
        self._transactions = self._writing.execution_options(writes=True)  # the same connection
        self.dialect = self._writing.dialect
        self._file = place.database or ""
        self._writer: sqlite3.Connection | None = None
        self._writers = 0
        event.listen(self._writing, "connect", self._connected)
        self._threads = ThreadPoolExecutor(READERS, "store")
        # One thread for all writes: each thread has a heap of its own, and the pages of a connection would spread over all of them.
        self._write_thread = ThreadPoolExecutor(1, "store-writer")

    def _engine(self, place: URL, connections: int, cache_kb: int) -> Engine:
        settings = {"timeout": BUSY_SECONDS, "check_same_thread": False}
        pool = {"pool_size": connections, "max_overflow": 0, "pool_timeout": ANSWER_SECONDS, "pool_use_lifo": True}
        engine = create_engine(place, connect_args=settings, hide_parameters=True, **pool)
        event.listen(engine, "connect", partial(_prepare, cache_kb))
        event.listen(engine, "begin", _begin)
        event.listen(engine, "before_cursor_execute", _clean_parameters, retval=True)
        return engine

    async def read(self, work: Callable[[Connection], T]) -> T:
        def ask() -> T:
            with self._reading.connect() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)

    async def write(self, work: Callable[[Connection], T], lock: str = "") -> T:  # noqa: ARG002  # SQLite locks by itself
        """Runs a transaction in a thread. If the caller is cancelled, the thread rolls back: it cannot be stopped."""
        left = False

        def do() -> T:
            with self._transactions.begin() as connection:
                done = work(connection)
                if left:
                    raise asyncio.CancelledError
                return done

        try:
            return await asyncio.get_running_loop().run_in_executor(self._write_thread, do)
        except asyncio.CancelledError:
            left = True
            raise

    async def migrate(self, work: Callable[[Connection], T]) -> T:
        return await self.write(work)

    async def write_each(self, work: Callable[[Connection], T]) -> T:
        """Runs one transaction, because a transaction of SQLite costs more than a statement."""
        return await self.write(work)

    async def probe(self, whole: bool) -> None:
        """Uses a connection of its own, because the others have pages in memory and do not notice a changed file."""
        place = f"{Path(self._file).as_uri()}?mode=ro"

        def look() -> None:
            with closing(sqlite3.connect(place, timeout=BUSY_SECONDS, uri=True)) as connection:
                for table in PROBED:
                    connection.execute(f"SELECT rowid FROM {table} ORDER BY rowid LIMIT 1").fetchone()
                    connection.execute(f"SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT 1").fetchone()
                if whole and (found := connection.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):
                    raise sqlite3.DatabaseError(f"the file is damaged: {found[0] if found else 'it cannot be checked'}")

        await asyncio.get_running_loop().run_in_executor(self._threads, look)

    async def release_space(self) -> None:
        """Frees the pages in small transactions, so that others can write in between."""

        def do() -> None:
            with closing(self._writing.raw_connection()) as connection:
                cursor = connection.cursor()
                free, before = _free(cursor), 0
                while free and free != before:
                    cursor.execute(f"PRAGMA incremental_vacuum({FREED_PAGES})")
                    cursor.fetchall()  # each step frees one page
                    free, before = _free(cursor), free
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        await asyncio.get_running_loop().run_in_executor(self._write_thread, do)

    def _connected(self, connection: sqlite3.Connection, _record: object) -> None:
        self._writer = connection
        self._writers += 1

    def version(self) -> tuple[int, int] | None:
        """SQLite counts the commits of other connections per connection, and this process writes through this one only. The
        count is read from shared memory, without a disk access."""
        try:
            return None if self._writer is None else (self._writers, self._writer.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            return None

    async def dispose(self) -> None:
        self._writer = None
        self._reading.dispose()
        self._writing.dispose()

    async def close(self) -> None:
        await asyncio.to_thread(self._write_thread.shutdown)
        await asyncio.to_thread(self._threads.shutdown)
        await self.dispose()


class PostgresEngine:
    """Runs work on PostgreSQL, in the event loop."""

    def __init__(self, place: URL) -> None:
        self._writing = self._engine(place, 1)
        self._writing_each = self._writing.execution_options(isolation_level="AUTOCOMMIT")  # the same connection
        self._reading = self._engine(
            place, READERS, isolation_level="AUTOCOMMIT"
        )  # a query sees one moment without a transaction
        event.listen(self._reading.sync_engine, "connect", self._plan_by_indexes)
        self.dialect = self._writing.dialect

    def _engine(self, place: URL, connections: int, **more: object) -> AsyncEngine:
        """``more``: options of SQLAlchemy, which checks them itself."""
        from sqlalchemy.ext.asyncio import create_async_engine  # it loads the ORM, which SQLite does not need

        settings = {"timeout": CONNECT_SECONDS, "command_timeout": ANSWER_SECONDS}
        pool = {"pool_size": connections, "max_overflow": 0, "pool_timeout": ANSWER_SECONDS}
        try:
            engine = create_async_engine(place, connect_args=settings, hide_parameters=True, **pool, **more)
        except ModuleNotFoundError as error:
            raise missing_package(error) or error from None
        event.listen(engine.sync_engine, "before_cursor_execute", _clean_parameters, retval=True)
        event.listen(engine.sync_engine, "checkout", self._test)
        event.listen(engine.sync_engine, "checkin", _note_use)
        return engine

    def _plan_by_indexes(self, connection: DBAPIConnection, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(PLANNING)
        cursor.close()

    def _test(self, connection: DBAPIConnection, record: ConnectionPoolEntry, _proxy: object) -> None:
        """Replaces all connections of the pool if this one is lost."""
        lost = record.driver_connection is None or record.driver_connection.is_closed()
        if not lost and time.monotonic() - record.info.get(_USED, math.inf) > IDLE_SECONDS:
            try:
                self.dialect.do_ping(connection)
            except Exception:  # any error: this connection cannot run a transaction
                lost = True
        if lost:
            raise InvalidatePoolError

    async def read(self, work: Callable[[Connection], T]) -> T:
        async with self._reading.connect() as connection:
            return await connection.run_sync(work)

    async def write(self, work: Callable[[Connection], T], lock: str = "") -> T:
        """Begins and ends the transaction on asyncpg, which costs two round trips with the lock, and a fifth of SQLAlchemy's time."""
        async with self._writing_each.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            try:
                await asyncpg_statements.begin(driver, lock)
                done = await connection.run_sync(work)
                await asyncpg_statements.commit(driver)
            except BaseException:
                await asyncpg_statements.roll_back(driver)
                raise
            return done

    async def migrate(self, work: Callable[[Connection], T]) -> T:
        async with self._writing.begin() as connection:
            return await connection.run_sync(work)

    async def write_each(self, work: Callable[[Connection], T]) -> T:
        """Saves the round trips of a transaction's begin and end."""
        async with self._writing_each.connect() as connection:
            return await connection.run_sync(work)

    async def probe(self, whole: bool) -> None:  # noqa: ARG002  # only SQLite checks whole files
        """Reads one row. The server checks its own files."""
        await self.read(lambda connection: connection.exec_driver_sql(f"SELECT 1 FROM {PROBED[0]} LIMIT 1").all())

    async def release_space(self) -> None:
        """Does nothing: PostgreSQL does this automatically."""

    def version(self) -> None:
        return None

    async def dispose(self) -> None:
        await self._reading.dispose()
        await self._writing.dispose()

    async def close(self) -> None:
        await self.dispose()


_USED: Final = "streamglot.used"


def _note_use(_connection: object, record: ConnectionPoolEntry) -> None:
    record.info[_USED] = time.monotonic()


def engines(place: URL) -> Engines:
    return SqliteEngine(place) if place.drivername == "sqlite" else PostgresEngine(place)


def _clean_parameters(
    _connection: Connection,
    _cursor: object,
    statement: str,
    parameters: dict[str, object] | tuple[object, ...],
    _context: object,
    many: bool,
) -> tuple[str, dict[str, object] | tuple[object, ...]]:
    """Replaces text that no database can hold (NUL in PostgreSQL, half of a surrogate pair in both) in a query's parameters. It
    comes from clients and command lines. The replacement is a character that no id, name or word contains, so the query finds
    nothing. Bulk rows were cleaned when they were made."""
    if many or not parameters:
        return statement, parameters
    if isinstance(parameters, dict):
        return statement, {name: searchable(value) for name, value in parameters.items()}
    return statement, tuple(searchable(value) for value in parameters)


def searchable(value: SqlValue) -> SqlValue:
    """The value in a form that the database accepts in a query."""
    if not isinstance(value, str) or (value.isascii() and "\0" not in value):
        return value
    return value.replace("\0", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _prepare(cache_kb: int, connection: sqlite3.Connection, _record: object) -> None:
    """Configures a connection. Transactions begin explicitly, in ``_begin``."""
    connection.isolation_level = None
    cursor = connection.cursor()
    if not cursor.execute("PRAGMA page_count").fetchone()[0]:  # it takes effect only before the first page is made
        cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute(f"PRAGMA cache_size = -{cache_kb}")
    cursor.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    cursor.close()


def _free(cursor: Any) -> int:  # Any: a cursor whose ``execute`` returns itself, which DB-API does not promise
    return int(cursor.execute("PRAGMA freelist_count").fetchone()[0])


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
