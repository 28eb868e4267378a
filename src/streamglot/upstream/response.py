"""The response of an upstream: a status, headers, and a body that is read in pieces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class UpstreamResponse(Protocol):
    status: int
    headers: Mapping[str, str]

    async def read(self) -> bytes:
        """The next bytes of the body; empty at the end."""

    async def drain(self) -> None:
        """Waits briefly for the end of a completed answer, so that the connection can be reused."""

    def close(self) -> None:
        """Closes the response at once; unread bytes are discarded."""
