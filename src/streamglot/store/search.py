"""Searching by words: the same small language for both databases. ``two words "an exact phrase" -not``.

To index a text costs more than to write it. PostgreSQL puts that off by itself; SQLite's index follows in quiet moments, and
before a search.
"""

from __future__ import annotations

import re
import time
from typing import Any, Final

from sqlalchemy import Connection, Select, column, func, literal_column, select, table, text

from . import schema
from .database import Database

AT_ONCE: Final = 100
"""Texts of one transaction: who writes turns waits for it."""
MOST_BEHIND: Final = 5_000
"""Texts that a search may have to index first: a second or two."""
QUIET: Final = 0.05
"""A process that uses less of a core than this has nothing else to do."""
_BEHIND: Final = text("SELECT (SELECT coalesce(max(number), 0) FROM texts) - number AS texts FROM indexed")
_NEXT: Final = text(
    "SELECT max(number) FROM (SELECT number FROM texts WHERE number > (SELECT number FROM indexed) ORDER BY number LIMIT :most)"
)
_INDEX: Final = text(
    "INSERT INTO search(rowid, body) SELECT number, body FROM texts WHERE number > (SELECT number FROM indexed) AND number <= :last"
)
_TERM: Final = re.compile(r'(-?)(?:"([^"]*)"|(\S+))')


class Indexing:
    """Keeps the index of SQLite near its texts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._looked, self._used = time.monotonic(), time.process_time()

    async def look(self) -> None:
        """From time to time. A process that is busy leaves it for later, unless it is far behind."""
        before, used = self._looked, self._used
        self._looked, self._used = time.monotonic(), time.process_time()
        quiet = self._used - used < QUIET * (self._looked - before)
        await self.catch_up(0 if quiet else MOST_BEHIND)

    async def catch_up(self, behind: int = 0) -> None:
        """Up to so many texts behind the last one."""
        while self._database.is_sqlite and (await self._database.fetch(_BEHIND))[0].texts > behind:
            await self._database.write(_index_some)


def _index_some(connection: Connection) -> None:
    last = connection.execute(_NEXT, {"most": AT_ONCE}).scalar()
    if last is not None:  # else somebody else was faster
        connection.execute(_INDEX, {"last": last})
        connection.execute(text("UPDATE indexed SET number = :last"), {"last": last})


def matches(words: str, sqlite: bool) -> Select[Any]:
    """The ids of the turns that have these words."""
    texts, words = schema.texts, words.replace("\0", " ").lower()
    if sqlite:
        search = table("search", column("rowid"))
        return (
            select(texts.c.turn_id)
            .join(search, search.c.rowid == texts.c.number)
            .where(text("search MATCH :words").bindparams(words=fts_query(words)))
        )
    found = func.to_tsvector(literal_column("'simple'"), texts.c.body)
    return select(texts.c.turn_id).where(found.op("@@")(func.websearch_to_tsquery(literal_column("'simple'"), words)))


def fts_query(words: str) -> str:
    """The words in the language of FTS5, every one of them quoted: a user's text is never an operator."""
    wanted: list[str] = []
    unwanted: list[str] = []
    for minus, phrase, word in _TERM.findall(words):
        term = (phrase or word).replace('"', "")
        if any(character.isalnum() for character in term):
            (unwanted if minus else wanted).append(f'"{term}"')
    if not wanted:
        return '""'
    query = " AND ".join(wanted)
    return f"({query}) NOT ({' OR '.join(unwanted)})" if unwanted else query
