"""Serves one answer over a real socket, for clients that must read bytes from a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.upstream import HostileUpstream, Script, Seen, streamed


class _OneAnswer(HostileUpstream):
    def __init__(self, script: Script, asked: list[bytes]) -> None:
        super().__init__()
        self._script = script
        self._asked = asked

    def script_for(self, seen: Seen) -> Script:
        self._asked.append(seen.raw)
        return self._script


@contextmanager
def serve_response(body: bytes, media_type: str, status: int = 200, asked: list[bytes] | None = None) -> Iterator[str]:
    """The URL of a server that answers every request with this body, in pieces of 40 bytes. ``asked`` collects the posted bodies."""
    pieces = [body[place : place + 40] for place in range(0, len(body), 40)]
    server = _OneAnswer(streamed(*pieces, media_type=media_type, status=status), [] if asked is None else asked)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()
