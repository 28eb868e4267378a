"""One database, SQLite or PostgreSQL: its engine, its version, and the few words that the two do not share."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import URL, Connection, Executable, Row, Table, inspect, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from ..errors import ConfigError, StreamglotError
from .engines import ANSWER_SECONDS, BUSY_SECONDS, CONNECT_SECONDS, engines
from .migrations import HEAD
from .paths import engine_url

T = TypeVar("T")

WRITE_LOCK: Final = 0x5347_4C54
"""Of PostgreSQL: shared by who writes turns, taken alone by who prunes or migrates."""
_PASSING_CLASSES: Final = ("08", "25", "40", "53", "55", "57", "58")
"""Classes of SQLSTATE that a later attempt may not meet: connection, read-only, conflict, full, busy, stopped, system."""
_OUR_OWN: Final = ("no such column", "no such function", "near ", "table ", "too many")
"""How SQLite begins what it says of a bad question; all else that it calls operational is about the file."""
_LOCK_NOT_AVAILABLE: Final = "55P03"
_NOT_OURS: Final = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
"""What SQLite says of a file that is damaged, or no database at all."""
CHECK_SECONDS: Final = 30.0
"""How often all of a damaged file is read to see whether it was repaired: that takes seconds where it is large."""
LOCK_SECONDS: Final = 10.0
"""So long is waited for who holds the lock, where nothing goes on without it."""


class StoreUnavailable(StreamglotError):
    """The database does not answer now."""

    status = 503
    code = "store_unavailable"
    retryable = True


class StoreLocked(StoreUnavailable):
    """Somebody else writes, and takes long over it."""


class Database:
    """``generation`` counts the databases that stood in this place, where one was put there while we had it open: what was
    written before is not in it. ``trouble`` is why it cannot be used now; empty if it can."""

    def __init__(self, place: URL) -> None:
        self._engines = engines(place)
        self._place = place
        self.dialect = self._engines.dialect
        self.is_sqlite = self.dialect.name == "sqlite"
        self._dialect_insert = import_module(f"sqlalchemy.dialects.{self.dialect.name}").insert  # the other dialect is not loaded
        self.file = Path(place.database or "") if self.is_sqlite else None
        self.generation = 1
        self.trouble = ""
        self._damaged = 0
        self._check_at = 0.0
        self._inode = 0
        self._turn = asyncio.Lock()
        self._questions: set[asyncio.Task[Sequence[Row[Any]]]] = set()

    @classmethod
    async def open(cls, url: str, *, revision: str = "head") -> Database:
        """Makes the database or brings it to our version; one that is newer than we are is refused."""
        database = cls(engine_url(url))
        if database.file is not None:
            try:
                database.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                database.file.touch(mode=0o600)
            except OSError as error:
                raise ConfigError(f"the database {database.file} cannot be made: {error.strerror}") from None
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
        """Most databases are as they should be: to see that, nobody who writes has to be waited for."""

        def bring_up(connection: Connection) -> None:
            if not self.is_sqlite:
                connection.execute(_lock(alone=True, seconds=LOCK_SECONDS))
            _migrate(connection, revision, self.shown)

        async def bring() -> None:
            if await self._engines.read(_versions) != {HEAD}:
                await self._engines.write(bring_up)

        until = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                inode = self.file.stat().st_ino if self.file is not None else 0
                await bring()
            except (DBAPIError, OSError) as error:
                if not _locked(error):
                    raise ConfigError(f"the database {self.shown} cannot be opened: {_reason(error)}") from None
                if time.monotonic() > until:
                    raise ConfigError(
                        f"the database {self.shown} must be brought to version {HEAD}, and another process writes to it all the "
                        "time: wait until that is done, or stop it, and start again"
                    ) from None
                await asyncio.sleep(BUSY_SECONDS / 10)
            else:
                self._inode = inode
                return

    @property
    def shown(self) -> str:
        """The address without a password."""
        return self._place.render_as_string(hide_password=True).replace("+asyncpg", "")

    # --- reading and writing

    async def fetch(self, statement: Executable, parameters: Any = None) -> Sequence[Row[Any]]:
        """All rows. A database that does not answer is a StoreUnavailable. Who stops waiting does not stop the question: a
        connection that is left in the middle of one is lost, and hard to close."""
        question = asyncio.get_running_loop().create_task(self._fetch(statement, parameters))
        self._questions.add(question)
        question.add_done_callback(self._answered)
        return await asyncio.shield(question)

    def _answered(self, question: asyncio.Task[Sequence[Row[Any]]]) -> None:
        self._questions.discard(question)
        if not question.cancelled():
            question.exception()  # nobody may be waiting for it any more

    async def _fetch(self, statement: Executable, parameters: Any) -> Sequence[Row[Any]]:
        with self._asked():
            return await self._engines.read(lambda connection: connection.execute(statement, parameters).all())

    async def write(self, work: Callable[[Connection], T], alone: bool = False) -> T:
        """A transaction that writes; one at a time in this process. ``alone``: nobody else writes meanwhile, anywhere. A database
        that does not take it now is a StoreUnavailable."""

        def locked(connection: Connection) -> T:
            connection.execute(_lock(alone, ANSWER_SECONDS if alone else CONNECT_SECONDS))
            return work(connection)

        async with self._turn:
            await self._look_for_file()
            with self._asked():
                try:
                    return await self._engines.write(work if self.is_sqlite else locked)
                except DBAPIError as error:
                    if _foreign(error):
                        self._inode = 0  # what stands there is not what we opened, or no longer: the next who writes opens it
                    raise

    async def execute(self, statement: Executable, parameters: Any = None) -> int:
        """One statement that writes. How many rows it touched."""
        return await self.write(lambda connection: connection.execute(statement, parameters).rowcount)

    async def give_back(self) -> None:
        """Makes the file as small as what is in it."""
        async with self._turn:
            await self._look_for_file()
            with self._asked():
                await self._engines.give_back()

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, sqlite3.Error, OSError, TimeoutError) as error:
            if not passing(error):
                raise
            if _locked(error):
                raise StoreLocked(f"the database {self.shown} does not answer: {_reason(error)}; try again") from None
            self.trouble = _reason(error)
            if _damaged(error):
                self._damaged = self._inode_now()
            raise StoreUnavailable(f"the database {self.shown} does not answer: {self.trouble}; try again") from None
        else:
            self.trouble = self.trouble if self._damaged else ""

    async def probe(self) -> None:
        """Looks whether the database can be used, and notes in ``trouble`` if not. A file that was found to be damaged counts as
        such until another one is in its place, or a check of all of it finds nothing."""
        if self._damaged and self._damaged != self._inode_now():
            self._damaged = 0
        whole = bool(self._damaged) and time.monotonic() > self._check_at
        with suppress(StoreUnavailable), self._asked():
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
        """Another one once another process has written; None where that cannot be told, or not now."""
        return None if self._turn.locked() else self._engines.version()

    async def _look_for_file(self) -> None:
        """A file that was moved away would take our rows with it, unseen."""
        if self.file is None:
            return
        try:
            inode = os.stat(self.file).st_ino
        except OSError as error:
            self.trouble = f"the file is gone: {error.strerror}"
            raise StoreUnavailable(f"the database {self.file} is gone: {error.strerror}") from None
        if inode != self._inode:
            await self._engines.dispose()
            try:
                await self._upgrade()
            except ConfigError as error:
                raise StoreUnavailable(error.message) from None
            self.generation += 1

    def insert(self, table: Table) -> Any:
        """An insert that knows ``on_conflict_do_nothing`` and ``on_conflict_do_update``."""
        return self._dialect_insert(table)

    def insert_new(self, table: Table) -> Any:
        """A row that is there already stays as it is."""
        return self.insert(table).on_conflict_do_nothing()


class Watch:
    """A question to be asked again and again, of rows that only other processes change behind our back."""

    def __init__(self, database: Database, question: Executable) -> None:
        self._database, self._question = database, question
        self._version: tuple[int, int] | None = None

    async def look(self) -> Sequence[Row[Any]] | None:
        """The rows; None if they are those of the last time."""
        version = self._database.version()
        if version is not None and version == self._version:
            return None
        rows = await self._database.fetch(self._question)
        self._version = version
        return rows

    def forget(self) -> None:
        """We changed them ourselves."""
        self._version = None


async def within(event: asyncio.Event, seconds: float) -> bool:
    """Did it happen within this time?"""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def passing(error: BaseException) -> bool:
    """Is this a fault of the database's state, which may pass, and not of what we asked for?"""
    if isinstance(error, (StoreUnavailable, OSError, TimeoutError)):
        return True
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        return _foreign(error) or (isinstance(cause, sqlite3.OperationalError) and not str(cause).startswith(_OUR_OWN))
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(cause, "sqlstate", None)
    if state:
        return str(state).startswith(_PASSING_CLASSES)
    return error.connection_invalidated or isinstance(error, (OperationalError, InterfaceError)) or _lost(error.orig)


def _foreign(error: BaseException) -> bool:
    """Is the file damaged, no database, or none with our tables?"""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return _damaged(error) or (isinstance(cause, sqlite3.Error) and str(cause).startswith("no such table"))


def _damaged(error: BaseException) -> bool:
    cause = error.orig if isinstance(error, DBAPIError) else error
    return isinstance(cause, sqlite3.Error) and (_code(cause) in _NOT_OURS or str(cause).startswith("the file is damaged"))


def _locked(error: BaseException) -> bool:
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error):
        return _code(cause) == sqlite3.SQLITE_BUSY
    return getattr(cause, "sqlstate", None) == _LOCK_NOT_AVAILABLE


def _code(error: sqlite3.Error) -> int:
    """Without what it says beyond the kind."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _lock(alone: bool, seconds: float) -> Executable:
    """Of PostgreSQL. Who waits for it longer than this is told so: one word more in the same statement."""
    shared = "" if alone else "_shared"
    wait = f"set_config('lock_timeout', '{seconds * 1000:.0f}', true)"
    return text(f"SELECT {wait}, pg_advisory_xact_lock{shared}({WRITE_LOCK})")


def _lost(error: BaseException | None) -> bool:
    """asyncpg says some losses of a connection without a state."""
    return error is not None and isinstance(error.__cause__, (OSError, TimeoutError))


def _reason(error: BaseException) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]


def _versions(connection: Connection) -> set[str]:
    if not inspect(connection).has_table("alembic_version"):
        return set()
    return {version for (version,) in connection.execute(text("SELECT version_num FROM alembic_version")).all()}


def _migrate(connection: Connection, revision: str, shown: str) -> None:
    """Whoever had the lock before us may have done it. If so, the library for it, which takes a while to load, is not needed."""
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
            f"the database {shown} has version {version}, and this streamglot knows versions up to {HEAD}: a newer one made it. "
            "Update streamglot, or give store.url another database"
        )
    command.upgrade(config, revision)
