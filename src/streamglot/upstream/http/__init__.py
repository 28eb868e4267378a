"""The response of an upstream: a status, headers, and a body that is read in pieces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ...errors import UpstreamProtocolError


class UpstreamResponse(Protocol):
    status: int
    headers: Mapping[str, str]

    async def read(self) -> bytes:
        """The next bytes of the body; empty at the end."""

    async def drain(self) -> None:
        """Waits briefly for the end of a completed answer, so that the connection can be reused."""

    def close(self) -> None:
        """Closes the response at once; unread bytes are discarded."""


async def read_whole(answer: UpstreamResponse, name: str, max_bytes: int, advice: str) -> bytes:
    """The whole body. Raises UpstreamProtocolError with the advice if it is larger than ``max_bytes``."""
    pieces, size = [], 0
    while piece := await answer.read():
        pieces.append(piece)
        size += len(piece)
        if size > max_bytes:
            raise UpstreamProtocolError(f"{name} is larger than {max_bytes} bytes; {advice}")
    return b"".join(pieces)
