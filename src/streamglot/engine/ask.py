"""How an exchange asks for a model turn.

``AskForTurn`` is one function: ``UpstreamPool.ask`` calls upstreams. The functions here return another one that answers itself,
or calls the one that it was given:

    ask = cached(pool.ask, cache, ...)          # an identical request is answered from the cache
    ask = resumed(ask, response)                # the first turn is known already
    ask = partial(pool.ask, traffic=traffic)    # background calls, behind live requests
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec
from msgspec import Struct, field

from ..dialects import dialect
from ..errors import ConfigError, StreamglotError
from ..events import Event, StreamEnd
from ..json_types import JsonObject
from ..messages import Request, Response
from ..stages import Collect, replay
from ..tools.history import with_own_calls
from ..upstream import Upstream
from ..upstream.providers import abilities_of, maker_of
from ..upstream.routing.routes import Candidate, Routes
from .answer import ErrorContext, EventSource, Pipeline, UpstreamAnswer, UpstreamStream, refused, with_tools_as_text
from .conversation import ConversationState
from .stats import ExchangeRecord

APPROVALS: Final = "approvals"
"""The upstream's name in the record of a turn that a person's decision resumed, because no upstream was called."""
CALL_PREFIX_CHARS: Final = 24
"""Characters of a random id that begin call ids. 96 bits do not repeat, and some providers accept at most 40 characters."""


class Passthrough(Struct):
    """What a client sends for the upstream: its key, headers that an upstream of the client's dialect understands, and its
    W3C trace context, which every upstream gets unless tracing gives it another."""

    key: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    trace: Mapping[str, str] = field(default_factory=dict)


class AskForTurn(Protocol):
    """Requests one model turn. Raises a ``StreamglotError`` if there is no answer."""

    async def __call__(
        self, request: Request, record: ExchangeRecord, conversation: ConversationState | None, passthrough: Passthrough, /
    ) -> EventSource: ...


class Routed(Protocol):
    """What the functions here need of the upstream pool. A reload of the configuration changes its routes."""

    routes: Routes

    def clock(self) -> float: ...
    def new_id(self) -> str: ...


def call_prefix(random_id: str) -> str:
    """The beginning of the call ids of one model turn."""
    return f"call_{random_id[:CALL_PREFIX_CHARS]}"


# --- answers from the cache


def cached(ask: AskForTurn, cache: ResponseCache, caller: str, pool: Routed) -> AskForTurn:
    """Looks for the answer to an identical request of this caller first.

    The cache holds answers of upstreams: an answer from the cache passes the same stages as a live one, and each model turn of a
    tool loop is cached separately. The routes say which models are cached, and for how long.
    """

    async def ask_cached(
        request: Request, record: ExchangeRecord, conversation: ConversationState | None, passthrough: Passthrough, /
    ) -> EventSource:
        seconds = pool.routes.cache_seconds(request.model)
        if not seconds:
            return await ask(request, record, conversation, passthrough)
        key = cache_key(request, caller)
        known = cache.get(key, pool.clock())
        record.cached, record.cache = known is not None, "miss" if known is None else "hit"
        if known is not None:
            return known
        turn = await ask(request, record, conversation, passthrough)
        return _CacheFill(turn, cache, key, pool.clock() + seconds)

    return ask_cached


class _CachedResponse(Struct):
    response: Response
    upstream: str
    until: float
    size: int


class ResponseCache:
    """Holds at most ``max_bytes`` and evicts the least recently used answer first. Every worker process has its own cache."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._entries: OrderedDict[bytes, _CachedResponse] = OrderedDict()

    def resize(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._shrink()

    def get(self, key: bytes, now: float) -> KnownAnswer | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.until <= now:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return KnownAnswer(entry.response, entry.upstream)

    def put(self, key: bytes, response: Response, upstream: str, until: float) -> None:
        if key in self._entries:
            self._drop(key)
        entry = _CachedResponse(response, upstream, until, len(msgspec.json.encode(response)))
        self._entries[key] = entry
        self._size += entry.size
        self._shrink()

    def _shrink(self) -> None:
        while self._size > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        self._size -= self._entries.pop(key).size


def cache_key(request: Request, caller: str) -> bytes:
    """A key that is the same for the same request of the same caller, streamed or not."""
    same = msgspec.structs.replace(request, stream=False, include_usage=True)
    return hashlib.sha256(caller.encode() + b"\0" + msgspec.json.encode(same, order="deterministic")).digest()


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


class KnownAnswer:
    """An answer that is known already, as a model turn."""

    def __init__(self, response: Response, name: str) -> None:
        self.upstream: Upstream | None = None
        self.name = name
        self.model = response.model
        self.dropped: list[str] = []
        self._events: list[Event] | None = replay(response)

    async def read(self) -> list[Event] | None:
        events, self._events = self._events, None
        return events

    def broken(self, error: StreamglotError) -> list[Event]:  # noqa: ARG002  # the answer is whole
        return self.stop()

    def stop(self) -> list[Event]:
        events, self._events = self._events, None
        return events or []

    async def drain(self) -> None:
        """Does nothing: the answer is complete."""

    def close(self) -> None:
        """Does nothing: there is no connection."""


# --- a first turn that is known already


def resumed(ask: AskForTurn, response: Response) -> AskForTurn:
    """Gives ``response`` as the first model turn: a suspended call about which the user has decided. Later turns of the tool
    loop are asked for as usual."""
    first: Response | None = response

    async def ask_resumed(
        request: Request, record: ExchangeRecord, conversation: ConversationState | None, passthrough: Passthrough, /
    ) -> EventSource:
        nonlocal first
        if first is None:
            return await ask(request, record, conversation, passthrough)
        known, first = first, None
        known.model = request.model
        return KnownAnswer(known, APPROVALS)

    return ask_resumed


# --- batches at a provider


class Captured(StreamglotError):
    """The body that an upstream would get. It ends an exchange that sends nothing."""

    code = "captured"

    def __init__(self, body: JsonObject) -> None:
        super().__init__("the request goes to a batch of the provider")
        self.body = body


def captured(pool: Routed, upstream: str) -> AskForTurn:
    """Builds the body for an upstream and raises it as ``Captured``. Nothing is sent."""

    async def ask_captured(
        request: Request,
        record: ExchangeRecord,  # noqa: ARG001  # a parameter of every ``AskForTurn``
        conversation: ConversationState | None,  # noqa: ARG001  # a parameter of every ``AskForTurn``
        passthrough: Passthrough,  # noqa: ARG001  # a parameter of every ``AskForTurn``
        /,
    ) -> EventSource:
        candidate = _candidate_at(pool.routes, request.model, upstream)
        outgoing = _as_sent(request, candidate)
        made = candidate.upstream
        options = {"abilities": abilities_of(made), "provider": maker_of(made), **made.options}
        raise Captured(dialect(made.dialect).build_request(with_tools_as_text(made, outgoing), **options).body)

    return ask_captured


def received(ask: AskForTurn, pool: Routed, upstream: str, status: int, body: bytes) -> AskForTurn:
    """Gives the answer of a provider's batch as the first model turn. Later turns of the tool loop are asked for as usual."""
    answer: ReceivedResponse | None = ReceivedResponse(status, body)

    async def ask_received(
        request: Request, record: ExchangeRecord, conversation: ConversationState | None, passthrough: Passthrough, /
    ) -> EventSource:
        nonlocal answer
        if answer is None:
            return await ask(request, record, conversation, passthrough)
        response, answer = answer, None
        candidate = _candidate_at(pool.routes, request.model, upstream)
        made = candidate.upstream
        record.attempts += 1
        record.upstream, record.upstream_dialect = made.name, made.dialect
        outgoing = _as_sent(request, candidate)
        if conversation is not None:
            outgoing = conversation.prepare(outgoing, made)
        errors = ErrorContext(candidate, record.request_id)
        pipeline = Pipeline(made, candidate.model, outgoing, call_prefix(pool.new_id()))
        source = UpstreamStream(UpstreamAnswer(candidate, response.headers, pipeline, errors), response, _no_slot)
        try:
            if not response.succeeded:
                raise await refused(response)
            await source.prime()
        except StreamglotError as error:
            raise errors.error(error) from None
        return source

    return ask_received


class ReceivedResponse:
    """A body that was received already, as an upstream's response."""

    headers: Mapping[str, str] = {"content-type": "application/json"}

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self._body = body

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status < 300

    async def read(self) -> bytes:
        body, self._body = self._body, b""
        return body

    async def drain(self) -> None:
        """Does nothing: the body is already here."""

    def close(self) -> None:
        """Does nothing: there is no connection."""


def _as_sent(request: Request, candidate: Candidate) -> Request:
    """The request as one item of a provider's batch."""
    return msgspec.structs.replace(with_own_calls(request), model=candidate.model, stream=False)


def _candidate_at(routes: Routes, model: str, upstream: str) -> Candidate:
    """The candidate for a model at this upstream."""
    candidate = next((one for one in routes.find(model, lambda: 0.0) if one.upstream.name == upstream), None)
    if candidate is None:
        raise ConfigError(f"upstream {upstream!r} no longer serves the model {model!r}; restore it in the configuration")
    return candidate


def _no_slot() -> None:
    """Does nothing: no slot was taken."""
