"""Pages of an inspection. The first page is small, so that it is shown quickly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ..json_types import JsonObject
from .inspection import ASKED, Inspection
from .recording import RecordedPiece, attempt_of

FIRST_ROWS: Final = 400
"""Rows of the first page: more than a screen shows."""
PAGE_ROWS: Final = 6_000
"""Rows of the other pages: few enough to be read in less than a tenth of a second."""
READ_BYTES: Final = 2**16
"""Bytes. A piece is fed in parts of this size, so that a recording in one piece also gives several pages."""


class Pager:
    """Feeds pieces to an inspection and yields a page whenever there are enough rows."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection
        self._room = FIRST_ROWS

    def feed(self, pieces: Iterable[RecordedPiece]) -> Iterator[JsonObject]:
        inspection = self.inspection
        for piece in pieces:
            attempt = attempt_of(piece) if piece.direction.startswith(ASKED) else None
            for part in _parts(piece):
                inspection.feed(piece.direction, piece.at, part, attempt)
                if len(inspection.upstream.at) + len(inspection.events.at) >= self._room:
                    self._room = PAGE_ROWS
                    yield inspection.page()

    def close(self) -> JsonObject:
        """The last page."""
        self.inspection.close()
        return self.inspection.page()


def _parts(piece: RecordedPiece) -> Iterator[bytes]:
    data = piece.data
    if len(data) <= READ_BYTES or not piece.direction.startswith("up"):
        yield data
        return
    for place in range(0, len(data), READ_BYTES):
        yield data[place : place + READ_BYTES]
