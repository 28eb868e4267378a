"""Searching by words: the same small language for both databases. ``two words "an exact phrase" -not``."""

from __future__ import annotations

import re
from typing import Any, Final

from sqlalchemy import Select, column, func, literal_column, select, table, text

from . import schema

_TERM: Final = re.compile(r'(-?)(?:"([^"]*)"|(\S+))')


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
