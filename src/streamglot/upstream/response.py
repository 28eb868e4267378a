"""What an upstream answers: a status, headers, and bytes to read one piece at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class UpstreamResponse(Protocol):
    status: int
    headers: Mapping[str, str]

    async def read(self) -> bytes:
        """The next bytes as they came; empty at the end."""

    async def drain(self) -> None:
        """All that matters was read: waits a moment for the end, so that the connection can be used again."""

    def close(self) -> None:
        """Lets go at once: what was not read is not wanted."""
