"""Titles that people gave to sessions, in place of the beginning of the first message."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from .database import Database
from .database.sql import Connection, insert_row

OWN: Final = ""
TITLE: Final = "title"
"""The key of a given title among the session's states, beside those of its providers. No provider has an empty name."""
TITLE_CHARS: Final = 200
"""Characters of the longest title: it must fit on one line of a list."""


_GIVEN: Final = "SELECT session_id, value FROM states WHERE session_id IN :sessions AND provider = :provider AND name = :name"
"""The titles that were given to these sessions, as JSON."""
_REMOVE: Final = "DELETE FROM states WHERE session_id = :session_id AND provider = :provider AND name = :name"
_ADD: Final = insert_row("states", ("session_id", "provider", "name", "value", "at"))


async def given_titles(database: Database, sessions: list[str]) -> dict[str, str]:
    """The titles that were given to these sessions."""
    rows = await database.fetch(_GIVEN, sessions=sessions, provider=OWN, name=TITLE) if sessions else []
    return {row.session_id: msgspec.json.decode(row.value, type=str) for row in rows}


async def rename_session(database: Database, session_id: str, title: str) -> None:
    """Sets the title of the session. An empty title removes it."""
    title = " ".join(title.split())[:TITLE_CHARS]
    place = {"session_id": session_id, "provider": OWN, "name": TITLE}

    async def rename(connection: Connection) -> None:
        await connection.execute(_REMOVE, **place)
        if title:
            await connection.execute(_ADD, **place, value=msgspec.json.encode(title).decode(), at=time.time())

    await database.write(rename)
