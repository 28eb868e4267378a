"""One commit: the rows of a batch into the database, in one transaction. Every row can be written twice without harm."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Table, bindparam, case, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from . import schema
from .database import Database
from .rows import Row, Rows

KNOWN: Final = 20_000
"""Messages, nodes and sessions that this process knows to be there: a long conversation is not sent to the database at every turn."""
AT_ONCE: Final = 1_000
"""Rows that go to the database together."""


class Commit:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: OrderedDict[Hashable, None] = OrderedDict()
        self._epoch = -1
        insert = database.insert
        ended = insert(schema.endings)
        columns = [column.name for column in schema.endings.columns if column.name != "turn_id"]
        ended_once = ended.on_conflict_do_update(
            index_elements=["turn_id"],
            set_={name: ended.excluded[name] for name in columns},
            where=schema.endings.c.ending == "interrupted",
        )
        state = insert(schema.states)
        newest_state = state.on_conflict_do_update(
            index_elements=["session_id", "provider", "name"],
            set_={"value": state.excluded.value, "at": state.excluded.at},
            where=schema.states.c.at <= state.excluded.at,
        )
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
        self._statements: dict[str, _Statement] = {
            "endings": _Statement(database, ended_once, schema.endings),
            "states": _Statement(database, newest_state, schema.states),
            "streams": _Statement(database, known_stream, schema.streams),
            "trims": _Statement(database, trim, schema.chunks, ("stream_id", "last")),
        }
        for table in (
            *(schema.sessions, schema.messages, schema.nodes, schema.turns, schema.answers, schema.texts),
            *(schema.frames, schema.chunks),
        ):
            self._statements[table.name] = _Statement(database, database.insert_new(table), table)

    async def __call__(self, rows: Rows) -> None:
        """Messages and nodes go in by their order: two processes that write the same ones never wait for each other."""
        async with self._database.writing() as connection:
            if rows.messages or rows.nodes or rows.sessions:
                epoch = (await connection.execute(select(func.coalesce(func.max(schema.epochs.c.number), 0)))).scalar_one()
                if epoch != self._epoch:
                    self._known.clear()
                    self._epoch = epoch
            messages = [rows.messages[mark] for mark in sorted(rows.messages) if mark not in self._known]
            nodes = [rows.nodes[mark] for mark in sorted(rows.nodes) if mark not in self._known]
            sessions = [rows.sessions[id] for id in sorted(rows.sessions) if id not in self._known]
            await self._add(connection, "sessions", sessions)
            await self._add(connection, "messages", messages)
            await self._add(connection, "nodes", nodes)
            await self._add(connection, "turns", rows.turns.values())
            await self._add(connection, "endings", rows.endings.values())
            await self._add(connection, "answers", rows.answers)
            await self._add(connection, "texts", rows.texts)
            await self._add(connection, "states", rows.states.values())
            await self._add(connection, "frames", rows.frame_rows())
            await self._add(connection, "streams", rows.streams)
            await self._add(connection, "chunks", rows.chunk_rows())
            await self._add(connection, "trims", [{"stream_id": of, "last": up_to} for of, up_to in rows.trims.items()])
        self._remember([row["id"] for row in sessions])
        self._remember([row["hash"] for row in (*messages, *nodes)])

    async def _add(self, connection: AsyncConnection, name: str, rows: Iterable[Row]) -> None:
        """SQLite's driver is given the rows as they are: the layer above it asks its thread four times for one statement, and
        each time two threads wait for each other."""
        statement = self._statements[name]
        values = [statement.values(row) for row in rows]
        for begin in range(0, len(values), AT_ONCE):
            some = values[begin : begin + AT_ONCE]
            if self._database.is_sqlite:
                driver: Any = (await connection.get_raw_connection()).driver_connection
                await driver.executemany(statement.sql, some)
            else:
                await connection.exec_driver_sql(statement.sql, some)

    def _remember(self, marks: Iterable[Hashable]) -> None:
        for mark in marks:
            self._known[mark] = None
        while len(self._known) > KNOWN:
            self._known.popitem(last=False)


class _Statement:
    """A statement that was compiled once: the layer that does it anew for every row costs more than the database."""

    def __init__(self, database: Database, statement: Any, table: Table, names: Sequence[str] = ()) -> None:
        given = names or [column.name for column in table.columns if column.autoincrement is not True]
        compiled = statement.compile(dialect=database.dialect, column_keys=None if names else given)
        self.sql = str(compiled)
        self._row = set(given)
        self._order: list[str] = list(compiled.positiontup)
        self._fixed = compiled.params

    def values(self, row: Row) -> tuple[Any, ...]:
        return tuple([row[name] if name in self._row else self._fixed[name] for name in self._order])
