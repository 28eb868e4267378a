"""Full-text search with one small query language for both databases: ``two words "an exact phrase" -not``. A term that consists
of several words, like ``3.14``, is a phrase.

Indexing a text costs more than writing it. PostgreSQL defers that automatically; the index of SQLite is updated when the process
is idle, and before a search.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Subquery,
    Text,
    column,
    func,
    literal,
    literal_column,
    select,
    table,
    text,
)

from ..errors import RequestError, excerpt
from . import schema
from .database import Database
from .query_results import Filter
from .sql_types import DatabaseRow, Query, SqlValue, at_most
from .tokenizer import scope_of, wording
from .turn import TURN, first_id

TEXTS_PER_TRANSACTION: Final = 100
"""Texts per transaction. Writers of turns wait for it."""
MAX_BEHIND: Final = 5_000
"""Texts that a search may have to index first, which takes a second or two."""
IDLE_CPU_SHARE: Final = 0.05
"""A process that uses less than this share of a core is idle."""
MAX_TERMS: Final = 64
TEXTS_PER_BLOCK: Final = 1_024
"""Texts per block, which the index of PostgreSQL contains as a word: more than a page has, and few enough to sort."""
BLOCKS: Final = 2
"""Blocks of the first query: the newest one may have few texts."""
MOST_BLOCKS: Final = 8
"""Blocks of a query: all of their texts may match."""
PAGE_GROWTH: Final = 4
MAX_PAGE: Final = 2_000
"""Texts per page, which are parameters of a query."""
MOST_OLDER: Final = 2_000
"""Texts of all older blocks together that are read at once. Words that more texts have are frequent."""
_WORDS: Final[ColumnElement[SqlValue]] = literal_column(
    "(string_to_array(body, ' ') || ARRAY['#' || (number / 1024), '@' || scope])"
)
"""The expression of the index, as the migrations write it: the words of a text, its block, and the word for its caller."""
RULE: Final = 'two words "an exact phrase" -not'
_BEHIND: Final = text("SELECT (SELECT coalesce(max(number), 0) FROM texts) - number AS texts FROM indexed")
_NEXT: Final = text(
    "SELECT max(number) FROM (SELECT number FROM texts WHERE number > (SELECT number FROM indexed) ORDER BY number LIMIT :most)"
)
_INDEX: Final = text(
    "INSERT INTO search(rowid, body, scope) SELECT number, body, scope FROM texts WHERE number > (SELECT number FROM indexed) AND number <= :last"
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


class Search:
    """Finds turns by their words, the last stored first."""

    def __init__(self, database: Database, indexing: Indexing) -> None:
        self._database = database
        self._indexing = indexing

    async def pages(self, which: Filter, before: str) -> AsyncIterator[list[str]]:
        """The ids of the turns with these words, of this caller and within this time. If one page is not enough, because of the rest of
        the filter, the next ones are larger. ``before`` is the turn that the first one follows."""
        wanted, unwanted = terms(which.search)
        await self._indexing.catch_up()
        last, rows = await self._number(before), min(which.limit, MAX_PAGE)
        if not self._database.is_sqlite:
            async for page in self._newest(_gin(wanted, unwanted, which), last, rows):
                yield [row.turn_id for row in page]
            return
        while found := await self._database.fetch(_fts(wanted, unwanted, which, last, rows)):
            yield [row.turn_id for row in found]
            if len(found) < rows:
                break
            last, rows = found[-1].number, min(MAX_PAGE, rows * PAGE_GROWTH)

    async def _number(self, before: str) -> int:
        """The number of a turn's text, or of the next older text if the turn is gone."""
        texts, turns = schema.texts, schema.turns
        if not before:
            rows = await self._database.fetch(select((func.coalesce(func.max(texts.c.number), 0) + 1).label("number")))
        else:
            rows = await self._database.fetch(select(texts.c.number).where(texts.c.turn_id == before))
            older = select((texts.c.number + 1).label("number")).join(turns, turns.c.id == texts.c.turn_id)
            rows = rows or await self._database.fetch(at_most(older.where(turns.c.id < before).order_by(turns.c.id.desc()), 1))
        return int(rows[0].number) if rows else 0

    async def _newest(self, question: Query, last: int, rows: int) -> AsyncIterator[Sequence[DatabaseRow]]:
        """Asks PostgreSQL for some blocks at a time, because its index has no order: first for the newest, and
        with each query for more. Rare words are asked for in all other blocks together."""
        blocks, is_frequent = BLOCKS, False
        while last > 0:
            block = (last - 1) // TEXTS_PER_BLOCK
            first = max(0, block + 1 - blocks)
            names = [f"#{one}" for one in range(first, block + 1)]
            inside = _unordered(question.where(_WORDS.op("&&")(literal(names, ARRAY(Text)))))
            some = select(inside).where(inside.c.number < last).order_by(inside.c.number.desc())
            if found := await self._database.fetch(at_most(some, rows)):
                yield found
            is_full = len(found) == rows
            rows = min(MAX_PAGE, rows * PAGE_GROWTH)
            last = found[-1].number if is_full else first * TEXTS_PER_BLOCK
            per_block = len(found) / blocks
            if not is_full and last > 0 and not is_frequent and per_block * first < MOST_OLDER:
                all_texts = _unordered(question)
                older = await self._database.fetch(at_most(select(all_texts).where(all_texts.c.number < last), MOST_OLDER + 1))
                is_frequent = len(older) > MOST_OLDER
                if not is_frequent:
                    yield sorted(older, key=lambda row: row.number, reverse=True)
                    return
            blocks = min(2 * blocks, MOST_BLOCKS)


def _unordered(question: Query) -> Subquery:
    """The texts as the index of words finds them. The offset keeps PostgreSQL from reading the texts in their order instead, which
    would be all of them for a word that does not occur."""
    return question.offset(literal_column("0")).subquery("found")


def _fts(wanted: list[str], unwanted: list[str], which: Filter, last: int, rows: int) -> Query:
    """The index of SQLite has the order of the texts, and stops after these rows. Without its limit, the part about the index could
    be run once for each text."""
    search, texts = table("search", column("rowid")), schema.texts
    query = " AND ".join(f'body:"{term}"' for term in wanted) + "".join(f' NOT body:"{term}"' for term in unwanted)
    query = f'({query}) AND scope:"{scope_of(which.caller)}"' if which.caller is not None else query
    found = select(search.c.rowid).where(text("search MATCH :query").bindparams(query=query), search.c.rowid < last)
    newest = at_most(found.order_by(search.c.rowid.desc()), -1 if which.since or which.until else rows).subquery("found")
    question = select(texts.c.number, texts.c.turn_id).join_from(newest, texts, newest.c.rowid == texts.c.number)
    return at_most(question.where(*_within(which)).order_by(newest.c.rowid.desc()), rows)


def _within(which: Filter) -> list[ColumnElement[bool]]:
    """The conditions for the time. The id of a turn begins with it; as a part of a text it uses no index."""
    id = schema.texts.c.turn_id + ""
    found = [id >= first_id(TURN, which.since)] if which.since else []
    return [*found, id < first_id(TURN, which.until)] if which.until else found


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


def _gin(wanted: list[str], unwanted: list[str], which: Filter) -> Query:
    """The condition for PostgreSQL. Its index finds the texts that contain all words; phrases are then searched in those."""
    texts = schema.texts
    # all single words are used; of a long phrase, some words are enough
    single_first = sorted(wanted, key=lambda term: " " in term)
    words = list(dict.fromkeys(" ".join(single_first).split()))[:MAX_TERMS]
    words += [] if which.caller is None else [f"@{scope_of(which.caller)}"]
    found = select(texts.c.number, texts.c.turn_id).where(*_within(which)).where(_WORDS.op("@>")(literal(words, ARRAY(Text))))
    for named, is_wanted in ((wanted, True), (unwanted, False)):
        for term in named:
            if not is_wanted or " " in term:
                place = func.strpos(literal(" ") + texts.c.body + " ", f" {term} ")
                found = found.where(place > 0 if is_wanted else place == 0)
    return found
