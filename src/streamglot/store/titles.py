"""Titles that people gave to sessions, in place of the beginning of the first message."""

from __future__ import annotations

import time
from typing import Final

import msgspec
from sqlalchemy import Connection, Select, delete, insert, select

from . import schema
from .database import Database

OWN: Final = ""
TITLE: Final = "title"
"""The key of a given title among the session's states, beside those of its providers. No provider has an empty name."""
TITLE_CHARS: Final = 200
"""Characters of the longest title: it must fit on one line of a list."""


def given_titles(sessions: list[str]) -> Select[tuple[str, str]]:
    """The titles that were given to these sessions, as JSON."""
    states = schema.states
    question = select(states.c.session_id, states.c.value)
    return question.where(states.c.session_id.in_(sessions), states.c.provider == OWN, states.c.name == TITLE)


async def rename_session(database: Database, session_id: str, title: str) -> None:
    """Sets the title of the session. An empty title removes it."""
    title = " ".join(title.split())[:TITLE_CHARS]
    states = schema.states
    place = {"session_id": session_id, "provider": OWN, "name": TITLE}

    def rename(connection: Connection) -> None:
        same = (states.c[name] == value for name, value in place.items())
        connection.execute(delete(states).where(*same))
        if title:
            connection.execute(insert(states), {**place, "value": msgspec.json.encode(title).decode(), "at": time.time()})

    await database.write(rename)
