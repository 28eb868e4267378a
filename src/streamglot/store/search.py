"""Full-text search with one small query language for both databases: ``two words "an exact phrase" -not``. A term that consists
of several words, like ``3.14``, is a phrase.

Indexing a text costs more than writing it. PostgreSQL defers that automatically; the index of SQLite is updated when the process
is idle, and before a search.
"""

from __future__ import annotations

import re
import time
from typing import Final

from sqlalchemy import ARRAY, Connection, Text, column, func, literal, literal_column, select, table, text

from ..errors import RequestError, excerpt
from . import schema
from .database import Database
from .sql_types import Query
from .tokenizer import wording

TEXTS_PER_TRANSACTION: Final = 100
"""Texts per transaction. Writers of turns wait for it."""
MAX_BEHIND: Final = 5_000
"""Texts that a search may have to index first, which takes a second or two."""
IDLE_CPU_SHARE: Final = 0.05
"""A process that uses less than this share of a core is idle."""
MAX_TERMS: Final = 64
RULE: Final = 'two words "an exact phrase" -not'
_BEHIND: Final = text("SELECT (SELECT coalesce(max(number), 0) FROM texts) - number AS texts FROM indexed")
_NEXT: Final = text(
    "SELECT max(number) FROM (SELECT number FROM texts WHERE number > (SELECT number FROM indexed) ORDER BY number LIMIT :most)"
)
_INDEX: Final = text(
    "INSERT INTO search(rowid, body) SELECT number, body FROM texts WHERE number > (SELECT number FROM indexed) AND number <= :last"
)
_TERM: Final = re.compile(r'(-?)(?:"([^"]*)"|(\S+))')


class Indexing:
    """Keeps the index of SQLite close to its texts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._looked, self._used = time.monotonic(), time.process_time()

    async def look(self) -> None:
        """Runs periodically. A busy process postpones the indexing, unless the index is far behind."""
        before, used = self._looked, self._used
        self._looked, self._used = time.monotonic(), time.process_time()
        quiet = self._used - used < IDLE_CPU_SHARE * (self._looked - before)
        await self.catch_up(0 if quiet else MAX_BEHIND)

    async def catch_up(self, behind: int = 0) -> None:
        """Indexes all texts except the last ``behind``."""
        while self._database.is_sqlite and (await self._database.fetch(_BEHIND))[0].texts > behind:
            await self._database.write(_index_some)


def _index_some(connection: Connection) -> None:
    last = connection.execute(_NEXT, {"most": TEXTS_PER_TRANSACTION}).scalar()
    if last is not None:  # otherwise another process indexed them first
        connection.execute(_INDEX, {"last": last})
        connection.execute(text("UPDATE indexed SET number = :last"), {"last": last})


def matches(words: str, sqlite: bool) -> Query:
    """Selects the ids of the turns that match this query."""
    wanted, unwanted = terms(words)
    found = select(schema.texts.c.turn_id)
    if not sqlite:
        return _filtered(found, wanted, unwanted)
    search = table("search", column("rowid"))
    query = " AND ".join(f'"{term}"' for term in wanted) + "".join(f' NOT "{term}"' for term in unwanted)
    return found.join(search, search.c.rowid == schema.texts.c.number).where(text("search MATCH :query").bindparams(query=query))


def terms(words: str) -> tuple[list[str], list[str]]:
    """The required and the excluded terms, each as the words of a phrase."""
    wanted: list[str] = []
    unwanted: list[str] = []
    for minus, phrase, word in _TERM.findall(words):
        if term := wording(phrase or word):
            (unwanted if minus else wanted).append(term)
    if not wanted:
        raise RequestError(f"a search needs at least one word that must be present: {RULE}; {excerpt(words)} has none")
    if len(wanted) + len(unwanted) > MAX_TERMS:
        raise RequestError(f"a search may have at most {MAX_TERMS} terms, not {len(wanted) + len(unwanted)}: remove some")
    return wanted, unwanted


def _filtered(found: Query, wanted: list[str], unwanted: list[str]) -> Query:
    """Adds the conditions for PostgreSQL. Its index finds the texts that contain all words; phrases are then searched in
    those."""
    body = schema.texts.c.body
    # all single words are used; of a long phrase, some words are enough
    single_first = sorted(wanted, key=lambda term: " " in term)
    words = list(dict.fromkeys(" ".join(single_first).split()))[:MAX_TERMS]
    found = found.where(func.string_to_array(body, literal_column("' '")).op("@>")(literal(words, ARRAY(Text))))
    for named, is_wanted in ((wanted, True), (unwanted, False)):
        for term in named:
            if not is_wanted or " " in term:
                place = func.strpos(literal(" ") + body + " ", f" {term} ")
                found = found.where(place > 0 if is_wanted else place == 0)
    return found
