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
from sqlalchemy import Connection, and_, delete, select, update

from . import schema
from .database import Database, Watch
from .processes import Process, is_alive
from .sql_types import DatabaseRow, Query, SqlRow, at_most

KEEP_SECONDS: Final = 60.0
"""Seconds that an expired row stays. A late decision then learns what became of the question."""


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
        table = schema.approvals
        mine = table.c.process == process.id
        self._decisions = Watch(
            database,
            select(table.c.id, table.c.decision).where(
                mine, ~table.c.suspended, table.c.decision.is_not(None), table.c.body != ""
            ),
        )
        self._others = Watch(database, _open_questions().where(table.c.process != process.id))
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
        table = schema.approvals

        def write(connection: Connection) -> None:
            if opened:
                self._process.sign_in(connection)
                connection.execute(self._database.insert_new(table), [self._row(one, suspended=False) for one in opened])
            for one in closed:
                row = table.c.id == one.id
                if one.decision is None:
                    connection.execute(delete(table).where(row))
                else:
                    connection.execute(update(table).where(row).values(body="", decision=one.decision))

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
        table, processes = schema.approvals, schema.processes
        question = select(table.c.caller, table.c.body, table.c.decision, table.c.expires, processes).outerjoin(
            processes, and_(processes.c.id == table.c.process, processes.c.recovered.is_(None))
        )
        for row in await self._database.fetch(question.where(table.c.id == id, ~table.c.suspended)):
            now = time.time()
            alive = row.id is not None and is_alive(row, now)
            if row.decision is not None or (alive and row.expires > now):
                return FoundApproval(row.caller, row.body, row.decision, alive)
        return None

    async def decide(self, id: str, decision: str) -> bool:
        """Writes the decision. Returns False if there is one already, or the question is gone."""
        table = schema.approvals
        row = (table.c.id == id, ~table.c.suspended, table.c.decision.is_(None), table.c.expires > time.time())
        written = await self._database.execute(update(table).where(*row).values(decision=decision))
        self._others.forget()
        return written == 1

    # --- suspended calls

    async def suspend(self, call: OpenedApproval) -> None:
        table = schema.approvals
        await self._database.execute(self._database.insert_new(table), [self._row(call, suspended=True)])

    async def suspended(self, ids: Collection[str]) -> dict[str, str]:
        """The bodies of those suspended calls that have not expired, by id."""
        table = schema.approvals
        question = select(table.c.id, table.c.body).where(table.c.id.in_(ids), table.c.suspended, table.c.expires > time.time())
        return {row.id: row.body for row in await self._database.fetch(question)}

    async def take(self, ids: Collection[str]) -> bool:
        """Deletes the rows of suspended calls, all or none. Only the process that gets True resumes them."""
        table = schema.approvals

        def take(connection: Connection) -> None:
            if connection.execute(delete(table).where(table.c.id.in_(ids), table.c.suspended)).rowcount != len(ids):
                raise _NotAll

        try:
            await self._database.write(take)
        except _NotAll:
            return False
        return True

    # --- life

    async def expire(self) -> None:
        """Deletes the rows that have expired, and the open questions of dead processes."""
        table, processes = schema.approvals, schema.processes
        old = (table.c.suspended.in_((False, True)), table.c.expires <= time.time() - KEEP_SECONDS)
        dead = select(processes.c.recovered).where(processes.c.id == table.c.process).scalar_subquery().is_not(None)
        for those in (old, (~table.c.suspended, table.c.decision.is_(None), dead)):
            if await self._database.fetch(at_most(select(table.c.id).where(*those), 1)):
                await self._database.execute(delete(table).where(*those))

    def _row(self, one: OpenedApproval, suspended: bool) -> SqlRow:
        fields = {"id": one.id, "process": self._process.id, "caller": one.caller, "expires": one.expires, "body": one.body}
        return {**fields, "suspended": suspended}


class _NotAll(Exception):
    """Rolls the transaction of ``take`` back."""


def _open_questions() -> Query:
    """The open questions, each with the row of its process."""
    table, processes = schema.approvals, schema.processes
    question = select(table.c.body, table.c.expires, processes).join(processes, processes.c.id == table.c.process)
    return question.where(~table.c.suspended, table.c.decision.is_(None), processes.c.recovered.is_(None)).order_by(
        table.c.expires
    )


def _living(rows: Sequence[DatabaseRow]) -> list[str]:
    now = time.time()
    alive = {row.id: is_alive(row, now) for row in rows}
    return [row.body for row in rows if alive[row.id] and row.expires > now]
