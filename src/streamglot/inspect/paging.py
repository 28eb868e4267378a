"""An inspection in pages: the first is small, so that it is shown at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from .inspection import ASKED, Inspection
from .recording import Piece, attempt_of

FIRST_ROWS: Final = 400
"""Rows of the first page: more than any screen shows."""
PAGE_ROWS: Final = 6_000
"""Rows of the others: few enough to be read in less than a tenth of a second."""
READ_BYTES: Final = 2**16
"""A piece is fed in parts of this size, so that a recording that is one piece gives pages too."""


class Pager:
    """Feeds pieces to an inspection and gives a page whenever enough rows are there."""

    def __init__(self, inspection: Inspection) -> None:
        self.inspection = inspection
        self._room = FIRST_ROWS

    def feed(self, pieces: Iterable[Piece]) -> Iterator[dict[str, Any]]:
        inspection = self.inspection
        for piece in pieces:
            asked = attempt_of(piece) if piece.direction.startswith(ASKED) else None
            for part in _parts(piece):
                inspection.feed(piece.direction, piece.at, part, asked)
                if len(inspection.upstream.at) + len(inspection.events.at) >= self._room:
                    self._room = PAGE_ROWS
                    yield inspection.page()

    def close(self) -> dict[str, Any]:
        """The last page."""
        self.inspection.close()
        return self.inspection.page()


def _parts(piece: Piece) -> Iterator[bytes]:
    data = piece.data
    if len(data) <= READ_BYTES or not piece.direction.startswith("up"):
        yield data
        return
    for place in range(0, len(data), READ_BYTES):
        yield data[place : place + READ_BYTES]
