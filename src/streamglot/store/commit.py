"""Writes the rows of one batch into the database in one transaction. Every row can be written twice without harm."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Hashable, Iterable, Mapping
from typing import Final

from msgspec.structs import astuple

from .contents import Cut, cut, piece_row
from .database import Database, StoreUnavailable
from .database.sql import Connection, Insert
from .processes import Process
from .rows import Row, Rows
from .turn import EndingRow, TurnRow

KNOWN_ROWS: Final = 20_000
"""Messages, requests with their pieces, nodes and sessions that this process knows to be in the database. Without it each turn would resend its history."""
_ENDED: Final = ", ".join(f"{name} = excluded.{name}" for name in EndingRow.__struct_fields__ if name != "turn_id")
INSERTS: Final = {
    insert.table: insert
    for insert in (
        Insert("sessions", ("id", "caller", "name", "directory", "started")),
        Insert("contents", ("hash", "body")),
        Insert("pieces", ("owner", "number", "content")),
        Insert("messages", ("hash", "body")),
        Insert("nodes", ("hash", "parent", "message", "depth")),
        Insert("turns", TurnRow.__struct_fields__),
        Insert(
            "endings",
            EndingRow.__struct_fields__,
            f"ON CONFLICT (turn_id) DO UPDATE SET {_ENDED} WHERE endings.ending = 'interrupted'",
        ),
        Insert("answers", ("turn_id", "choice", "message", "echo_session")),
        Insert("texts", ("turn_id", "body", "scope")),
        Insert("frames", ("turn_id", "number", "body")),
        Insert("steps", ("turn_id", "number", "body"), "ON CONFLICT (turn_id, number) DO UPDATE SET body = excluded.body"),
        Insert(
            "streams",
            ("id", "caller", "started", "seen", "last", "stopped", "head", "wanted"),
            "ON CONFLICT (id) DO UPDATE SET seen = excluded.seen, last = coalesce(excluded.last, streams.last)",
        ),
        Insert("chunks", ("stream_id", "number", "last", "body")),
    )
}
_EPOCH: Final = "SELECT coalesce(max(number), 0) AS number FROM epochs"
_TRIM: Final = "DELETE FROM chunks WHERE stream_id = :stream_id AND last <= :last"
_LOCK_SESSIONS: Final = "SELECT id FROM sessions WHERE id IN :names ORDER BY id FOR NO KEY UPDATE"
_LOCK_KEYS: Final = "SELECT name FROM keys WHERE name IN :names ORDER BY name FOR NO KEY UPDATE"


class Commit:
    def __init__(self, database: Database, process: Process) -> None:
        self._database, self._process = database, process
        self._generation = 0
        self._known: OrderedDict[Hashable, None] = OrderedDict()
        self._epoch = -1

    @property
    def generation(self) -> int:
        """The generation of the database that rows must be made for."""
        return self._database.generation

    @property
    def known(self) -> Container[Hashable]:
        """The keys of rows that are known to be in the database. ``__call__`` checks them again."""
        return self._known

    async def __call__(self, rows: Rows) -> None:
        """Writes the rows. Those with a hash are sorted by it, so that two processes that write the same rows never deadlock."""
        for mark in await self._database.write(lambda connection: self._write(connection, rows)):
            self._known[mark] = None
        self._generation = rows.generation
        while len(self._known) > KNOWN_ROWS:
            self._known.popitem(last=False)

    async def _write(self, connection: Connection, rows: Rows) -> list[Hashable]:
        """Writes the rows and returns the keys that are known to be in the database from now on. If the database file was
        replaced, nothing is known."""
        if rows.generation != self.generation:
            raise StoreUnavailable(f"the database {self._database.shown} was replaced by another one")
        if rows.generation != self._generation:
            self._known.clear()
            await self._process.sign_in(connection)
        if rows.messages or rows.nodes or rows.sessions or rows.requests:
            epoch = (await connection.fetch(_EPOCH))[0].number
            if epoch != self._epoch:
                self._known.clear()
                self._epoch = epoch
        messages = {mark: rows.cuts.get(mark) or cut(body) for mark, body in rows.messages.items() if mark not in self._known}
        requests = {mark: found for mark, found in rows.requests.items() if mark not in self._known}
        of_requests = {mark: data for found in requests.values() for mark, data in found.pieces if mark not in self._known}
        pieces = of_requests | {mark: data for found in messages.values() for mark, data in found.pieces}
        contents = {mark: found.body.encode() for mark, found in requests.items()}
        contents |= {mark: rows.packed.get(mark) or piece_row(data) for mark, data in pieces.items()}
        nodes = [rows.nodes[mark] for mark in sorted(rows.nodes) if mark not in self._known]
        sessions = [rows.sessions[id] for id in sorted(rows.sessions) if id not in self._known]
        await self._add(connection, "sessions", sessions)
        await self._lock_totals(connection, rows)
        await self._add(connection, "contents", _by_hash(contents))
        await self._add(connection, "pieces", _pieces({**messages, **requests}))
        await self._add(connection, "messages", _by_hash({mark: found.body for mark, found in messages.items()}))
        await self._add(connection, "nodes", nodes)
        await connection.insert(INSERTS["turns"], list(map(astuple, rows.turns.values())))
        await connection.insert(INSERTS["endings"], list(map(astuple, rows.endings.values())))
        await self._add(connection, "answers", rows.answers)
        await self._add(connection, "texts", rows.texts)
        await self._add(connection, "frames", rows.frames)
        await self._add(connection, "steps", rows.steps.values())
        await self._add(connection, "streams", rows.streams.values())
        await self._add(connection, "chunks", rows.chunks)
        await connection.execute_each(_TRIM, [{"stream_id": of, "last": up_to} for of, up_to in rows.trims.items()])
        return [*(row["id"] for row in sessions), *(row["hash"] for row in nodes), *messages, *requests, *of_requests]

    async def _lock_totals(self, connection: Connection, rows: Rows) -> None:
        """Locks the rows that triggers add to, in their order. Otherwise two processes that write turns of the same sessions or keys
        could wait for each other. One row needs no order."""
        if connection.is_sqlite:  # it has one writer at a time
            return
        turns: list[TurnRow | EndingRow] = [*rows.turns.values(), *rows.endings.values()]
        sessions, callers = {turn.session_id for turn in turns}, {turn.caller for turn in turns}
        if len(sessions) > 1:
            await connection.fetch(_LOCK_SESSIONS, names=sorted(sessions))
        if len(callers) > 1:
            await connection.fetch(_LOCK_KEYS, names=sorted(callers))

    async def _add(self, connection: Connection, table: str, rows: Iterable[Row]) -> None:
        insert = INSERTS[table]
        await connection.insert(insert, insert.tuples(rows))


def _by_hash(bodies: Mapping[bytes, str] | Mapping[bytes, bytes]) -> list[Row]:
    return [{"hash": mark, "body": bodies[mark]} for mark in sorted(bodies)]


def _pieces(cuts: Mapping[bytes, Cut]) -> list[Row]:
    return [
        {"owner": mark, "number": number, "content": content}
        for mark in sorted(cuts)
        for number, (content, _) in enumerate(cuts[mark].pieces)
    ]
