"""The engine of each kind of database. Work on a connection is written as plain code: SQLite does it in a thread, all of a
transaction at once, because two threads that wait for each other at every statement cost more than the statements; PostgreSQL
does it in the loop.

Who reads and who writes have connections of their own: nobody who writes waits behind those who read.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from sqlalchemy import URL, Connection, Dialect, Engine, create_engine, event

from ..extras import missing_package

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")

BUSY_SECONDS: Final = 1.0
"""How long SQLite itself waits for a lock; after that the writer waits, and counts it."""
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 30.0
"""A database that takes longer over one statement is as good as gone."""
READERS: Final = 6
"""Connections for questions, of each process."""
CHECKPOINT_PAGES: Final = 4_000
"""How much of the log SQLite lets come together before it goes into the file: 16 MB, a second of a busy gateway."""

PROBED: Final = ("turns", "sessions", "messages", "endings", "texts", "frames", "chunks", "keys", "streams")
"""Tables whose first and last rows are read to see whether the file can be used."""
FREED_PAGES: Final = 2_000
"""In one transaction: 8 MB, no longer than others can wait."""


class Engines(Protocol):
    dialect: Dialect

    async def read(self, work: Callable[[Connection], T]) -> T: ...

    async def write(self, work: Callable[[Connection], T]) -> T:
        """A transaction: all of it, or nothing."""
        ...

    async def probe(self, whole: bool) -> None:
        """Raises if the database cannot be read: some of each table, or all of it (``whole``) where that can be checked."""
        ...

    async def give_back(self) -> None:
        """What the file has and nothing takes any more, to the file system."""
        ...

    def version(self) -> tuple[int, int] | None:
        """Another one once another process has written; None where that cannot be told. Not to be asked while we write."""
        ...

    async def dispose(self) -> None:
        """Closes what is open; it is opened again when it is needed."""

    async def close(self) -> None: ...


class SqliteEngine:
    """SQLite."""

    def __init__(self, place: URL) -> None:
        self._reading, self._writing = self._engine(place, READERS), self._engine(place, 1)
        self.dialect = self._writing.dialect
        self._file = place.database or ""
        self._writer: sqlite3.Connection | None = None
        self._writers = 0
        event.listen(self._writing, "connect", self._connected)
        self._threads = ThreadPoolExecutor(READERS + 1, "store")

    def _engine(self, place: URL, connections: int) -> Engine:
        settings = {"timeout": BUSY_SECONDS, "check_same_thread": False}
        pool = {"pool_size": connections, "max_overflow": 0, "pool_timeout": ANSWER_SECONDS}
        engine = create_engine(place, connect_args=settings, hide_parameters=True, **pool)
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
        event.listen(engine, "before_cursor_execute", _clean_question, retval=True)
        return engine

    async def read(self, work: Callable[[Connection], T]) -> T:
        def ask() -> T:
            with self._reading.connect() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Who stops waiting for it has written nothing: a thread cannot be stopped, but it can take back what it did."""
        left = False

        def do() -> T:
            with self._writing.execution_options(writes=True).begin() as connection:
                done = work(connection)
                if left:
                    raise asyncio.CancelledError
                return done

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, do)
        except asyncio.CancelledError:
            left = True
            raise

    async def probe(self, whole: bool) -> None:
        """Over a connection of its own: others have pages in memory, and do not notice what became of the file."""
        place = f"{Path(self._file).as_uri()}?mode=ro"

        def look() -> None:
            with closing(sqlite3.connect(place, timeout=BUSY_SECONDS, uri=True)) as connection:
                for table in PROBED:
                    connection.execute(f"SELECT rowid FROM {table} ORDER BY rowid LIMIT 1").fetchone()
                    connection.execute(f"SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT 1").fetchone()
                if whole and (found := connection.execute("PRAGMA quick_check(1)").fetchone()) != ("ok",):
                    raise sqlite3.DatabaseError(f"the file is damaged: {found[0] if found else 'it cannot be checked'}")

        await asyncio.get_running_loop().run_in_executor(self._threads, look)

    async def give_back(self) -> None:
        """Bit by bit, each a transaction of its own: others can write in between."""

        def do() -> None:
            with closing(self._writing.raw_connection()) as connection:
                cursor = connection.cursor()
                free, before = _free(cursor), 0
                while free and free != before:
                    cursor.execute(f"PRAGMA incremental_vacuum({FREED_PAGES})")
                    cursor.fetchall()  # a page for each step
                    free, before = _free(cursor), free
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        await asyncio.get_running_loop().run_in_executor(self._threads, do)

    def _connected(self, connection: sqlite3.Connection, _record: object) -> None:
        self._writer = connection
        self._writers += 1

    def version(self) -> tuple[int, int] | None:
        """Each connection counts what others write, and all that we write goes through this one. It is asked of memory that all
        processes share, so nobody waits for a disk."""
        try:
            return None if self._writer is None else (self._writers, self._writer.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            return None

    async def dispose(self) -> None:
        self._writer = None
        self._reading.dispose()
        self._writing.dispose()

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)
        await self.dispose()


class PostgresEngine:
    """PostgreSQL."""

    def __init__(self, place: URL) -> None:
        self._reading, self._writing = self._engine(place, READERS), self._engine(place, 1)
        self.dialect = self._writing.dialect

    def _engine(self, place: URL, connections: int) -> AsyncEngine:
        from sqlalchemy.ext.asyncio import create_async_engine  # it loads the ORM, which SQLite has no use for

        settings = {"timeout": CONNECT_SECONDS, "command_timeout": ANSWER_SECONDS}
        pool = {"pool_size": connections, "max_overflow": 0, "pool_timeout": ANSWER_SECONDS, "pool_pre_ping": True}
        try:
            engine = create_async_engine(place, connect_args=settings, hide_parameters=True, **pool)
        except ModuleNotFoundError as error:
            raise missing_package(error) or error from None
        event.listen(engine.sync_engine, "before_cursor_execute", _clean_question, retval=True)
        return engine

    async def read(self, work: Callable[[Connection], T]) -> T:
        async with self._reading.connect() as connection:
            return await connection.run_sync(work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        async with self._writing.begin() as connection:
            return await connection.run_sync(work)

    async def probe(self, whole: bool) -> None:  # noqa: ARG002
        """The server checks its own files."""
        await self.read(lambda connection: connection.exec_driver_sql(f"SELECT 1 FROM {PROBED[0]} LIMIT 1").all())

    async def give_back(self) -> None:
        """It does so by itself."""

    def version(self) -> None:
        return None

    async def dispose(self) -> None:
        await self._reading.dispose()
        await self._writing.dispose()

    async def close(self) -> None:
        await self.dispose()


def engines(place: URL) -> Engines:
    return SqliteEngine(place) if place.drivername == "sqlite" else PostgresEngine(place)


def _clean_question(
    _connection: Connection, _cursor: object, statement: str, parameters: Any, _context: object, many: bool
) -> tuple[str, Any]:
    """Text that no database can hold (NUL in PostgreSQL, half of a surrogate pair in both) comes from clients and from command
    lines. In a question it is replaced by a character that no id, name or word of ours has, so nothing is found by it. What is
    written in bulk was cleaned when its rows were made."""
    if many or not parameters:
        return statement, parameters
    if isinstance(parameters, dict):
        return statement, {name: searchable(value) for name, value in parameters.items()}
    return statement, tuple(searchable(value) for value in parameters)


def searchable(value: Any) -> Any:
    """The value as a database takes it in a question."""
    if not isinstance(value, str) or (value.isascii() and "\0" not in value):
        return value
    return value.replace("\0", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _prepare(connection: Any, _record: object) -> None:
    """We say ourselves where a transaction begins."""
    connection.isolation_level = None
    cursor = connection.cursor()
    if not cursor.execute("PRAGMA page_count").fetchone()[0]:  # before its first page is made; later it would only be a write
        cursor.execute("PRAGMA auto_vacuum = INCREMENTAL")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA cache_size = -4000")
    cursor.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    cursor.close()


def _free(cursor: Any) -> int:
    return int(cursor.execute("PRAGMA freelist_count").fetchone()[0])


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
