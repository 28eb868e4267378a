"""Answers that are kept for requests that are exactly the same, and given again as a stream."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import msgspec
from msgspec import Struct

from ..errors import StreamglotError
from ..events import Event
from ..messages import Request, Response
from ..stages import replay
from ..upstream import Upstream


class _Kept(Struct):
    response: Response
    upstream: str
    until: float
    size: int


class Cache:
    """Within ``most`` bytes: what was not asked for longest goes first. A worker has its own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()

    def resize(self, most: int) -> None:
        self._most = most
        self._shrink()

    def get(self, key: bytes, now: float) -> CachedAnswer | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        if kept.until <= now:
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return CachedAnswer(kept.response, kept.upstream)

    def put(self, key: bytes, response: Response, upstream: str, until: float) -> None:
        if key in self._kept:
            self._drop(key)
        kept = _Kept(response, upstream, until, len(msgspec.json.encode(response)))
        self._kept[key] = kept
        self._size += kept.size
        self._shrink()

    def _shrink(self) -> None:
        while self._size > self._most:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        self._size -= self._kept.pop(key).size


def key_of(request: Request, caller: str) -> bytes:
    """The same for the same request of the same caller, streamed or not."""
    same = msgspec.structs.replace(request, stream=False, include_usage=True)
    return hashlib.sha256(caller.encode() + b"\0" + msgspec.json.encode(same, order="deterministic")).digest()


class CachedAnswer:
    """An answer from the cache, for the same path as any other."""

    def __init__(self, response: Response, name: str) -> None:
        self.upstream: Upstream | None = None
        self.name = name
        self.model = response.model
        self.first: list[Event] = replay(response)
        self.dropped: list[str] = []

    async def read(self) -> list[Event] | None:
        return None

    def interrupt(self, error: StreamglotError) -> None:
        """There is nothing to wait for."""

    def stop(self) -> list[Event]:
        """It has been said already."""
        return []

    async def drain(self) -> None:
        """There is nothing left."""

    def close(self) -> None:
        """There is nothing to let go."""
