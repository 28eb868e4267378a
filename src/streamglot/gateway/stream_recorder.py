"""One stream on its way into the buffer. What is done for each write is most of what keeping costs, so it is next to nothing:
the bytes come together until somebody wants them, the stream ends or they are many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from .event_ids import EVENT_IDS, FRAMES

if TYPE_CHECKING:
    from ..store import StreamBuffer

SPOKEN: Final = "dialect"
"""Beside the headers that a stream is opened with: the dialect that it is in."""
RESPONSE_ID: Final = "response_id"
"""The id of the response in the stream, for a writer that must end it in the place of the first one."""
PIECES: Final = 250
"""So many writes come together."""
LARGE_BYTES: Final = 4096
"""Writes as large as this are not let come together."""


class StreamRecorder:
    """``numbered``: clients of this dialect take the numbers in the frames. ``awaited``: somebody will come back for it, and
    little of it is to go down with the process. A stream that is neither is ``plain``: who writes to it puts the bytes into
    ``pieces``, and has it looked at from time to time."""

    __slots__ = ("_awaited", "_buffer", "_id", "_kept", "_numbered", "_numbering", "_written", "pieces", "plain")

    def __init__(
        self,
        buffer: StreamBuffer,
        id: str,
        caller: str,
        stop: Callable[[], None],
        headers: Mapping[str, str],
        *,
        numbered: bool,
        awaited: bool,
    ) -> None:
        self._buffer = buffer
        self._id = id
        self._numbering = EVENT_IDS[headers["content-type"]]
        self._numbered = numbered
        self._awaited = awaited
        self._written = self._kept = 0
        self.pieces: list[bytes] = []
        buffer.open(id, caller, stop, self.hand_over, msgspec.json.encode(headers).decode())
        self.plain = self._is_plain()

    def _is_plain(self) -> bool:
        return not self._numbered and not self._awaited and not self._buffer.wanted(self._id)

    def wrote(self, data: bytes) -> bytes:
        """The bytes as they go to the client, with their numbers where these have a place."""
        if self._numbered:
            data, self._written = FRAMES.numbered(data, self._written)
        self.pieces.append(data)
        if len(self.pieces) > PIECES or self._awaited or self._buffer.wanted(self._id):
            self.hand_over()
        return data

    def look(self) -> None:
        pieces = self.pieces
        if len(pieces) > PIECES or (pieces and len(pieces[-1]) > LARGE_BYTES):
            self.hand_over()

    def end(self) -> None:
        self.hand_over()
        self._buffer.end(self._id)

    def hand_over(self) -> None:
        """Comments wait for the event that they stand before: who goes on from there gets them as well."""
        pieces, ready = self.pieces, len(self.pieces)
        while ready and pieces[ready - 1].startswith(b":") and not self._numbering.count(pieces[ready - 1]):
            ready -= 1
        data = b"".join(pieces[:ready])
        count = self._numbering.count(data)
        if count:
            self._buffer.append(self._id, self._kept + 1, self._kept + count, data)
            self._kept += count
            del pieces[:ready]
        self.plain = self._is_plain()
