"""Reads the pieces of messages and requests, and puts them back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from sqlalchemy import select

from . import schema
from .contents import HOLE, filled
from .database import Database
from .packing import unpacked
from .sql_types import DatabaseRow, Query

BODIES_PER_QUERY: Final = 500
"""Bodies whose pieces one query reads. SQLite takes some thousand parameters."""


def piece_queries(bodies: Mapping[bytes, str]) -> Iterator[Query]:
    """The queries for the pieces of these bodies, by the hash of the body."""
    pieces, contents = schema.pieces, schema.contents
    owners = [mark for mark, body in bodies.items() if HOLE in body]
    for first in range(0, len(owners), BODIES_PER_QUERY):
        question = select(pieces.c.owner, contents.c.body).join(contents, contents.c.hash == pieces.c.content)
        question = question.where(pieces.c.owner.in_(owners[first : first + BODIES_PER_QUERY]))
        yield question.order_by(pieces.c.owner, pieces.c.number)


def with_pieces(bodies: Mapping[bytes, str], rows: Iterable[DatabaseRow]) -> dict[bytes, str]:
    """The whole bodies by their hash, from the rows of ``piece_queries``. Those are left out that were pruned meanwhile."""
    pieces: dict[bytes, list[str]] = {}
    for row in rows:
        pieces.setdefault(row.owner, []).append(unpacked(row.body).decode())
    found = {mark: filled(body, pieces.get(mark, [])) for mark, body in bodies.items()}
    return {mark: body for mark, body in found.items() if body is not None}


async def whole_bodies(database: Database, bodies: Mapping[bytes, str]) -> dict[bytes, str]:
    """The whole bodies of rows by their hash. Those are left out that were pruned meanwhile."""
    rows = [row for question in piece_queries(bodies) for row in await database.fetch(question)]
    return with_pieces(bodies, rows)
