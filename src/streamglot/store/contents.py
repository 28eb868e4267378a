"""What repeats is stored once: the long texts of messages, and the tools and settings of requests. Pure, except for one query.

An agent repeats its tools and instructions with every request, and clients send an answer back with other spaces in its calls, without
its reasoning, or with a mark for the provider's cache. A message is therefore stored without its long texts, and a request without
its tools and other large fields. Each of these pieces is a row of ``contents`` under its hash; the row of the message or request has
a ``HOLE`` in the place of each, and ``pieces`` names them in order.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import select

from ..json_types import JsonObject, JsonValue
from ..messages import Request
from . import schema
from .conversation import HASH_BYTES
from .database import Database
from .packing import unpacked
from .sql_types import DatabaseRow, Query

Hashes: TypeAlias = dict[int, tuple[object, bytes]]
"""The hashes of objects by their identity. It holds the objects, so that no other gets the identity of one."""
HOLE: Final = "\x1a"
"""Stands in a body for a piece. JSON has no control characters."""
PIECE_CHARS: Final = 256
"""Characters from which a text is a row of its own. The row costs about 150 bytes."""
MAX_PIECES: Final = 64
"""Pieces of one body. If it has more long texts, the shorter ones stay in it."""
MARKS_PER_QUERY: Final = 500
"""Bodies whose pieces one query reads. SQLite takes some thousand parameters."""
LARGE_FIELDS: Final[Mapping[str, JsonValue]] = {"tools": [], "output": None, "extra": {}, "metadata": None}
"""The fields of a request that may be large and are the same in the next one, with their defaults."""
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_encoder = msgspec.json.Encoder()


class Cut(Struct):
    """A body with holes, and the pieces for them by their hash, in order."""

    body: str
    pieces: list[tuple[bytes, bytes]]


def hashed(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()


def cut(body: str) -> Cut:
    """Takes the long texts out of the JSON of a message."""
    if len(body) < PIECE_CHARS:
        return Cut(body, [])
    found = [span for match in _STRING.finditer(body) if (span := match.span())[1] - span[0] >= PIECE_CHARS]
    if len(found) > MAX_PIECES:
        found = sorted(heapq.nlargest(MAX_PIECES, found, key=lambda span: span[1] - span[0]))
    kept: list[str] = []
    pieces: list[tuple[bytes, bytes]] = []
    end = 0
    for first, last in found:
        kept.append(body[end:first])
        piece, end = body[first:last].encode(), last
        pieces.append((hashed(piece), piece))
    return Cut(HOLE.join([*kept, body[end:]]), pieces)


def cut_request(request: Request, hashes: Hashes) -> tuple[bytes, Cut]:
    """Takes the large fields out of a request without its messages. Returns the hash of the whole and the cut."""
    holes: list[str] = []
    pieces: list[tuple[bytes, bytes]] = []
    small: JsonObject = {"messages": []}
    for name, default in LARGE_FIELDS.items():
        value = getattr(request, name)
        if not value:
            continue
        data = _encoder.encode(value)
        if len(data) < PIECE_CHARS:
            continue
        _, mark = hashes.get(id(value)) or hashes.setdefault(id(value), (value, hashed(data)))
        pieces.append((mark, data))
        holes.append(f'"{name}":{HOLE}')
        small[name] = default
    body = _encoder.encode(replace(request, **small)).decode()
    if holes:
        body = f"{body[:-1]}{',' * (len(body) > 2)}{','.join(holes)}}}"
    return hashed(b"".join([body.encode(), *(mark for mark, _ in pieces)])), Cut(body, pieces)


def filled(body: str, pieces: list[str]) -> str | None:
    """The whole body; None if it does not have all of its pieces, because it was pruned while it was read."""
    if HOLE not in body:
        return body
    kept = body.split(HOLE)
    if len(kept) != len(pieces) + 1:
        return None
    return "".join([text for pair in zip(kept, pieces, strict=False) for text in pair] + kept[-1:])


def piece_queries(bodies: Mapping[bytes, str]) -> Iterator[Query]:
    """The queries for the pieces of these bodies, by the hash of the body."""
    pieces, contents = schema.pieces, schema.contents
    owners = [mark for mark, body in bodies.items() if HOLE in body]
    for first in range(0, len(owners), MARKS_PER_QUERY):
        question = select(pieces.c.owner, contents.c.body).join(contents, contents.c.hash == pieces.c.content)
        question = question.where(pieces.c.owner.in_(owners[first : first + MARKS_PER_QUERY]))
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
