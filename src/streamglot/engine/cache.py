"""The response cache: it answers a request that is identical to an earlier one, as a stream.

The cache is between the pool and the stages. It holds the upstream's answer, so a cached answer passes the same stages as a live
one, and each model turn of a tool loop is cached separately.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from ..errors import StreamglotError
from ..events import Event, StreamEnd
from ..json_types import JsonValue
from ..messages import Request, Response
from ..stages import Collect, replay
from ..stages.stage import ExchangeContext
from ..upstream import Upstream
from .conversation import ConversationState
from .exchange import Passthrough
from .pool import UpstreamPool
from .record import ExchangeRecord
from .services import Services
from .upstream_stream import EventSource


class _Entry(Struct):
    response: Response
    upstream: str
    until: float
    size: int


class ResponseCache:
    """Holds at most ``max_bytes`` and evicts the least recently used answer first. Every worker process has its own cache."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def resize(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._shrink()

    def get(self, key: bytes, now: float) -> CachedAnswer | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.until <= now:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return CachedAnswer(entry.response, entry.upstream)

    def put(self, key: bytes, response: Response, upstream: str, until: float) -> None:
        if key in self._entries:
            self._drop(key)
        entry = _Entry(response, upstream, until, len(msgspec.json.encode(response)))
        self._entries[key] = entry
        self._size += entry.size
        self._shrink()

    def _shrink(self) -> None:
        while self._size > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        self._size -= self._entries.pop(key).size


def cache_key(request: Request, caller: str) -> bytes:
    """Returns a key that is the same for the same request of the same caller, streamed or not."""
    same = msgspec.structs.replace(request, stream=False, include_usage=True)
    return hashlib.sha256(caller.encode() + b"\0" + msgspec.json.encode(same, order="deterministic")).digest()


class CachingPool:
    """The pool with the cache in front of it, for one caller: looks in the cache first, then asks the upstreams."""

    def __init__(self, pool: UpstreamPool, cache: ResponseCache, caller: str) -> None:
        self._pool = pool
        self._cache = cache
        self._caller = caller
        self.clock = pool.clock

    def services(self, context: ExchangeContext) -> Services:
        return self._pool.services(context)

    def log(self, line: Mapping[str, JsonValue]) -> None:
        self._pool.log(line)

    async def ask(
        self, request: Request, record: ExchangeRecord, conversation: ConversationState | None, passthrough: Passthrough
    ) -> EventSource:
        seconds = self._pool.routes.cache_seconds(request.model)
        if not seconds:
            return await self._pool.ask(request, record, conversation, passthrough)
        key = cache_key(request, self._caller)
        cached = self._cache.get(key, self.clock())
        record.cached, record.cache = cached is not None, "miss" if cached is None else "hit"
        if cached is not None:
            return cached
        turn = await self._pool.ask(request, record, conversation, passthrough)
        return _CacheFill(turn, self._cache, key, self.clock() + seconds)


class CachedAnswer:
    """Presents an answer from the cache as a model turn."""

    def __init__(self, response: Response, name: str) -> None:
        self.upstream: Upstream | None = None
        self.name = name
        self.model = response.model
        self.dropped: list[str] = []
        self._events: list[Event] | None = replay(response)

    async def read(self) -> list[Event] | None:
        events, self._events = self._events, None
        return events

    def broken(self, error: StreamglotError) -> list[Event]:  # noqa: ARG002  # a cached answer is whole
        return self.stop()

    def stop(self) -> list[Event]:
        events, self._events = self._events, None
        return events or []

    async def drain(self) -> None:
        """Does nothing: the answer is complete."""

    def close(self) -> None:
        """Does nothing: there is no connection."""


class _CacheFill:
    """Passes a model turn through, and puts it into the cache if it ends properly."""

    def __init__(self, turn: EventSource, cache: ResponseCache, key: bytes, until: float) -> None:
        self.upstream, self.name, self.model, self.dropped = turn.upstream, turn.name, turn.model, turn.dropped
        self._turn = turn
        self._cache = cache
        self._key = key
        self._until = until
        self._collect = Collect()
        self.broken, self.stop, self.drain, self.close = turn.broken, turn.stop, turn.drain, turn.close

    async def read(self) -> list[Event] | None:
        events = await self._turn.read()
        if events:
            self._collect.feed_all(events)
            if type(events[-1]) is StreamEnd:
                response = self._collect.close()[0]
                response.extras = [extra for extra in response.extras if not extra.provider]  # of one conversation only
                if response.choices and all(choice.stop_reason for choice in response.choices):
                    self._cache.put(self._key, response, self.name, self._until)
        return events
