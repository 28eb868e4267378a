"""Which processes are alive: one row for each process that writes. The open turns of dead processes are ended as interrupted.

On the same machine a process is identified by its number and its start time, because numbers are reused. A process on another
machine is alive as long as it sends heartbeats.
"""

from __future__ import annotations

import os
import platform
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from ..events import StreamError
from ..messages import Message
from .contents import whole_bodies
from .database import Database, StoreLocked, Watch
from .database.sql import Connection, DatabaseRow, Insert, insert_row
from .rows import words
from .search import scope_of

SEEN_SECONDS: Final = 10.0
"""Seconds between two heartbeats of a process. Each also looks for dead processes."""
FIRST_SECONDS: Final = 1.0
"""Seconds until the second look after the start, so that processes that start together see each other."""
DEAD_SECONDS: Final = 60.0
"""A remote process without a heartbeat for this long, in seconds, counts as dead. If it lives after all, the ending that it
writes later wins."""
ALONE_SECONDS: Final = 0.5
"""Seconds that a look for dead processes waits on PostgreSQL for the transactions of others, which take milliseconds. New ones
wait behind it meanwhile."""
INTERRUPTED: Final = "interrupted"
_message: Final = msgspec.json.Decoder(Message)
_ERROR: Final = msgspec.json.encode(
    StreamError(INTERRUPTED, "the process that ran this turn ended before the turn did", "gateway", True, 500)
).decode()
_OTHERS: Final = "SELECT * FROM processes WHERE recovered IS NULL AND id <> :id"
_RETURN: Final = "UPDATE processes SET recovered = NULL WHERE id = :id AND recovered IS NOT NULL"
_SIGN_IN: Final = insert_row(
    "processes",
    ("id", "place", "pid", "born", "started", "seen"),
    "ON CONFLICT (id) DO UPDATE SET seen = excluded.seen",
)
_RECOVERED: Final = "UPDATE processes SET recovered = :at WHERE id = :id"
_INTERRUPT: Final = f"""
    INSERT INTO endings (turn_id, ended, ending, error_code, error, verdicts, more, session_id, caller, named)
    SELECT turns.id, CAST(:at AS DOUBLE PRECISION), '{INTERRUPTED}', '{INTERRUPTED}', CAST(:error AS TEXT), '[]', '{{}}',
        turns.session_id, turns.caller, turns.named
    FROM turns JOIN running ON running.turn_id = turns.id WHERE running.process = :process
    ON CONFLICT DO NOTHING
"""
"""A trigger removes the turns from ``running``."""
_PROMPTS: Final = """
    SELECT turns.id, turns.caller, messages.hash, {body} AS body
    FROM turns JOIN running ON running.turn_id = turns.id JOIN nodes ON nodes.hash = turns.node
    JOIN messages ON messages.hash = nodes.message WHERE running.process = :process
"""
"""The last user message of the running turns, for the search index; other turns add it when they end."""
_BODY: Final = {True: "CAST(messages.body AS BLOB)", False: "messages.body"}
"""SQLite returns it as bytes, because it may not be valid text and would make the whole query fail."""
_TEXTS: Final = Insert("texts", ("turn_id", "body", "scope"))


class Process:
    """The row of this process in the database. ``returns`` counts how often this process was alive after another one had declared
    it dead. The other one has then ended its turns and removed its open questions."""

    def __init__(self, database: Database) -> None:
        self.id = uuid.uuid4().hex
        self.returns = 0
        self._database = database
        self._watch = Watch(database, _OTHERS, id=self.id)
        self._others: list[DatabaseRow] = []

    async def begin(self) -> int:
        """Registers the process and ends the turns of dead processes; returns their number. If another process holds the write
        lock, both are skipped: the first turn that is written registers the process too."""
        with suppress(StoreLocked):
            await self.seen()
            return await self.recover()
        return 0

    async def seen(self) -> None:
        await self._database.write(self.sign_in)

    async def sign_in(self, connection: Connection) -> None:
        """Registers the process in the database that is there now, and as alive if another process declared it dead. If the
        database did not know the process, its turns would stay open."""
        self.returns += await connection.execute(_RETURN, id=self.id)
        now, pid = time.time(), os.getpid()
        await connection.execute(_SIGN_IN, id=self.id, place=pid_scope(), pid=pid, born=start_time(pid), started=now, seen=now)

    async def end(self) -> None:
        """Removes the row. All turns of this process have ended."""
        await self._database.write(lambda connection: self._end_turns(connection, self.id, time.time()))

    async def recover(self) -> int:
        """Ends the open turns of dead processes. Two processes that do this at once write the same rows.

        On PostgreSQL the last transaction of a dead process may still be committed. Such a transaction holds the write lock, so a
        dead process is done with only if this one got that lock exclusively. Otherwise the next look ends its turns again."""
        rows = await self._watch.look()
        if rows is not None:
            self._others = list(rows)
        count, alone = 0, True
        for row in [row for row in self._others if not is_alive(row, time.time())]:
            if alone:
                try:
                    count += await self._end_turns_of(row, alone=True)
                except StoreLocked:
                    if self._database.is_sqlite:
                        raise
                    alone = False
                else:
                    self._others.remove(row)
                    continue
            count += await self._end_turns_of(row, alone=False)
        return count

    def has_others(self) -> bool:
        """Whether other processes were alive at the last look."""
        return bool(self._others)

    async def _end_turns_of(self, row: DatabaseRow, alone: bool) -> int:
        """Ends the open turns of a dead process and returns their number."""
        seconds = ALONE_SECONDS if alone else None
        return await self._database.write(
            lambda connection: self._end_turns(connection, row.id, row.seen, done=alone), alone, seconds
        )

    async def _end_turns(self, connection: Connection, process: str, at: float, done: bool = True) -> int:
        """Ends the open turns of a process and returns their number. ``done``: no look is needed after this one."""
        rows = await connection.fetch(_PROMPTS.format(body=_BODY[connection.is_sqlite]), process=process)
        bodies = await whole_bodies(connection, {row.hash: _decoded(row.body) for row in rows})
        texts = [(row.id, words(text), scope_of(row.caller)) for row in rows if (text := _text(bodies.get(row.hash, "")))]
        count = await connection.execute(_INTERRUPT, process=process, at=at, error=_ERROR)
        await connection.insert(_TEXTS, texts)
        if done:
            await connection.execute(_RECOVERED, id=process, at=time.time())
        return count


def _decoded(body: str | bytes) -> str:
    """The body of a message; empty if it is not text."""
    try:
        return body if isinstance(body, str) else body.decode()
    except UnicodeError:
        return ""


def _text(body: str) -> str:
    """The text of a message; empty if it cannot be decoded."""
    try:
        return _message.decode(body).text
    except msgspec.MsgspecError:
        return ""


def pid_scope() -> str:
    """Where a process number is meaningful: the machine, its boot, and the PID namespace."""
    machine = platform.node()
    with suppress(OSError):
        machine += " " + Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine += " " + os.readlink("/proc/self/ns/pid")
    return machine


def start_time(pid: int) -> str:
    """The start time of a process in clock ticks since the boot; empty if the process does not exist or the system cannot
    tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def is_alive(row: DatabaseRow, now: float) -> bool:
    if row.place != pid_scope():
        return bool(now - row.seen < DEAD_SECONDS)
    if row.born:
        return bool(start_time(row.pid) == row.born)
    try:
        os.kill(row.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return bool(now - row.seen < DEAD_SECONDS)
