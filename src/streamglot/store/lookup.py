"""Finds turns and sessions from little: the beginning of an id, a directory, or "the last one"."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import Struct
from sqlalchemy import Table, func, or_, select

from ..messages import Message
from . import schema
from .conversation import HASH_BYTES
from .database import Database
from .sql_types import Query

_EMPTY_ANSWER: Final = hashlib.blake2b(msgspec.json.encode(Message("assistant", [])), digest_size=HASH_BYTES).digest()
"""The hash of an empty answer."""


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
        return await self._like(schema.turns, beginning, limit)

    async def sessions_like(self, beginning: str, limit: int = 2) -> list[str]:
        return await self._like(schema.sessions, beginning, limit)

    async def _like(self, table: Table, beginning: str, limit: int) -> list[str]:
        question = select(table.c.id).where(table.c.id.startswith(beginning, autoescape=True)).order_by(table.c.id).limit(limit)
        return [row.id for row in await self._database.fetch(question)]

    async def sessions_in(self, directory: str, limit: int) -> list[str]:
        """The sessions of a directory, the one with the newest turn first."""
        sessions = schema.sessions
        question = select(sessions.c.id).where(sessions.c.directory == directory, sessions.c.updated > 0)
        rows = await self._database.fetch(question.order_by(sessions.c.updated.desc(), sessions.c.id.desc()).limit(limit))
        return [row.id for row in rows]

    async def last_answered(
        self, *, session_id: str = "", directory: str | None = None, callers: Collection[str] = (), beginning: str = ""
    ) -> Answered | None:
        """The newest turn whose answer was stored: of a session, of a directory, of these ``callers``, or of callers whose names
        begin with ``beginning``."""
        sessions, turns, answers = schema.sessions, schema.turns, schema.answers
        question: Query = (
            select(turns.c.id, turns.c.session_id, turns.c.caller)
            .join(sessions, sessions.c.id == turns.c.session_id)
            .join(answers, answers.c.turn_id == turns.c.id)
            .where(~turns.c.probe, answers.c.choice == 0, answers.c.message != _EMPTY_ANSWER)
            .order_by(turns.c.started.desc(), turns.c.id.desc())
            .limit(1)
        )
        if session_id:
            question = question.where(turns.c.session_id == session_id)
        if directory is not None:
            question = question.where(sessions.c.directory == directory)
        if callers:
            alike = [turns.c.caller.startswith(beginning, autoescape=True)] if beginning else []
            question = question.where(or_(turns.c.caller.in_(callers), *alike))
        rows = await self._database.fetch(question)
        return Answered(rows[0].id, rows[0].session_id, rows[0].caller) if rows else None

    async def count_turns(self) -> int:
        rows = await self._database.fetch(select(func.count()).select_from(schema.turns))
        return int(rows[0][0])
