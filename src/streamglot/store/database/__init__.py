"""One database, SQLite or PostgreSQL: opened, upgraded, read and written. ``sql`` says how statements are written."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from ...errors import ConfigError, StreamglotError
from ...installation import missing_package
from . import schema
from .paths import Place, place_of
from .sql import Connection, DatabaseRow, PostgresError, SqlValue
from .sqlite import BUSY_SECONDS, SqliteEngine

if TYPE_CHECKING:
    from .postgres import PostgresEngine

T = TypeVar("T")

WRITE_LOCK: Final = 0x5347_4C54
"""Advisory lock of PostgreSQL. Writers of turns share it; pruning, upgrades and the recovery of dead processes take it
exclusively."""
_TRANSIENT_CLASSES: Final = ("08", "25", "40", "53", "55", "57", "58")
"""SQLSTATE classes of errors that a later attempt may avoid: connection, read-only, conflict, full, busy, stopped, system."""
_STATEMENT_ERRORS: Final = ("no such column", "no such function", "near ", "table ", "too many")
"""Beginnings of SQLite messages about a fault in the statement. Its other operational errors concern the file."""
_LOCK_NOT_AVAILABLE: Final = "55P03"
_DAMAGED_CODES: Final = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
"""Error codes of SQLite for a damaged file and for a file that is not a database."""
CHECK_SECONDS: Final = 30.0
"""Seconds between two full checks of a damaged file, to see whether it was repaired. A check of a large file takes seconds."""
ANSWER_SECONDS: Final = 30.0
"""How long a write that excludes others waits for the lock of PostgreSQL, in seconds."""
LOCK_WAIT_SECONDS: Final = 5.0
"""How long any other write waits for it, in seconds."""
CLOSE_SECONDS: Final = 5.0
"""How long closing waits for queries that still run, in seconds."""
LOCK_SECONDS: Final = 10.0
"""How long a required write waits for the lock, in seconds."""


class StoreUnavailable(StreamglotError):
    """The database does not answer at the moment."""

    status = 503
    code = "store_unavailable"
    retryable = True


class StoreLocked(StoreUnavailable):
    """Another process holds the write lock for too long."""


class Database:
    """An open database. ``generation`` counts the databases that were found at this address; it grows when the file was
    replaced, which means that earlier rows are gone. ``fault`` says why the database cannot be used now; it is empty if it
    can."""

    def __init__(self, place: Place) -> None:
        self._engine = _engine(place)
        self.is_sqlite = place.file is not None
        self.file = place.file
        self.shown = place.shown
        self.generation = 1
        self.fault = ""
        self._damaged = 0
        self._check_at = 0.0
        self._inode = 0
        self._writes = asyncio.Lock()
        self._queries: set[asyncio.Task[list[DatabaseRow]]] = set()

    @classmethod
    async def open(cls, url: str) -> Database:
        """Creates the database or upgrades it to the current version. Refuses one that a newer version made."""
        database = cls(place_of(url))
        if database.file is not None:
            try:
                database.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                database.file.touch(mode=0o600)
            except OSError as error:
                raise ConfigError(f"the database {database.file} cannot be created: {error.strerror}") from None
        try:
            await database._upgrade()
        except BaseException:
            await database.close()
            raise
        return database

    async def close(self) -> None:
        if self._queries:
            await asyncio.wait(self._queries, timeout=CLOSE_SECONDS)
        await self._engine.close()

    # --- versions

    async def _upgrade(self) -> None:
        """Upgrades the schema. A database that is current needs no lock, so the start does not wait for writers."""

        async def run_upgrade() -> None:
            if await self._engine.read(lambda connection: schema.version(connection, self.shown)) != schema.newest():
                lock = _lock(alone=True, seconds=LOCK_SECONDS)
                await self._engine.write(lambda connection: schema.upgrade(connection, self.shown), lock)

        until = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                inode = self.file.stat().st_ino if self.file is not None else 0
                await run_upgrade()
            except (sqlite3.Error, PostgresError, OSError) as error:
                slow = isinstance(error, TimeoutError) and time.monotonic() <= until  # this process may have stood still
                if not _locked(error) and not slow:
                    raise ConfigError(f"the database {self.shown} cannot be opened: {_reason(error)}") from None
                if time.monotonic() > until:
                    raise ConfigError(
                        f"the database {self.shown} must be upgraded to version {schema.newest()}, but another process keeps writing to it: "
                        "wait until it is done, or stop it, and start again"
                    ) from None
                await asyncio.sleep(BUSY_SECONDS / 10)
            else:
                self._inode = inode
                return

    # --- reading and writing

    async def fetch(self, sql: str, /, **values: SqlValue) -> list[DatabaseRow]:
        """All rows. Raises StoreUnavailable if the database does not answer. If the caller is cancelled, the query still runs to
        its end: a connection that is abandoned in the middle of a query is lost and hard to close."""
        query = asyncio.get_running_loop().create_task(self._fetch(sql, values))
        self._queries.add(query)
        query.add_done_callback(self._answered)
        return await asyncio.shield(query)

    def _answered(self, query: asyncio.Task[list[DatabaseRow]]) -> None:
        self._queries.discard(query)
        if not query.cancelled():
            query.exception()  # the caller may be gone; reading the exception avoids a warning

    async def _fetch(self, sql: str, values: dict[str, SqlValue]) -> list[DatabaseRow]:
        with self._translated_errors():
            return await self._engine.read(lambda connection: connection.fetch(sql, **values))

    async def write(
        self, work: Callable[[Connection], Coroutine[object, None, T]], alone: bool = False, seconds: float | None = None
    ) -> T:
        """Runs a write transaction; one at a time in this process. ``work`` awaits nothing but its connection. ``alone`` excludes
        writers of other processes. ``seconds``: how long PostgreSQL waits for the lock. Raises StoreUnavailable if the database does
        not accept it now."""
        lock = _lock(alone, seconds or (ANSWER_SECONDS if alone else LOCK_WAIT_SECONDS))
        return await self._write(lambda: self._engine.write(work, lock))

    async def write_each(self, work: Callable[[Connection], Coroutine[object, None, T]]) -> T:
        """Runs statements of which each may be a transaction of its own, so each must leave the database consistent, and all of
        them can be repeated. It takes no lock against pruning and upgrades: it must not be used for turns. On PostgreSQL this is
        one round trip for each statement and no other; on SQLite it is one transaction."""
        return await self._write(lambda: self._engine.write_each(work))

    async def _write(self, run: Callable[[], Awaitable[T]]) -> T:
        async with self._writes:
            await self._check_file()
            with self._translated_errors():
                try:
                    return await run()
                except sqlite3.Error as error:
                    if _is_unusable(error):
                        self._inode = 0  # the file was replaced or is damaged: the next write opens it again
                    raise

    async def execute(self, sql: str, /, **values: SqlValue) -> int:
        """Runs one writing statement and returns the number of affected rows."""
        return await self.write(lambda connection: connection.execute(sql, **values))

    async def release_space(self) -> None:
        """Shrinks the file to its contents."""
        async with self._writes:
            await self._check_file()
            with self._translated_errors():
                await self._engine.release_space()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, PostgresError, OSError, TimeoutError) as error:
            if not is_transient(error):
                raise
            if _locked(error):
                raise StoreLocked(f"the database {self.shown} does not answer: {_reason(error)}; try again") from None
            self.fault = _reason(error)
            if _damaged(error):
                self._damaged = self._inode_now()
            raise StoreUnavailable(f"the database {self.shown} does not answer: {self.fault}; try again") from None
        else:
            self.fault = self.fault if self._damaged else ""

    async def probe(self) -> None:
        """Checks whether the database can be used, and sets ``fault`` if not. A damaged file counts as damaged until it is
        replaced, or a check of the whole file succeeds."""
        if self._damaged and self._damaged != self._inode_now():
            self._damaged = 0
        whole = bool(self._damaged) and time.monotonic() > self._check_at
        with suppress(StoreUnavailable), self._translated_errors():
            await self._engine.probe(whole)
            if whole:
                self._damaged = 0
        if whole:
            self._check_at = time.monotonic() + CHECK_SECONDS

    def _inode_now(self) -> int:
        try:
            return os.stat(self.file).st_ino if self.file is not None else 0
        except OSError:
            return -1

    def version(self) -> tuple[int, int] | None:
        """Changes when another process has written. None if that is unknown."""
        return None if self._writes.locked() else self._engine.version()

    async def _check_file(self) -> None:
        """Detects that the file was moved or replaced. SQLite would go on writing to the old file."""
        if self.file is None:
            return
        try:
            inode = os.stat(self.file).st_ino
        except OSError as error:
            self.fault = f"the file is gone: {error.strerror}"
            raise StoreUnavailable(f"the database {self.file} is gone: {error.strerror}") from None
        if inode != self._inode:
            await self._engine.dispose()
            try:
                await self._upgrade()
            except ConfigError as error:
                raise StoreUnavailable(error.message) from None
            self.generation += 1


class Watch:
    """A query that is repeated, for rows that only other processes change."""

    def __init__(self, database: Database, sql: str, **values: SqlValue) -> None:
        self._database, self._sql, self._values = database, sql, values
        self._version: tuple[int, int] | None = None

    async def look(self) -> list[DatabaseRow] | None:
        """The rows; None if nothing was written since the last look."""
        version = self._database.version()
        if version is not None and version == self._version:
            return None
        self._version = version  # before the query: ``forget`` may be called meanwhile
        try:
            return await self._database.fetch(self._sql, **self._values)
        except BaseException:
            self._version = None
            raise

    def forget(self) -> None:
        """Makes the next look run the query, because this process changed the rows."""
        self._version = None


def is_transient(error: BaseException) -> bool:
    """Whether the state of the database caused this error, so that it may pass, and not the statement."""
    if isinstance(error, sqlite3.Error):
        return _is_unusable(error) or (
            isinstance(error, sqlite3.OperationalError) and not str(error).startswith(_STATEMENT_ERRORS)
        )
    if isinstance(error, PostgresError):
        return not error.state or error.state.startswith(_TRANSIENT_CLASSES)
    return isinstance(error, (StoreUnavailable, OSError, TimeoutError))


def _is_unusable(error: BaseException) -> bool:
    """Whether the file is damaged, is not a database, or lacks the tables."""
    return _damaged(error) or (isinstance(error, sqlite3.Error) and str(error).startswith("no such table"))


def _damaged(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) and (_code(error) in _DAMAGED_CODES or str(error).startswith("the file is damaged"))


def _locked(error: BaseException) -> bool:
    if isinstance(error, sqlite3.Error):
        return _code(error) == sqlite3.SQLITE_BUSY
    return isinstance(error, PostgresError) and error.state == _LOCK_NOT_AVAILABLE


def _code(error: sqlite3.Error) -> int:
    """The primary code of an error, without its extension."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _lock(alone: bool, seconds: float) -> str:
    """The statement that takes the lock of PostgreSQL, and sets the timeout of it."""
    shared = "" if alone else "_shared"
    wait = f"set_config('lock_timeout', '{seconds * 1000:.0f}', true)"
    return f"SELECT {wait}, pg_advisory_xact_lock{shared}({WRITE_LOCK})"


def _reason(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _engine(place: Place) -> SqliteEngine | PostgresEngine:
    if place.file is not None:
        return SqliteEngine(str(place.file))
    try:
        from .postgres import PostgresEngine  # asyncpg takes 30 ms of CPU
    except ModuleNotFoundError as error:
        raise missing_package(error) or error from None
    return PostgresEngine(place.options)
