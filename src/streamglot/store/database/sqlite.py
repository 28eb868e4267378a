"""Runs work on SQLite. A whole transaction runs in a thread, because a thread switch per statement costs more than the statements.

Readers and writers have separate connections, so that a write never waits behind reads.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, TypeVar

from .sql import Connection, DatabaseRow, Insert, NotUnique, SqlRow, SqlValue, SqlValues, for_sqlite, row_class, searchable

T = TypeVar("T")

BUSY_SECONDS: Final = 1.0
"""How long SQLite itself waits for a lock, in seconds. After that the writer waits, and counts it."""
READERS: Final = 6
"""Read connections per process."""
WRITER_CACHE_KB: Final = 4_000
"""KiB of pages that the writing connection keeps: the ends of all tables and indexes, and the pages of a transaction."""
READER_CACHE_KB: Final = 500
"""KiB of pages that each reading connection keeps. Each write makes them outdated, so more would only fill memory: a query over a
million items would keep megabytes of pages that are never used again."""
CHECKPOINT_PAGES: Final = 4_000
"""Size at which SQLite moves its log into the file: 16 MB, about a second of a busy gateway."""
PROBED: Final = ("turns", "sessions", "messages", "endings", "texts", "frames", "chunks", "keys", "streams")
"""Tables whose first and last rows are read to check that the file can be used."""
FREED_PAGES: Final = 2_000
"""Pages freed per transaction: 8 MB, which other writers can wait for."""


class SqliteConnection:
    """A ``Connection`` whose methods never wait."""

    is_sqlite = True

    def __init__(self, driver: sqlite3.Connection) -> None:
        self._driver = driver

    async def fetch(self, sql: str, /, **values: SqlValue) -> list[DatabaseRow]:
        cursor = self._run(sql, values)
        rows = cursor.fetchall()
        return list(map(row_class(tuple([column[0] for column in cursor.description]))._make, rows)) if rows else rows

    async def execute(self, sql: str, /, **values: SqlValue) -> int:
        return max(0, self._run(sql, values).rowcount)

    async def execute_each(self, sql: str, rows: Sequence[SqlRow]) -> None:
        self._driver.executemany(for_sqlite(sql, {})[0], rows)

    async def insert(self, insert: Insert, rows: Sequence[SqlValues]) -> int:
        return max(0, self._driver.executemany(insert.sqlite, rows).rowcount) if rows else 0

    async def configure(self, setting: str) -> None: ...

    def _run(self, sql: str, values: Mapping[str, SqlValue]) -> sqlite3.Cursor:
        sql, values = for_sqlite(sql, values)
        return self._driver.execute(sql, {name: searchable(value) for name, value in values.items()})


class SqliteEngine:
    """The connections to one file, and their threads."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._readers: list[sqlite3.Connection] = []
        self._writer: sqlite3.Connection | None = None
        self._writers = 0
        self._threads = ThreadPoolExecutor(READERS, "store")
        # One thread for all writes: each thread has a heap of its own, and the pages of a connection would spread over all of them.
        self._write_thread = ThreadPoolExecutor(1, "store-writer")

    async def read(self, work: Callable[[Connection], Coroutine[object, None, T]]) -> T:
        """Runs one query."""

        def ask() -> T:
            readers = self._readers
            try:
                connection = readers.pop()
            except IndexError:  # all are in use
                connection = self._connect(READER_CACHE_KB)
            try:
                return _finished(work(SqliteConnection(connection)))
            finally:
                if readers is self._readers:
                    readers.append(connection)
                else:  # ``dispose`` was called meanwhile
                    connection.close()

        return await asyncio.get_running_loop().run_in_executor(self._threads, ask)

    async def write(self, work: Callable[[Connection], Coroutine[object, None, T]], lock: str = "") -> T:  # noqa: ARG002  # SQLite locks by itself
        """Runs a transaction in a thread. If the caller is cancelled, the thread rolls back: it cannot be stopped."""
        left = False

        def do() -> T:
            driver = self._writing()
            driver.execute("BEGIN IMMEDIATE")
            try:
                done = _finished(work(SqliteConnection(driver)))
                if left:
                    raise asyncio.CancelledError
                driver.execute("COMMIT")
            except BaseException as error:
                with suppress(sqlite3.Error):
                    driver.rollback()
                if isinstance(error, sqlite3.IntegrityError):
                    raise NotUnique(str(error)) from error
                raise
            return done

        try:
            return await asyncio.get_running_loop().run_in_executor(self._write_thread, do)
        except asyncio.CancelledError:
            left = True
            raise

    async def write_each(self, work: Callable[[Connection], Coroutine[object, None, T]]) -> T:
        """Runs one transaction, because a transaction costs more than a statement."""
        return await self.write(work)

    async def probe(self, whole: bool) -> None:
        """Raises if the file cannot be read. Reads some rows of each table, or checks everything (``whole``). Uses a connection of its
        own, because the others have pages in memory and do not notice a changed file."""
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
        """Unused pages of the file to the file system, in small transactions, so that others can write in between."""

        def do() -> None:
            driver = self._writing()
            free, before = _free(driver), 0
            while free and free != before:
                driver.execute(f"PRAGMA incremental_vacuum({FREED_PAGES})").fetchall()  # each step frees one page
                free, before = _free(driver), free
            driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

        await asyncio.get_running_loop().run_in_executor(self._write_thread, do)

    def version(self) -> tuple[int, int] | None:
        """Changes when another process has written; None if that is unknown. Must not be called during a write. SQLite counts the
        commits of other connections per connection, and this process writes through this one only. The count is read from shared
        memory, without a disk access."""
        try:
            return None if self._writer is None else (self._writers, self._writer.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            return None

    async def dispose(self) -> None:
        """Closes the connections. They are opened again when they are needed."""
        readers, self._readers = self._readers, []
        writer, self._writer = self._writer, None
        for connection in (*readers, *filter(None, [writer])):
            connection.close()

    async def close(self) -> None:
        await asyncio.to_thread(self._write_thread.shutdown)
        await asyncio.to_thread(self._threads.shutdown)
        await self.dispose()

    def _writing(self) -> sqlite3.Connection:
        if self._writer is None:
            self._writer = self._connect(WRITER_CACHE_KB)
            self._writers += 1
        return self._writer

    def _connect(self, cache_kb: int) -> sqlite3.Connection:
        connection = sqlite3.connect(self._file, timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None)
        try:
            if not connection.execute("PRAGMA page_count").fetchone()[0]:  # it takes effect only before the first page is made
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA cache_size = -{cache_kb}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        except BaseException:
            connection.close()
            raise
        return connection


def _finished(work: Coroutine[object, None, T]) -> T:
    """Runs a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("the work of a transaction awaits only the methods of its connection")


def _free(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0])
