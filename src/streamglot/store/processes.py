"""Who is alive: a row for each process that writes, and the turns of those that died, ended as interrupted.

On the same machine a process is looked up by its number and the time of its birth, because numbers are given again. One on
another machine is alive for as long as it says so.
"""

from __future__ import annotations

import os
import platform
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, LargeBinary, Row, Select, cast, literal, select, update

from ..events import StreamError
from ..messages import Message
from . import schema
from .database import Database, StoreLocked, Watch
from .rows import words

SEEN_SECONDS: Final = 10.0
"""How often a process says that it is alive, and looks for those that are not."""
FIRST_SECONDS: Final = 1.0
"""Processes that start together meet each other after this."""
DEAD_SECONDS: Final = 60.0
"""A process elsewhere that said nothing for so long is dead. If it is not, the ending that it writes later counts."""
INTERRUPTED: Final = "interrupted"
_message: Final = msgspec.json.Decoder(Message)
_ERROR: Final = msgspec.json.encode(
    StreamError(INTERRUPTED, "the process that ran this turn ended before the turn did", "gateway", True, 500)
).decode()


class Process:
    """This process, as the database knows it."""

    def __init__(self, database: Database) -> None:
        self.id = uuid.uuid4().hex
        self._database = database
        table = schema.processes
        self._watch = Watch(database, select(table).where(table.c.recovered.is_(None), table.c.id != self.id))
        self._others: list[Row[Any]] = []

    async def begin(self) -> int:
        """Signs in, and ends the turns of the dead. How many those were. While somebody else writes both can wait: the first
        turn that is written signs us in too."""
        with suppress(StoreLocked):
            await self.seen()
            return await self.recover()
        return 0

    async def seen(self) -> None:
        await self._database.write(self.sign_in)

    def sign_in(self, connection: Connection) -> None:
        """That we are alive, in whatever database stands there now: turns of a process that it does not know would stay open."""
        now, table = time.time(), self._database.insert(schema.processes)
        row = {"id": self.id, "place": place(), "pid": os.getpid(), "born": born(os.getpid()), "started": now, "seen": now}
        connection.execute(table.on_conflict_do_update(index_elements=["id"], set_={"seen": now}), row)

    async def end(self) -> None:
        """Signs out. All our turns have ended."""
        await self._bury(self.id, time.time())

    async def recover(self) -> int:
        """Ends the open turns of processes that are no more. Two that do it at once write the same."""
        rows = await self._watch.look()
        if rows is not None:
            self._others = list(rows)
        count = 0
        for row in [row for row in self._others if not is_alive(row, time.time())]:
            count += await self._bury(row.id, row.seen)
            self._others.remove(row)
        return count

    def has_others(self) -> bool:
        """Are there other processes, as far as we looked?"""
        return bool(self._others)

    async def _bury(self, process: str, at: float) -> int:
        """Its open turns ended when it did. How many those were."""
        table = schema.processes

        def bury(connection: Connection) -> int:
            count = connection.execute(_interrupt(self._database, process, at)).rowcount
            asked = [
                {"turn_id": row.id, "body": words(text)}
                for row in connection.execute(_asked(self._database, process))
                if (text := _text(row.body))
            ]
            if asked:
                connection.execute(self._database.insert_new(schema.texts), asked)
            connection.execute(update(table).where(table.c.id == process).values(recovered=time.time()))
            return max(0, count)

        return await self._database.write(bury)


def _text(body: str | bytes) -> str:
    """Nothing, of a message that cannot be read."""
    try:
        return _message.decode(body).text
    except (msgspec.MsgspecError, UnicodeError):
        return ""


def _interrupt(database: Database, process: str, at: float) -> Any:
    turns, endings = schema.turns, schema.endings
    ended = select(endings.c.turn_id).where(endings.c.turn_id == turns.c.id).exists()
    open_turns = select(
        turns.c.id, literal(at), literal(INTERRUPTED), literal(INTERRUPTED), literal(_ERROR), literal("[]"), literal("{}")
    ).where(turns.c.process == process, ~ended)
    columns = ["turn_id", "ended", "ending", "error_code", "error", "verdicts", "more"]
    return database.insert(endings).from_select(columns, open_turns).on_conflict_do_nothing()


def _asked(database: Database, process: str) -> Select[Any]:
    """What was asked last in the turns that ended so, for who searches for them: other turns say it when they end. SQLite gives it
    as bytes: it may hold text that is none, and would refuse all rows for it."""
    turns, nodes, messages, endings = schema.turns, schema.nodes, schema.messages, schema.endings
    body = cast(messages.c.body, LargeBinary).label("body") if database.is_sqlite else messages.c.body
    return (
        select(turns.c.id, body)
        .join(endings, endings.c.turn_id == turns.c.id)
        .join(nodes, nodes.c.hash == turns.c.node)
        .join(messages, messages.c.hash == nodes.c.message)
        .where(turns.c.process == process, endings.c.ending == INTERRUPTED)
    )


def place() -> str:
    """Where a process number means something: the machine, since it was started, and the space of numbers."""
    machine = platform.node()
    with suppress(OSError):
        machine += " " + Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine += " " + os.readlink("/proc/self/ns/pid")
    return machine


def born(pid: int) -> str:
    """When a process was started, in the machine's own count; empty if there is none, or nothing to ask."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def is_alive(row: Row[Any], now: float) -> bool:
    if row.place != place():
        return bool(now - row.seen < DEAD_SECONDS)
    if row.born:
        return bool(born(row.pid) == row.born)
    try:
        os.kill(row.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return bool(now - row.seen < DEAD_SECONDS)
