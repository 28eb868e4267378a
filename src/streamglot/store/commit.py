"""Writes the rows of one batch into the database in one transaction. Every row can be written twice without harm."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Hashable, Iterable, Mapping
from typing import Final

from msgspec.structs import astuple
from sqlalchemy import ARRAY, Connection, Text, any_, bindparam, case, delete, func, select

from . import schema
from .bulk import BulkStatement
from .contents import Cut, cut, piece_row
from .database import Database, StoreUnavailable
from .processes import Process
from .rows import Row, Rows
from .turn_rows import EndingRow, TurnRow

KNOWN_ROWS: Final = 20_000
"""Messages, requests with their pieces, nodes and sessions that this process knows to be in the database. Without it each turn would resend its history."""
_EPOCH: Final = select(func.coalesce(func.max(schema.epochs.c.number), 0))


class Commit:
    def __init__(self, database: Database, process: Process) -> None:
        self._database, self._process = database, process
        self._generation = 0
        self._known: OrderedDict[Hashable, None] = OrderedDict()
        self._epoch = -1
        self._ask_epoch = BulkStatement(database, _EPOCH, schema.epochs, ())
        insert = database.insert
        ended = insert(schema.endings)
        columns = [column.name for column in schema.endings.columns if column.name != "turn_id"]
        ended_once = ended.on_conflict_do_update(
            index_elements=["turn_id"],
            set_={name: ended.excluded[name] for name in columns},
            where=schema.endings.c.ending == "interrupted",
        )
        step = insert(schema.steps)
        latest_step = step.on_conflict_do_update(index_elements=["turn_id", "number"], set_={"body": step.excluded.body})
        stream = insert(schema.streams)
        known_stream = stream.on_conflict_do_update(
            index_elements=["id"],
            set_={
                "seen": stream.excluded.seen,
                "last": case((stream.excluded.last.is_not(None), stream.excluded.last), else_=schema.streams.c.last),
            },
        )
        chunks = schema.chunks.c
        trim = delete(schema.chunks).where(chunks.stream_id == bindparam("stream_id"), chunks.last <= bindparam("last"))
        self._locks: list[BulkStatement] = []
        if not database.is_sqlite:  # it has one writer at a time
            for column in (schema.sessions.c.id, schema.keys.c.name):
                wanted = column == any_(bindparam("names", type_=ARRAY(Text)))
                lock = select(column).where(wanted).order_by(column).with_for_update(key_share=True)
                self._locks.append(BulkStatement(database, lock, column.table, ("names",)))
        self._statements: dict[str, BulkStatement] = {
            "endings": BulkStatement(database, ended_once, schema.endings),
            "steps": BulkStatement(database, latest_step, schema.steps),
            "streams": BulkStatement(database, known_stream, schema.streams),
            "trims": BulkStatement(database, trim, schema.chunks, ("stream_id", "last")),
        }
        for table in (
            *(schema.sessions, schema.contents, schema.pieces, schema.messages, schema.nodes, schema.turns, schema.answers),
            schema.texts,
            *(schema.frames, schema.chunks),
        ):
            self._statements[table.name] = BulkStatement(database, database.insert_new(table), table)

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

    def _write(self, connection: Connection, rows: Rows) -> list[Hashable]:
        """Writes the rows and returns the keys that are known to be in the database from now on. If the database file was
        replaced, nothing is known."""
        if rows.generation != self.generation:
            raise StoreUnavailable(f"the database {self._database.shown} was replaced by another one")
        if rows.generation != self._generation:
            self._known.clear()
            self._process.sign_in(connection)
        if rows.messages or rows.nodes or rows.sessions or rows.requests:
            epoch = self._ask_epoch.rows(connection)[0][0]
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
        self._add(connection, "sessions", sessions)
        self._lock_totals(connection, rows)
        self._add(connection, "contents", _by_hash(contents))
        self._add(connection, "pieces", _pieces({**messages, **requests}))
        self._add(connection, "messages", _by_hash({mark: found.body for mark, found in messages.items()}))
        self._add(connection, "nodes", nodes)
        self._statements["turns"].execute_tuples(connection, list(map(astuple, rows.turns.values())))
        self._statements["endings"].execute_tuples(connection, list(map(astuple, rows.endings.values())))
        self._add(connection, "answers", rows.answers)
        self._add(connection, "texts", rows.texts)
        self._add(connection, "frames", rows.frames)
        self._add(connection, "steps", rows.steps.values())
        self._add(connection, "streams", rows.streams.values())
        self._add(connection, "chunks", rows.chunks)
        self._add(connection, "trims", [{"stream_id": of, "last": up_to} for of, up_to in rows.trims.items()])
        return [*(row["id"] for row in sessions), *(row["hash"] for row in nodes), *messages, *requests, *of_requests]

    def _lock_totals(self, connection: Connection, rows: Rows) -> None:
        """Locks the rows that triggers add to, in their order. Otherwise two processes that write turns of the same sessions or keys
        could wait for each other. One row needs no order."""
        if not self._locks:
            return
        turns: list[TurnRow | EndingRow] = [*rows.turns.values(), *rows.endings.values()]
        for statement, names in zip(
            self._locks, ({turn.session_id for turn in turns}, {turn.caller for turn in turns}), strict=True
        ):
            if len(names) > 1:
                statement.rows(connection, names=sorted(names))

    def _add(self, connection: Connection, name: str, rows: Iterable[Row]) -> None:
        self._statements[name].execute(connection, rows)


def _by_hash(bodies: Mapping[bytes, str] | Mapping[bytes, bytes]) -> list[Row]:
    return [{"hash": mark, "body": bodies[mark]} for mark in sorted(bodies)]


def _pieces(cuts: Mapping[bytes, Cut]) -> list[Row]:
    return [
        {"owner": mark, "number": number, "content": content}
        for mark in sorted(cuts)
        for number, (content, _) in enumerate(cuts[mark].pieces)
    ]
