"""Full-text search with one small query language for both databases: ``two words "an exact phrase" -not``. A term that consists
of several words, like ``3.14``, is a phrase.

Texts are split into words here, for the index and for queries, because databases disagree on what a word is. A text becomes its
words with one space between them: lower-case letters without accents, digits, and nothing else. In scripts that are written
without spaces each character is a word; several words in a row are searched as a phrase.

Indexing a text costs more than writing it. PostgreSQL defers that automatically; the index of SQLite is updated when the process
is idle, and before a search.

The summaries that queries return, and the filter that they take, are at the end.
"""

from __future__ import annotations

import hashlib
import re
import time
import unicodedata
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from msgspec import Struct, field

from ..errors import RequestError, excerpt
from ..events import StreamError
from ..json_types import JsonObject
from ..messages import Request, Response, TokenCounts
from .database import Database
from .database.sql import Connection, DatabaseRow, SqlRow
from .turns import TURN, first_id


def scope_of(caller: str) -> str:
    """The word that stands for a caller in the index, so that a search finds the texts of one caller."""
    return hashlib.blake2b(caller.encode("utf-8", "replace"), digest_size=8).hexdigest()


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
_WORDS: Final = "(string_to_array(body, ' ') || ARRAY['#' || (number / 1024), '@' || scope])"
"""The expression of the index, as the schema has it: the words of a text, its block, and the word for its caller."""
RULE: Final = 'two words "an exact phrase" -not'
_BEHIND: Final = "SELECT (SELECT coalesce(max(number), 0) FROM texts) - number AS texts FROM indexed"
_NEXT: Final = f"""
    SELECT max(number) AS last FROM (
        SELECT number FROM texts WHERE number > (SELECT number FROM indexed) ORDER BY number LIMIT {TEXTS_PER_TRANSACTION}
    )
"""
_INDEX: Final = """
    INSERT INTO search(rowid, body, scope)
    SELECT number, body, scope FROM texts WHERE number > (SELECT number FROM indexed) AND number <= :last
"""
_INDEXED: Final = "UPDATE indexed SET number = :last"
_NEWEST: Final = "SELECT coalesce(max(number), 0) + 1 AS number FROM texts"
_NUMBER: Final = "SELECT number FROM texts WHERE turn_id = :turn_id"
_OLDER: Final = """
    SELECT texts.number + 1 AS number FROM texts JOIN turns ON turns.id = texts.turn_id
    WHERE turns.id < :turn_id ORDER BY turns.id DESC LIMIT 1
"""
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


async def _index_some(connection: Connection) -> None:
    last = (await connection.fetch(_NEXT))[0].last
    if last is not None:  # otherwise another process indexed them first
        await connection.execute(_INDEX, last=last)
        await connection.execute(_INDEXED, last=last)


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
            async for page in self._newest(*_gin(wanted, unwanted, which), last, rows):
                yield [row.turn_id for row in page]
            return
        while True:
            question, values = _fts(wanted, unwanted, which, last, rows)
            found = await self._database.fetch(question, **values)
            if not found:
                return
            yield [row.turn_id for row in found]
            if len(found) < rows:
                break
            last, rows = found[-1].number, min(MAX_PAGE, rows * PAGE_GROWTH)

    async def _number(self, before: str) -> int:
        """The number of a turn's text, or of the next older text if the turn is gone."""
        if not before:
            rows = await self._database.fetch(_NEWEST)
        else:
            rows = await self._database.fetch(_NUMBER, turn_id=before) or await self._database.fetch(_OLDER, turn_id=before)
        return int(rows[0].number) if rows else 0

    async def _newest(self, question: str, values: SqlRow, last: int, rows: int) -> AsyncIterator[Sequence[DatabaseRow]]:
        """Asks PostgreSQL for some blocks at a time, because its index has no order: first for the newest, and
        with each query for more. Rare words are asked for in all other blocks together."""
        blocks, is_frequent = BLOCKS, False
        while last > 0:
            block = (last - 1) // TEXTS_PER_BLOCK
            first = max(0, block + 1 - blocks)
            names = [f"#{one}" for one in range(first, block + 1)]
            inside = _unordered(f"{question} AND {_WORDS} && CAST(:blocks AS TEXT[])")
            some = f"SELECT * FROM {inside} WHERE number < :last ORDER BY number DESC LIMIT {rows}"
            if found := await self._database.fetch(some, **values, blocks=names, last=last):
                yield found
            is_full = len(found) == rows
            rows = min(MAX_PAGE, rows * PAGE_GROWTH)
            last = found[-1].number if is_full else first * TEXTS_PER_BLOCK
            per_block = len(found) / blocks
            if not is_full and last > 0 and not is_frequent and per_block * first < MOST_OLDER:
                some = f"SELECT * FROM {_unordered(question)} WHERE number < :last LIMIT {MOST_OLDER + 1}"
                older = await self._database.fetch(some, **values, last=last)
                is_frequent = len(older) > MOST_OLDER
                if not is_frequent:
                    yield sorted(older, key=lambda row: row.number, reverse=True)
                    return
            blocks = min(2 * blocks, MOST_BLOCKS)


def _unordered(question: str) -> str:
    """The texts as the index of words finds them. The offset keeps PostgreSQL from reading the texts in their order instead, which
    would be all of them for a word that does not occur."""
    return f"({question} OFFSET 0) AS found"


def _fts(wanted: list[str], unwanted: list[str], which: Filter, last: int, rows: int) -> tuple[str, SqlRow]:
    """The index of SQLite has the order of the texts, and stops after these rows. Without its limit, the part about the index could
    be run once for each text."""
    query = " AND ".join(f'body:"{term}"' for term in wanted) + "".join(f' NOT body:"{term}"' for term in unwanted)
    query = f'({query}) AND scope:"{scope_of(which.caller)}"' if which.caller is not None else query
    conditions, values = _within(which)
    newest = (
        "SELECT search.rowid AS number FROM search WHERE search MATCH :query AND search.rowid < :last "
        f"ORDER BY search.rowid DESC LIMIT {-1 if conditions else rows}"
    )
    question = f"SELECT texts.number, texts.turn_id FROM ({newest}) AS found JOIN texts ON texts.number = found.number"
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"{question} {where} ORDER BY found.number DESC LIMIT {rows}", {**values, "query": query, "last": last}


def _within(which: Filter) -> tuple[list[str], SqlRow]:
    """The conditions for the time. The id of a turn begins with it; as a part of a text it uses no index."""
    found, values = list[str](), SqlRow()
    if which.since:
        found.append("texts.turn_id || '' >= :since")
        values["since"] = first_id(TURN, which.since)
    if which.until:
        found.append("texts.turn_id || '' < :until")
        values["until"] = first_id(TURN, which.until)
    return found, values


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


def _gin(wanted: list[str], unwanted: list[str], which: Filter) -> tuple[str, SqlRow]:
    """The condition for PostgreSQL. Its index finds the texts that contain all words; phrases are then searched in those."""
    # all single words are used; of a long phrase, some words are enough
    single_first = sorted(wanted, key=lambda term: " " in term)
    words = list(dict.fromkeys(" ".join(single_first).split()))[:MAX_TERMS]
    words += [] if which.caller is None else [f"@{scope_of(which.caller)}"]
    conditions, values = _within(which)
    conditions.append(f"{_WORDS} @> CAST(:words AS TEXT[])")
    values["words"] = words
    phrases = [(term, ">") for term in wanted if " " in term] + [(term, "=") for term in unwanted]
    for number, (term, relation) in enumerate(phrases):
        conditions.append(f"strpos(' ' || texts.body || ' ', :phrase_{number}) {relation} 0")
        values[f"phrase_{number}"] = f" {term} "
    return f"SELECT texts.number, texts.turn_id FROM texts WHERE {' AND '.join(conditions)}", values


class TurnSummary(Struct, kw_only=True):
    """The columns of a turn in a list."""

    id: str
    session_id: str
    caller: str
    request_id: str
    response_id: str
    model: str
    upstream: str
    upstream_model: str
    dialects: dict[str, str]
    stream: bool
    ending: str
    error: StreamError | None
    usage: TokenCounts | None
    cost: float | None
    started: float
    duration: float | None
    title: str
    probe: bool = False
    """An agent's request beside the conversation: for a title, a summary, or to try the key."""


class TurnDetail(TurnSummary, kw_only=True):
    """Everything that is stored of a turn except its raw frames. Without stored contents there is no request and no response.
    ``steps`` are those of a tool loop: model turns and calls."""

    request: Request | None
    client_options: JsonObject
    upstream_request: Request | None
    response: Response | None
    timings: JsonObject
    verdicts: list[JsonObject]
    more: JsonObject
    steps: list[JsonObject] = field(default_factory=list)

    @property
    def client_response(self) -> Response | None:
        """The response as the client received it, without the estimated usage."""
        if self.response is not None and self.more.get("estimated"):
            return msgspec.structs.replace(self.response, usage=TokenCounts())
        return self.response


class SessionSummary(Struct, kw_only=True):
    id: str
    caller: str
    name: str
    directory: str
    title: str
    turns: int
    started: float
    updated: float
    input_tokens: int
    output_tokens: int
    cost: float | None


class Filter(Struct, kw_only=True):
    """Which turns to list. ``search`` is a full-text query. ``before`` is the last turn of the previous page: its id, or its
    ``cursor_of``, which stays valid when the turn is deleted."""

    caller: str | None = None
    session_id: str = ""
    model: str = ""
    upstream: str = ""
    ending: str | None = None
    since: float = 0.0
    until: float = 0.0
    search: str = ""
    before: str = ""
    limit: int = 100


class RawFrame(Struct, array_like=True):
    """The bytes of one read or write, ``at`` seconds after the turn began."""

    at: float
    direction: str
    data: bytes


class RawFrames(Struct):
    """Frames of a turn, the number from which to read the next ones, and whether there may be more."""

    found: list[RawFrame]
    next: int
    more: bool


MAX_WORD_CHARS: Final = 500
"""Characters per word; a longer word is split. An index entry of PostgreSQL takes at most 2.7 KB."""
CACHED_CHARS: Final = 20_000
"""Characters whose normal form is cached. A hostile text could contain all of Unicode."""

_PLAIN: Final = bytes(ord(chr(code).lower()) if code < 128 and chr(code).isalnum() else 32 for code in range(256))
_ACCENT: Final = re.compile(
    "[\u0300-\u08ff\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\U000e0100-\U000e01ef]"
)
"""Ranges of marks that people omit when they type: accents, points, variants. Marks of other scripts are vowels and stay."""
_ALONE: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff"
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff]"
)
"""Thai, Lao, Myanmar, Khmer, Chinese and Japanese."""
_FOREIGN: Final = re.compile("[^\x00-\x7f]+")
_LONG: Final = re.compile(f"[^ ]{{{MAX_WORD_CHARS}}}(?=[^ ])")


class _Letters(dict[int, str]):
    """The normal form of each character: a table for ``str.translate`` that grows with use."""

    def __missing__(self, code: int) -> str:
        letters = "".join(map(_letter, unicodedata.normalize("NFKD", chr(code)))).casefold()
        found = _ALONE.sub(r" \g<0> ", unicodedata.normalize("NFC", letters))
        if len(self) < CACHED_CHARS:
            self[code] = found
        return found


def _letter(character: str) -> str:
    kind = unicodedata.category(character)
    if kind == "Cf" or (kind[0] == "M" and _ACCENT.match(character)):
        return ""
    return character if kind[0] in "LNM" else " "


_letters = _Letters()


def wording(text: str) -> str:
    """The words of a text, separated by spaces."""
    if not text.isascii():
        half_width = "\uff9e" in text or "\uff9f" in text  # half-width voicing marks follow their letter
        text = unicodedata.normalize("NFKC" if half_width else "NFC", text)
        if len(text.encode(errors="replace")) < len(text) * 1.1:  # most answers have few characters outside ASCII
            text = _FOREIGN.sub(lambda found: found[0].translate(_letters), text)
    plain = text.encode().translate(_PLAIN).decode() if text.isascii() else text.translate(_letters)
    words = " ".join(plain.split())
    half = MAX_WORD_CHARS // 2
    if all(" " in words[start : start + half] for start in range(0, len(words) - half, half)):
        return words  # no word can be too long
    return _LONG.sub(r"\g<0> ", words)
