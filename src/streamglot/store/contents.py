"""What repeats is stored once: the long texts of messages, and the tools and settings of requests.

An agent repeats its tools and instructions with every request, and clients send an answer back with other spaces in its calls,
without its reasoning, or with a mark for the provider's cache. A message is therefore stored without its long texts, and a
request without its tools and other large fields. Each of these pieces is a row of ``contents`` under its hash, compressed; the
row of the message or request has a ``HOLE`` in the place of each, and ``pieces`` names them in order. ``whole_bodies`` puts them
back.
"""

from __future__ import annotations

import hashlib
import heapq
import re
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..json_types import JsonObject, JsonValue
from ..messages import Request
from .conversation import HASH_BYTES

if TYPE_CHECKING:  # programs that store nothing cut messages too, and load no database
    from .database import Database
    from .database.sql import Connection, DatabaseRow

PACKED: Final = b"\x01"
"""The first byte of compressed data. Neither JSON nor MessagePack arrays begin with it."""
Hashes: TypeAlias = dict[int, tuple[object, bytes]]
"""The hashes of objects by their identity. It holds the objects, so that no other gets the identity of one."""
HOLE: Final = "\x1a"
"""Stands in a body for a piece. JSON has no control characters."""
PIECE_CHARS: Final = 512
"""Characters from which a text is a row of its own. The rows for a shorter one take more space than compressing it saves."""
MAX_PIECES: Final = 64
"""Pieces of one body. If it has more long texts, the shorter ones stay in it."""
LARGE_FIELDS: Final[Mapping[str, JsonValue]] = {"tools": [], "output": None, "extra": {}, "metadata": None}
"""The fields of a request that may be large and are the same in the next one, with their defaults."""
REMEMBERED: Final = 16
"""Large fields whose hash is remembered: those of the agents that work at the same time."""
REMEMBERED_BYTES: Final = 2**17
"""Bytes of a field that is remembered, so that all together take 2 MB."""
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
"""A text of JSON. It never goes back, which would take memory for each escape."""
_encoder = msgspec.json.Encoder()


class Cut(Struct):
    """A body with holes, and the pieces for them with their hashes, in order. A piece is JSON, or what becomes JSON in
    ``piece_row``."""

    body: str
    pieces: list[tuple[bytes, object]]


def hashed(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=HASH_BYTES).digest()


_hashed_again = lru_cache(REMEMBERED)(hashed)
"""The same for data that comes again, such as the tools of an agent: finding it costs a third."""


def cut(body: str) -> Cut:
    """Takes the long texts out of the JSON of a message."""
    if len(body) < PIECE_CHARS:
        return Cut(body, [])
    found = [span for match in _STRING.finditer(body) if (span := match.span())[1] - span[0] >= PIECE_CHARS]
    if len(found) > MAX_PIECES:
        found = sorted(heapq.nlargest(MAX_PIECES, found, key=lambda span: span[1] - span[0]))
    kept: list[str] = []
    pieces: list[tuple[bytes, object]] = []
    end = 0
    for first, last in found:
        kept.append(body[end:first])
        piece, end = body[first:last].encode(), last
        pieces.append((hashed(piece), piece))
    return Cut(HOLE.join([*kept, body[end:]]), pieces)


def cut_request(request: Request, hashes: Hashes) -> tuple[bytes, Cut]:
    """Takes the large fields out of a request without its messages. Returns the hash of the whole and the cut."""
    holes: list[str] = []
    pieces: list[tuple[bytes, object]] = []
    small: JsonObject = {"messages": []}
    for name, default in LARGE_FIELDS.items():
        value = getattr(request, name)
        if not value:
            continue
        known = hashes.get(id(value))
        if known is None:
            data = _encoder.encode(value)
            if len(data) < PIECE_CHARS:
                continue
            known = hashes[id(value)] = value, _hashed_again(data) if len(data) < REMEMBERED_BYTES else hashed(data)
        pieces.append((known[1], value))
        holes.append(f'"{name}":{HOLE}')
        small[name] = default
    body = _encoder.encode(replace(request, **small)).decode()
    if holes:
        body = f"{body[:-1]}{',' * (len(body) > 2)}{','.join(holes)}}}"
    return hashed(b"".join([body.encode(), *(mark for mark, _ in pieces)])), Cut(body, pieces)


def piece_row(piece: object) -> bytes:
    """A piece as it is stored."""
    return packed(piece if isinstance(piece, bytes) else _encoder.encode(piece))


def filled(body: str, pieces: list[str]) -> str | None:
    """The whole body; None if it does not have all of its pieces, because it was pruned while it was read."""
    if HOLE not in body:
        return body
    kept = body.split(HOLE)
    if len(kept) != len(pieces) + 1:
        return None
    return "".join([text for pair in zip(kept, pieces, strict=False) for text in pair] + kept[-1:])


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


def packed(data: bytes) -> bytes:
    """Compresses with a small window and small tables, which need no setup time; similar data is close together. There is no
    checksum because the database detects damage."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -13, 6)
    return PACKED + packer.compress(data) + packer.flush()


def unpacked(body: bytes) -> bytes:
    return zlib.decompress(body[1:], -zlib.MAX_WBITS) if body.startswith(PACKED) else body
