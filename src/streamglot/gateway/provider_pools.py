"""Upstream pools for batches at a provider: one captures the body of a request, one replays an answer."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..batch.background import BackgroundPool
from ..dialects import dialect
from ..engine.conversation import ConversationState
from ..engine.exchange import Passthrough
from ..engine.pipeline import Pipeline, with_tools_as_text
from ..engine.pool import UpstreamPool
from ..engine.record import ExchangeRecord
from ..engine.upstream_request import CALL_PREFIX_CHARS, refused
from ..engine.upstream_stream import ErrorContext, EventSource, UpstreamStream
from ..errors import ConfigError, StreamglotError
from ..json_types import JsonObject
from ..messages import Request
from ..tools.own_calls import with_own_calls
from ..upstream.providers import abilities_of, maker_of
from ..upstream.routes import Candidate


class CapturingPool:
    """Builds the body for the upstream, stores it and ends the exchange without sending anything."""

    def __init__(self, pool: UpstreamPool, upstream: str) -> None:
        self.body: JsonObject | None = None
        self.clock, self.services, self.log = pool.clock, pool.services, pool.log
        self._pool = pool
        self._upstream = upstream

    async def ask(
        self,
        request: Request,
        record: ExchangeRecord,  # noqa: ARG002  # a parameter of every pool
        conversation: ConversationState | None,  # noqa: ARG002  # a parameter of every pool
        passthrough: Passthrough,  # noqa: ARG002  # a parameter of every pool
    ) -> EventSource:
        candidate = candidate_at(self._pool, request.model, self._upstream)
        upstream = candidate.upstream
        asked = msgspec.structs.replace(with_own_calls(request), model=candidate.model, stream=False)
        options = {"abilities": abilities_of(upstream), "provider": maker_of(upstream), **upstream.options}
        self.body = dialect(upstream.dialect).build_request(with_tools_as_text(upstream, asked), **options).body
        raise StreamglotError("the request goes to a batch of the provider", code="captured")


class ProvidedPool:
    """Returns the provider's answer to the first request.

    Later requests go to the upstreams, so that a tool loop can continue.
    """

    def __init__(self, calls: BackgroundPool, pool: UpstreamPool, upstream: str, status: int, body: bytes) -> None:
        self.clock, self.services, self.log = pool.clock, pool.services, pool.log
        self._calls = calls
        self._pool = pool
        self._upstream = upstream
        self._answer: ProvidedAnswer | None = ProvidedAnswer(status, body)

    async def ask(
        self, request: Request, record: ExchangeRecord, conversation: ConversationState | None, passthrough: Passthrough
    ) -> EventSource:
        answer, self._answer = self._answer, None
        if answer is None:
            return await self._calls.ask(request, record, conversation, passthrough)
        candidate = candidate_at(self._pool, request.model, self._upstream)
        upstream = candidate.upstream
        record.attempts += 1
        record.upstream, record.upstream_dialect = upstream.name, upstream.dialect
        asked = msgspec.structs.replace(with_own_calls(request), model=candidate.model, stream=False)
        if conversation is not None:
            asked = conversation.prepare(asked, upstream)
        errors = ErrorContext(candidate, record.request_id)
        prefix = f"call_{self._pool.new_id()[:CALL_PREFIX_CHARS]}"
        source = UpstreamStream(candidate, answer, Pipeline(upstream, candidate.model, asked, prefix), errors, [], _nothing)
        try:
            if not answer.succeeded:
                raise await refused(answer)
            await source.prime()
        except StreamglotError as error:
            raise errors.error(error) from None
        return source


class ProvidedAnswer:
    """Presents a body that was already received as an upstream's response."""

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


def candidate_at(pool: UpstreamPool, model: str, upstream: str) -> Candidate:
    """Returns the candidate for a model at this upstream."""
    found = next((one for one in pool.routes.find(model, lambda: 0.0) if one.upstream.name == upstream), None)
    if found is None:
        raise ConfigError(f"upstream {upstream!r} no longer serves the model {model!r}; restore it in the configuration")
    return found


def _nothing() -> None:
    """Does nothing: no slot was taken."""
