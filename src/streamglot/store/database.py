"""One database, SQLite or PostgreSQL: its engine, its schema version, and the few statements in which the two differ."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Final, TypeVar

from sqlalchemy import URL, Connection, Executable, Table, inspect, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from ..errors import ConfigError, StreamglotError
from .engines import ANSWER_SECONDS, BUSY_SECONDS, CONNECT_SECONDS, engines
from .migrations import HEAD
from .paths import engine_url
from .sql_types import DatabaseRow, SqlParameters, UpsertStatement

T = TypeVar("T")

WRITE_LOCK: Final = 0x5347_4C54
"""Advisory lock of PostgreSQL. Writers of turns share it; pruning, migrations and the recovery of dead processes take it
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

    def __init__(self, place: URL) -> None:
        self._engines = engines(place)
        self._place = place
        self.dialect = self._engines.dialect
        self.is_sqlite = self.dialect.name == "sqlite"
        # loads only this dialect
        self._dialect_insert: Callable[[Table], UpsertStatement] = import_module(
            f"sqlalchemy.dialects.{self.dialect.name}"
        ).insert
        self.file = Path(place.database or "") if self.is_sqlite else None
        self.generation = 1
        self.fault = ""
        self._damaged = 0
        self._check_at = 0.0
        self._inode = 0
        self._turn = asyncio.Lock()
        self._questions: set[asyncio.Task[Sequence[DatabaseRow]]] = set()

    @classmethod
    async def open(cls, url: str, *, revision: str = "head") -> Database:
        """Creates the database or upgrades it to the current version. Refuses one that a newer version made."""
        database = cls(engine_url(url))
        if database.file is not None:
            try:
                database.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                database.file.touch(mode=0o600)
            except OSError as error:
                raise ConfigError(f"the database {database.file} cannot be created: {error.strerror}") from None
        try:
            await database._upgrade(revision)
        except BaseException:
            await database.close()
            raise
        return database

    async def close(self) -> None:
        if self._questions:
            await asyncio.wait(self._questions, timeout=CONNECT_SECONDS)
        await self._engines.close()

    # --- versions

    async def _upgrade(self, revision: str = "head") -> None:
        """Upgrades the schema. A database that is current needs no lock, so the start does not wait for writers."""

        def upgrade(connection: Connection) -> None:
            if not self.is_sqlite:
                connection.execute(text(_lock(alone=True, seconds=LOCK_SECONDS)))
            _migrate(connection, revision, self.shown)

        async def run_upgrade() -> None:
            if await self._engines.read(_versions) != {HEAD}:
                await self._engines.migrate(upgrade)

        until = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                inode = self.file.stat().st_ino if self.file is not None else 0
                await run_upgrade()
            except (DBAPIError, OSError) as error:
                slow = isinstance(error, TimeoutError) and time.monotonic() <= until  # this process may have stood still
                if not _locked(error) and not slow:
                    raise ConfigError(f"the database {self.shown} cannot be opened: {_reason(error)}") from None
                if time.monotonic() > until:
                    raise ConfigError(
                        f"the database {self.shown} must be upgraded to version {HEAD}, but another process keeps writing to it: "
                        "wait until it is done, or stop it, and start again"
                    ) from None
                await asyncio.sleep(BUSY_SECONDS / 10)
            else:
                self._inode = inode
                return

    @property
    def shown(self) -> str:
        """The URL without the password."""
        return self._place.render_as_string(hide_password=True).replace("+asyncpg", "")

    # --- reading and writing

    async def fetch(self, statement: Executable, parameters: SqlParameters | None = None) -> Sequence[DatabaseRow]:
        """All rows. Raises StoreUnavailable if the database does not answer. If the caller is cancelled, the query still runs to
        its end: a connection that is abandoned in the middle of a query is lost and hard to close."""
        question = asyncio.get_running_loop().create_task(self._fetch(statement, parameters))
        self._questions.add(question)
        question.add_done_callback(self._answered)
        return await asyncio.shield(question)

    def _answered(self, question: asyncio.Task[Sequence[DatabaseRow]]) -> None:
        self._questions.discard(question)
        if not question.cancelled():
            question.exception()  # the caller may be gone; reading the exception avoids a warning

    async def _fetch(self, statement: Executable, parameters: SqlParameters | None) -> Sequence[DatabaseRow]:
        with self._translated_errors():
            return await self._engines.read(lambda connection: connection.execute(statement, parameters).all())

    async def write(self, work: Callable[[Connection], T], alone: bool = False, seconds: float | None = None) -> T:
        """Runs a write transaction; one at a time in this process. ``alone`` excludes writers of other processes. ``seconds``:
        how long PostgreSQL waits for the lock. Raises StoreUnavailable if the database does not accept it now."""
        lock = _lock(alone, seconds or (ANSWER_SECONDS if alone else CONNECT_SECONDS))
        return await self._write(lambda work: self._engines.write(work, lock), work)

    async def write_each(self, work: Callable[[Connection], T]) -> T:
        """Runs statements of which each may be a transaction of its own, so each must leave the database consistent, and all of
        them can be repeated. It takes no lock against pruning and migrations: it must not be used for turns. On PostgreSQL this is
        one round trip for each statement and no other; on SQLite it is one transaction."""
        return await self._write(self._engines.write_each, work)

    async def _write(self, run: Callable[[Callable[[Connection], T]], Awaitable[T]], work: Callable[[Connection], T]) -> T:
        async with self._turn:
            await self._check_file()
            with self._translated_errors():
                try:
                    return await run(work)
                except DBAPIError as error:
                    if _is_unusable(error):
                        self._inode = 0  # the file was replaced or is damaged: the next write opens it again
                    raise

    async def execute(self, statement: Executable, parameters: SqlParameters | None = None) -> int:
        """Runs one writing statement and returns the number of affected rows."""
        return await self.write(lambda connection: connection.execute(statement, parameters).rowcount)

    async def release_space(self) -> None:
        """Shrinks the file to its contents."""
        async with self._turn:
            await self._check_file()
            with self._translated_errors():
                await self._engines.release_space()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, sqlite3.Error, OSError, TimeoutError) as error:
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
            await self._engines.probe(whole)
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
        return None if self._turn.locked() else self._engines.version()

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
            await self._engines.dispose()
            try:
                await self._upgrade()
            except ConfigError as error:
                raise StoreUnavailable(error.message) from None
            self.generation += 1

    def insert(self, table: Table) -> UpsertStatement:
        """An insert that supports ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""
        return self._dialect_insert(table)

    def insert_new(self, table: Table) -> UpsertStatement:
        """An insert that leaves an existing row as it is."""
        return self.insert(table).on_conflict_do_nothing()


class Watch:
    """A query that is repeated, for rows that only other processes change."""

    def __init__(self, database: Database, question: Executable) -> None:
        self._database, self._question = database, question
        self._version: tuple[int, int] | None = None

    async def look(self) -> Sequence[DatabaseRow] | None:
        """The rows; None if nothing was written since the last look."""
        version = self._database.version()
        if version is not None and version == self._version:
            return None
        self._version = version  # before the query: ``forget`` may be called meanwhile
        try:
            return await self._database.fetch(self._question)
        except BaseException:
            self._version = None
            raise

    def forget(self) -> None:
        """Makes the next look run the query, because this process changed the rows."""
        self._version = None


def is_transient(error: BaseException) -> bool:
    """Whether the state of the database caused this error, so that it may pass, and not the statement."""
    if isinstance(error, (StoreUnavailable, OSError, TimeoutError)):
        return True
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        return _is_unusable(error) or (
            isinstance(cause, sqlite3.OperationalError) and not str(cause).startswith(_STATEMENT_ERRORS)
        )
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(cause, "sqlstate", None)
    if state:
        return str(state).startswith(_TRANSIENT_CLASSES)
    return error.connection_invalidated or isinstance(error, (OperationalError, InterfaceError)) or _lost(error.orig)


def _is_unusable(error: BaseException) -> bool:
    """Whether the file is damaged, is not a database, or lacks the tables."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return _damaged(error) or (isinstance(cause, sqlite3.Error) and str(cause).startswith("no such table"))


def _damaged(error: BaseException) -> bool:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, sqlite3.Error) and (_code(cause) in _DAMAGED_CODES or str(cause).startswith("the file is damaged"))


def _locked(error: BaseException) -> bool:
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        return _code(cause) == sqlite3.SQLITE_BUSY
    return getattr(cause, "sqlstate", None) == _LOCK_NOT_AVAILABLE


def _code(error: sqlite3.Error) -> int:
    """The primary code of an error, without its extension."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _lock(alone: bool, seconds: float) -> str:
    """The statement that takes the lock of PostgreSQL, and sets the timeout of it."""
    shared = "" if alone else "_shared"
    wait = f"set_config('lock_timeout', '{seconds * 1000:.0f}', true)"
    return f"SELECT {wait}, pg_advisory_xact_lock{shared}({WRITE_LOCK})"


def _lost(error: BaseException | None) -> bool:
    """Whether asyncpg lost the connection; it reports some losses without an SQLSTATE."""
    return error is not None and isinstance(error.__cause__, (OSError, TimeoutError))


def _reason(error: BaseException) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]


def _versions(connection: Connection) -> set[str]:
    if not inspect(connection).has_table("alembic_version"):
        return set()
    return {version for (version,) in connection.execute(text("SELECT version_num FROM alembic_version")).all()}


def _migrate(connection: Connection, revision: str, shown: str) -> None:
    """Runs the migrations. Another process may have run them while this one waited for the lock; then Alembic, which is slow to
    load, is not imported."""
    has = _versions(connection)
    if has == {HEAD}:
        return
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    for version in has - known:
        raise ConfigError(
            f"the database {shown} has version {version}, but this streamglot knows only versions up to {HEAD}: a newer release made it. "
            "Update streamglot, or point store.url at another database"
        )
    command.upgrade(config, revision)
