"""Reads the pieces of messages and requests, and puts them back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from .contents import HOLE, filled
from .database import Database
from .database.sql import Connection, DatabaseRow
from .packing import unpacked

BODIES_PER_QUERY: Final = 500
"""Bodies whose pieces one query reads. SQLite takes some thousand parameters."""
_PIECES: Final = (
    "SELECT pieces.owner, contents.body FROM pieces JOIN contents ON contents.hash = pieces.content "
    "WHERE pieces.owner IN :owners ORDER BY pieces.owner, pieces.number"
)


async def whole_bodies(source: Database | Connection, bodies: Mapping[bytes, str]) -> dict[bytes, str]:
    """The whole bodies of rows by their hash, read from the database or inside a transaction. Those are left out that were pruned
    meanwhile."""
    owners, rows = [mark for mark, body in bodies.items() if HOLE in body], []
    for first in range(0, len(owners), BODIES_PER_QUERY):
        rows += await source.fetch(_PIECES, owners=owners[first : first + BODIES_PER_QUERY])
    return _with_pieces(bodies, rows)


def _with_pieces(bodies: Mapping[bytes, str], rows: Iterable[DatabaseRow]) -> dict[bytes, str]:
    """The whole bodies by their hash, from the rows of their pieces. Those are left out that were pruned meanwhile."""
    pieces: dict[bytes, list[str]] = {}
    for row in rows:
        pieces.setdefault(row.owner, []).append(unpacked(row.body).decode())
    found = {mark: filled(body, pieces.get(mark, [])) for mark, body in bodies.items()}
    return {mark: body for mark, body in found.items() if body is not None}
