"""One stream on its way into the buffer. What is done for each write is most of what keeping costs, so it is next to nothing:
the bytes of a moment are counted and handed over together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from .numbering import FRAMES, NUMBERINGS

if TYPE_CHECKING:
    from ..store import StreamBuffer

GATHER_BYTES: Final = 2**16
"""So much is handed over at once, however short the moment."""


class KeptStream:
    """``numbered``: clients of this dialect take the numbers in the frames. The buffer knows of the stream already."""

    def __init__(self, buffer: StreamBuffer, id: str, media_type: str, numbered: bool) -> None:
        self._buffer = buffer
        self._id = id
        self._numbering = NUMBERINGS[media_type]
        self._numbered = numbered
        self._written = self._kept = self._size = 0
        self._pieces: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def wrote(self, data: bytes) -> bytes:
        """The bytes as they go to the client, with their numbers where these have a place."""
        if self._numbered:
            data, self._written = FRAMES.numbered(data, self._written)
        self._pieces.append(data)
        self._size += len(data)
        if self._timer is None:
            self._wait()
        elif self._size > GATHER_BYTES:
            self._hand_over()
        return data

    def _wait(self) -> None:
        """Up to the next of the moments that all streams share, so that they are written together."""
        loop, seconds = asyncio.get_running_loop(), self._buffer.gather_seconds(self._id)
        self._timer = loop.call_at((loop.time() // seconds + 1) * seconds, self._hand_over)

    def end(self) -> None:
        self._hand_over()
        self._buffer.end(self._id)

    def _hand_over(self) -> None:
        """Comments alone wait for the event that they stand before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        data = b"".join(self._pieces)
        count = self._numbering.count(data)
        if count:
            self._buffer.append(self._id, self._kept + 1, self._kept + count, data)
            self._kept += count
            self._pieces.clear()
            self._size = 0
