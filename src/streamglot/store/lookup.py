"""Finds turns and sessions from little: the beginning of an id, a directory, or "the last one"."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import Struct

from ..messages import Message
from .conversation import HASH_BYTES
from .database import Database
from .database.sql import SqlRow, prefix_pattern

_EMPTY_ANSWER: Final = hashlib.blake2b(msgspec.json.encode(Message("assistant", [])), digest_size=HASH_BYTES).digest()
"""The hash of an empty answer."""
_IN_DIRECTORY: Final = "SELECT id FROM sessions WHERE directory = :directory AND updated > 0 ORDER BY updated DESC, id DESC"
_ANSWERED: Final = """
    SELECT turns.id, turns.session_id, turns.caller FROM turns
    JOIN sessions ON sessions.id = turns.session_id JOIN answers ON answers.turn_id = turns.id
    WHERE NOT turns.probe AND answers.choice = 0 AND answers.message <> :empty {more}
    ORDER BY turns.started DESC, turns.id DESC LIMIT 1
"""


class Answered(Struct):
    """A turn with an answer, which a conversation can continue."""

    turn_id: str
    session_id: str
    caller: str


class Lookup:
    """Lookups of the operator, who sees all callers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def turns_like(self, beginning: str, limit: int = 2) -> list[str]:
        return await self._like("turns", beginning, limit)

    async def sessions_like(self, beginning: str, limit: int = 2) -> list[str]:
        return await self._like("sessions", beginning, limit)

    async def _like(self, table: str, beginning: str, limit: int) -> list[str]:
        question = f"SELECT id FROM {table} WHERE id LIKE :pattern ESCAPE '/' ORDER BY id LIMIT {int(limit)}"
        return [row.id for row in await self._database.fetch(question, pattern=prefix_pattern(beginning))]

    async def sessions_in(self, directory: str, limit: int) -> list[str]:
        """The sessions of a directory, the one with the newest turn first."""
        rows = await self._database.fetch(f"{_IN_DIRECTORY} LIMIT {int(limit)}", directory=directory)
        return [row.id for row in rows]

    async def last_answered(
        self, *, session_id: str = "", directory: str | None = None, callers: Collection[str] = (), beginning: str = ""
    ) -> Answered | None:
        """The newest turn whose answer was stored: of a session, of a directory, of these ``callers``, or of callers whose names
        begin with ``beginning``."""
        conditions, values = list[str](), SqlRow(empty=_EMPTY_ANSWER)
        if session_id:
            conditions.append("turns.session_id = :session_id")
            values["session_id"] = session_id
        if directory is not None:
            conditions.append("sessions.directory = :directory")
            values["directory"] = directory
        if callers:
            alike = "OR turns.caller LIKE :pattern ESCAPE '/'" if beginning else ""
            conditions.append(f"(turns.caller IN :callers {alike})")
            values |= {"callers": list(callers), "pattern": prefix_pattern(beginning)}
        rows = await self._database.fetch(_ANSWERED.format(more="".join(f" AND {one}" for one in conditions)), **values)
        return Answered(rows[0].id, rows[0].session_id, rows[0].caller) if rows else None

    async def count_turns(self) -> int:
        return int((await self._database.fetch("SELECT count(*) AS turns FROM turns"))[0].turns)
