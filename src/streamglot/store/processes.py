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
from sqlalchemy import Connection, LargeBinary, and_, cast, literal, select, update

from ..events import StreamError
from ..messages import Message
from . import schema
from .database import Database, StoreLocked, Watch
from .rows import words
from .sql_types import DatabaseRow, Query, UpsertStatement
from .tokenizer import scope_of
from .whole_bodies import piece_queries, with_pieces

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


class Process:
    """The row of this process in the database. ``returns`` counts how often this process was alive after another one had declared
    it dead. The other one has then ended its turns and removed its open questions."""

    def __init__(self, database: Database) -> None:
        self.id = uuid.uuid4().hex
        self.returns = 0
        self._database = database
        table = schema.processes
        self._watch = Watch(database, select(table).where(table.c.recovered.is_(None), table.c.id != self.id))
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

    def sign_in(self, connection: Connection) -> None:
        """Registers the process in the database that is there now, and as alive if another process declared it dead. If the
        database did not know the process, its turns would stay open."""
        dead = and_(schema.processes.c.id == self.id, schema.processes.c.recovered.is_not(None))
        self.returns += connection.execute(update(schema.processes).where(dead).values(recovered=None)).rowcount
        now, table = time.time(), self._database.insert(schema.processes)
        row = {
            "id": self.id,
            "place": pid_scope(),
            "pid": os.getpid(),
            "born": start_time(os.getpid()),
            "started": now,
            "seen": now,
        }
        connection.execute(table.on_conflict_do_update(index_elements=["id"], set_={"seen": now}), row)

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

    def _end_turns(self, connection: Connection, process: str, at: float, done: bool = True) -> int:
        """Ends the open turns of a process and returns their number. ``done``: no look is needed after this one."""
        rows = connection.execute(_asked(self._database, process)).all()
        bodies = {row.hash: _decoded(row.body) for row in rows}
        found = [piece for question in piece_queries(bodies) for piece in connection.execute(question)]
        bodies = with_pieces(bodies, found)
        asked = [
            {"turn_id": row.id, "body": words(text), "scope": scope_of(row.caller)}
            for row in rows
            if (text := _text(bodies.get(row.hash, "")))
        ]
        count = connection.execute(_interrupt(self._database, process, at)).rowcount
        if asked:
            connection.execute(self._database.insert_new(schema.texts), asked)
        if done:
            table = schema.processes
            connection.execute(update(table).where(table.c.id == process).values(recovered=time.time()))
        return max(0, count)


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


def _interrupt(database: Database, process: str, at: float) -> UpsertStatement:
    """A trigger removes the turns from ``running``."""
    turns, endings, running = schema.turns, schema.endings, schema.running
    fixed = [literal(value) for value in (at, INTERRUPTED, INTERRUPTED, _ERROR, "[]", "{}")]
    open_turns = (
        select(turns.c.id, *fixed, turns.c.session_id, turns.c.caller, turns.c.named)
        .join(running, running.c.turn_id == turns.c.id)
        .where(running.c.process == process)
    )
    columns = ["turn_id", "ended", "ending", "error_code", "error", "verdicts", "more", "session_id", "caller", "named"]
    return database.insert(endings).from_select(columns, open_turns).on_conflict_do_nothing()


def _asked(database: Database, process: str) -> Query:
    """The last user message of the running turns, for the search index; other turns add it when they end. SQLite returns it as
    bytes, because it may not be valid text and would make the whole query fail."""
    turns, nodes, messages, running = schema.turns, schema.nodes, schema.messages, schema.running
    body = cast(messages.c.body, LargeBinary).label("body") if database.is_sqlite else messages.c.body
    return (
        select(turns.c.id, turns.c.caller, messages.c.hash, body)
        .join(running, running.c.turn_id == turns.c.id)
        .join(nodes, nodes.c.hash == turns.c.node)
        .join(messages, messages.c.hash == nodes.c.message)
        .where(running.c.process == process)
    )


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
