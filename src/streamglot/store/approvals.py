"""Questions to people, in the store's database: every process shows and decides the questions of all.

The row of an open question belongs to the process that holds the stream. The process that gets the decision writes it into the
row, once; the holder looks for decisions while it has open questions. If the holder dies, its rows no longer count. The row of a
suspended call belongs to nobody: the process that deletes it resumes the call.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct

from .database import Database, Watch
from .database.sql import Connection, DatabaseRow, Insert, SqlValues
from .processes import Process, is_alive

KEEP_SECONDS: Final = 60.0
"""Seconds that an expired row stays. A late decision then learns what became of the question."""
_INSERT: Final = Insert("approvals", ("id", "process", "caller", "expires", "body", "suspended"))
_DECISIONS: Final = (
    "SELECT id, decision FROM approvals WHERE process = :process AND suspended = false AND decision IS NOT NULL AND body <> ''"
)
_OTHERS: Final = """
    SELECT approvals.body, approvals.expires, processes.* FROM approvals JOIN processes ON processes.id = approvals.process
    WHERE approvals.suspended = false AND approvals.decision IS NULL AND processes.recovered IS NULL AND approvals.process <> :process
    ORDER BY approvals.expires
"""
_FIND: Final = """
    SELECT approvals.caller, approvals.body, approvals.decision, approvals.expires, processes.*
    FROM approvals LEFT JOIN processes ON processes.id = approvals.process AND processes.recovered IS NULL
    WHERE approvals.id = :id AND approvals.suspended = false
"""
_DECIDE: Final = (
    "UPDATE approvals SET decision = :decision WHERE id = :id AND suspended = false AND decision IS NULL AND expires > :now"
)
_SETTLE: Final = "UPDATE approvals SET body = '', decision = :decision WHERE id = :id"
_REMOVE: Final = "DELETE FROM approvals WHERE id = :id"
_SUSPENDED: Final = "SELECT id, body FROM approvals WHERE id IN :ids AND suspended = true AND expires > :now"
_TAKE: Final = "DELETE FROM approvals WHERE id IN :ids AND suspended = true"
_EXPIRED: Final = "suspended IN (false, true) AND expires <= :until"
_OF_DEAD: Final = "suspended = false AND decision IS NULL AND (SELECT recovered FROM processes WHERE processes.id = approvals.process) IS NOT NULL"


class OpenedApproval(Struct):
    """A question for the database. ``expires`` is in seconds since 1970, ``body`` is JSON."""

    id: str
    caller: str
    expires: float
    body: str


class FoundApproval(Struct):
    """A question that is open or was decided. ``body`` is empty once its process has taken the decision; ``alive`` says whether
    that process lives."""

    caller: str
    body: str
    decision: str | None
    alive: bool


class ClosedApproval(Struct):
    """A question that is no longer open. ``decision`` is JSON without contents, for those who decide later; None if nobody
    decided."""

    id: str
    decision: str | None


class StoredApprovals:
    """The questions in one database. ``process`` is the row of this process."""

    def __init__(self, database: Database, process: Process) -> None:
        self._database = database
        self._process = process
        self._decisions = Watch(database, _DECISIONS, process=process.id)
        self._others = Watch(database, _OTHERS, process=process.id)
        self._rows: Sequence[DatabaseRow] = ()

    @property
    def generation(self) -> int:
        """Increases when the rows of this process may be gone: the database was replaced, or another process declared this one
        dead."""
        return self._database.generation + self._process.returns

    def is_alone(self) -> bool:
        """Whether no other process was alive at the last look, so that nobody else can have decided."""
        return not self._process.has_others()

    # --- the process that holds a stream

    async def write(self, opened: Sequence[OpenedApproval], closed: Sequence[ClosedApproval]) -> None:
        """Adds the rows of new questions, and removes or settles those that are no longer open."""

        async def write(connection: Connection) -> None:
            if opened:
                await self._process.sign_in(connection)
                await connection.insert(_INSERT, [self._row(one, suspended=False) for one in opened])
            for one in closed:
                if one.decision is None:
                    await connection.execute(_REMOVE, id=one.id)
                else:
                    await connection.execute(_SETTLE, id=one.id, decision=one.decision)

        await self._database.write(write)
        self._decisions.forget()

    async def decisions(self) -> list[tuple[str, str]]:
        """The decisions that were written for this process and not taken yet: id and JSON."""
        return [(row.id, row.decision) for row in await self._decisions.look() or ()]

    # --- everybody

    async def others(self) -> list[str]:
        """The open questions of other living processes as JSON, the oldest first. A process that dies writes nothing, so it is
        checked each time."""
        rows = await self._others.look()
        if rows is not None:
            self._rows = rows
        return _living(self._rows)

    async def find(self, id: str) -> FoundApproval | None:
        """The question with this id, if it is open in a living process or was decided."""
        for row in await self._database.fetch(_FIND, id=id):
            now = time.time()
            alive = row.id is not None and is_alive(row, now)
            if row.decision is not None or (alive and row.expires > now):
                return FoundApproval(row.caller, row.body, row.decision, alive)
        return None

    async def decide(self, id: str, decision: str) -> bool:
        """Writes the decision. Returns False if there is one already, or the question is gone."""
        written = await self._database.execute(_DECIDE, id=id, decision=decision, now=time.time())
        self._others.forget()
        return written == 1

    # --- suspended calls

    async def suspend(self, call: OpenedApproval) -> None:
        await self._database.write(lambda connection: connection.insert(_INSERT, [self._row(call, suspended=True)]))

    async def suspended(self, ids: Collection[str]) -> dict[str, str]:
        """The bodies of those suspended calls that have not expired, by id."""
        rows = await self._database.fetch(_SUSPENDED, ids=list(ids), now=time.time())
        return {row.id: row.body for row in rows}

    async def take(self, ids: Collection[str]) -> bool:
        """Deletes the rows of suspended calls, all or none. Only the process that gets True resumes them."""

        async def take(connection: Connection) -> None:
            if await connection.execute(_TAKE, ids=list(ids)) != len(ids):
                raise _NotAll

        try:
            await self._database.write(take)
        except _NotAll:
            return False
        return True

    # --- life

    async def expire(self) -> None:
        """Deletes the rows that have expired, and the open questions of dead processes."""
        until = time.time() - KEEP_SECONDS
        if await self._database.fetch(f"SELECT id FROM approvals WHERE {_EXPIRED} LIMIT 1", until=until):
            await self._database.execute(f"DELETE FROM approvals WHERE {_EXPIRED}", until=until)
        if await self._database.fetch(f"SELECT id FROM approvals WHERE {_OF_DEAD} LIMIT 1"):
            await self._database.execute(f"DELETE FROM approvals WHERE {_OF_DEAD}")

    def _row(self, one: OpenedApproval, suspended: bool) -> SqlValues:
        return (one.id, self._process.id, one.caller, one.expires, one.body, suspended)


class _NotAll(Exception):
    """Rolls the transaction of ``take`` back."""


def _living(rows: Sequence[DatabaseRow]) -> list[str]:
    now = time.time()
    alive = {row.id: is_alive(row, now) for row in rows}
    return [row.body for row in rows if alive[row.id] and row.expires > now]
