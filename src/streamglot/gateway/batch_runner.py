"""Runs one item of a batch, behind live traffic.

It uses the same exchange as a live request, with policies, tools, budgets and recording.
"""

from __future__ import annotations

import random
import time
from functools import lru_cache
from typing import Final

import msgspec

from ..batch.background import BackgroundPool, BackgroundTraffic
from ..batch.lines import request_name
from ..batch.model import Answer, Batch, Item
from ..callers import ANONYMOUS
from ..dialects import dialect
from ..engine.exchange import Exchange, Upstreams
from ..engine.record import ExchangeRecord
from ..engine.recorder import TurnRecorder
from ..engine.tokens import estimate
from ..engine.upstream_request import retry_after_of
from ..errors import RequestError, StreamglotError
from ..events import StreamError
from ..json_types import JsonObject
from ..messages import Request, Response, TokenCounts
from ..store.sessions import named
from ..store.turn import Session, Started
from ..upstream import Upstream
from ..upstream.prices import price
from ..upstream.providers import PROVIDER_PRICE_SHARE
from ..upstream.secrets import hide
from .api.forward import forward_json
from .api.metered import Metered
from .auth.access import Access
from .auth.authenticator import Caller
from .auth.budget_stage import budget_stage
from .auth.budgets import Reservation, price_of
from .endpoints import ENDPOINTS, Endpoint, dialect_of
from .handler import context_of
from .http.call import json_object
from .observe.recording import Recording
from .provider_pools import CapturingPool, ProvidedPool
from .request_options import lift_options, output_options, wants_extensions
from .retention import RetentionOptions
from .services import GatewayServices
from .tool_options import hosted_tools, take_tool_options, tools_for

SESSIONS: Final = 64
"""Batches whose session id is remembered: more than run at once."""
FORWARDED: Final = {"/v1/embeddings": "embeddings"}
"""Endpoints whose requests are forwarded unchanged, with the path at the upstream."""
PATHS: Final = ("/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/messages", *FORWARDED)
"""The endpoints that a batch may name."""
_STREAMING: Final = ("stream", "stream_options", "background", "keep", "session_id")
"""Fields that say how an answer is delivered. They are removed: the answer of an item is always one whole body."""
_TOO_MANY: Final = 429
_session_id: Final = lru_cache(SESSIONS)(named)


class BatchRunner:
    """Runs items for the worker of this gateway."""

    def __init__(self, services: GatewayServices, access: Access, recording: Recording, traffic: BackgroundTraffic) -> None:
        self._services = services
        self._access = access
        self._recording = recording
        self._pool = BackgroundPool(services.pool, traffic)

    async def run(self, batch: Batch, item: Item, request_id: str) -> Answer:
        endpoint = ENDPOINTS.get(batch.endpoint)
        error_dialect = endpoint.dialect if endpoint is not None else dialect_of(batch.endpoint, {})
        record = ExchangeRecord(request_id, error_dialect, self._services.clock())
        try:
            caller, body = self._caller_and_body(batch, item, record)
            if caller is not None:
                caller.enter_batched()
            try:
                if endpoint is None:
                    return await self._forward(batch, caller, body, request_id)
                return await self._exchange(batch, endpoint, caller, body, record, self._pool)
            finally:
                if caller is not None:
                    caller.leave_batched()
        except StreamglotError as error:
            return self._failed(error_dialect, record, error.as_event(), retry_after_of(error), error.has_context)

    def _caller(self, owner: str) -> Caller | None:
        """Returns the caller who owns the batch; None if the batch was made without a key."""
        if not owner or owner.startswith(ANONYMOUS):
            return None
        caller = self._access.authenticator.named(owner)
        if caller is None:
            raise RequestError(
                "the key of this batch is no longer valid; create the batch again with a valid key",
                code="invalid_api_key",
                status=401,
            )
        return caller

    # --- items of a provider's own batch

    def upstream(self, name: str) -> Upstream | None:
        return self._services.pool.routes.upstreams.get(name)

    async def prepare(self, batch: Batch, item: Item, upstream: str) -> JsonObject | Answer:
        """Returns the body for a provider, after the request hooks of the stages: the provider never sees what they remove."""
        endpoint = ENDPOINTS[batch.endpoint]
        record = ExchangeRecord(request_name(batch, item.number), endpoint.dialect, self._services.clock())
        pool = CapturingPool(self._services.pool, upstream)
        try:
            caller, body = self._caller_and_body(batch, item, record)
            options, asked = take_tool_options(*_own_options(endpoint, body))
            asked.pop("extensions", None)
            request = self._parsed(endpoint, asked, record)
            model = record.model = self._services.pool.routes.named(request.model)
            if caller is not None:
                caller.check(model, self._services.clock())
            context = context_of(record, {}, self._tools(request, options.patterns, caller, model))
            exchange = Exchange(request, pool, record=record, stages=self._services.pool.stages, context=context)
            try:
                await exchange.start()
            finally:
                exchange.close()
        except StreamglotError as error:
            if pool.body is not None:
                return pool.body
            return self._failed(endpoint.dialect, record, error.as_event(), None, error.has_context)
        raise AssertionError("a CapturingPool always ends the exchange with an error")

    async def complete(self, batch: Batch, item: Item, upstream: str, status: int, body: bytes) -> Answer:
        """Passes the provider's answer through an exchange, as for a call.

        No budget refuses it, because it is already paid for.
        """
        endpoint = ENDPOINTS[batch.endpoint]
        record = ExchangeRecord(request_name(batch, item.number), endpoint.dialect, self._services.clock())
        pool = ProvidedPool(self._pool, self._services.pool, upstream, status, body)
        try:
            caller, asked = self._caller_and_body(batch, item, record)
            answer = await self._exchange(batch, endpoint, caller, asked, record, pool, paid=True)
        except StreamglotError as error:
            answer = self._failed(endpoint.dialect, record, error.as_event(), None, error.has_context)
        answer.cost *= PROVIDER_PRICE_SHARE
        return answer

    def _caller_and_body(self, batch: Batch, item: Item, record: ExchangeRecord) -> tuple[Caller | None, JsonObject]:
        caller = self._caller(batch.owner)
        record.key = caller.name if caller is not None else ""
        return caller, {name: value for name, value in json_object(item.body).items() if name not in _STREAMING}

    def _parsed(self, endpoint: Endpoint, body: JsonObject, record: ExchangeRecord) -> Request:
        request = endpoint.parse(body, "")
        request.stream = False
        if self._recording.sealer is not None:
            record.unopened = self._recording.sealer.open_request(request, endpoint.dialect)
        return request

    def _tools(self, request: Request, patterns: list[str] | None, caller: Caller | None, model: str) -> list[str]:
        pool = self._services.pool
        of_key = caller.tools if caller is not None else None
        tools = tools_for(patterns, of_key, pool.routes.tools(model))
        return tools + hosted_tools(request, pool.tools.registry.config.hosted, of_key)

    # --- the exchange

    async def _exchange(
        self,
        batch: Batch,
        endpoint: Endpoint,
        caller: Caller | None,
        body: JsonObject,
        record: ExchangeRecord,
        upstreams: Upstreams,
        paid: bool = False,
    ) -> Answer:
        services, pool = self._services, self._services.pool
        body, headers = _own_options(endpoint, body)
        extensions = wants_extensions(body, services.server)
        body.pop("extensions", None)
        options, asked = take_tool_options(body, headers)
        written = output_options(services.server, endpoint.dialect, headers)
        request = self._parsed(endpoint, asked, record)
        model = record.model = pool.routes.named(request.model)
        if caller is not None and not paid:
            caller.check(model, services.clock())
        reservation: Reservation | None = None
        if caller is not None and caller.metered:
            candidates = pool.routes.find(model, random.random)
            try:
                reservation = caller.reserve(estimate(request), request.max_tokens, price_of(candidates[0]), services.clock())
            except RequestError:
                if not paid:
                    raise
        exchange: Exchange | None = None
        try:
            tools = self._tools(request, options.patterns, caller, model)
            response_id = f"{endpoint.id_prefix}{services.new_id()}"
            recorder = await self._recorder(batch, endpoint, request, body, record, response_id)
            stages = list(pool.stages)
            if reservation is not None and caller is not None and reservation.counts and not paid:
                reservation.expect(estimate(request))
                stages.insert(0, budget_stage(reservation, caller, whole=True))
            exchange = Exchange(
                request,
                upstreams,
                record=record,
                stages=stages,
                observers=self._recording.observers_for(recorder, reservation, None),
                context=context_of(record, {}, tools),
                conversation=recorder,
            )
            pool.watch(exchange)
            await exchange.start()
            collected = await exchange.collect(extensions=extensions)
            if collected.error is not None:
                return self._failed(endpoint.dialect, record, collected.error, None, True)
            written |= endpoint.response(exchange.request, body)
            answer = self._answered(exchange, endpoint, written, collected, response_id)
            exchange.finish()
            await exchange.drain()
            return answer
        finally:
            if exchange is not None:
                pool.unwatch(exchange)
                exchange.close()
            elif reservation is not None:
                reservation.settle(None, services.clock())

    async def _recorder(
        self, batch: Batch, endpoint: Endpoint, request: Request, body: JsonObject, record: ExchangeRecord, response_id: str
    ) -> TurnRecorder | None:
        """Begins to record the turn.

        The turns of a batch form one session named after the batch, except items that continue another turn.
        """
        store, recorders = self._recording.store, self._recording.recorders
        if store is None or recorders is None:
            return None
        if request.previous_response_id or body.get("conversation"):
            options = RetentionOptions(conversation=bool(body.get("conversation")))
            return await recorders.begin(endpoint, None, request, body, record, options, response_id, batch.owner)
        session = Session(id=_session_id(batch.owner, batch.id), caller=batch.owner, name=batch.id, started=batch.created)
        started = Started(
            caller=batch.owner,
            request_id=record.request_id,
            dialect=endpoint.dialect,
            model=record.model,
            request=request,
            response_id=response_id if endpoint.retrievable else "",
            retrievable=request.store is not False,
        )
        return TurnRecorder(
            store.start(session, started, remember=False),
            content=store.settings.content,
            raw=store.settings.raw,
        )

    def _answered(
        self, exchange: Exchange, endpoint: Endpoint, options: JsonObject, collected: Response, response_id: str
    ) -> Answer:
        collected = msgspec.structs.replace(
            collected,
            id=response_id if endpoint.retrievable else collected.id or response_id,
            model=collected.model or exchange.request.model,
            created=collected.created or int(time.time()),
        )
        if self._recording.sealer is not None:
            collected = self._recording.sealer.response(collected, endpoint.dialect)
        data = msgspec.json.encode(dialect(endpoint.dialect).build_response(collected, **options))
        record, usage = exchange.record, collected.usage
        model = exchange.turn.model if exchange.turn is not None else record.model
        return Answer(
            200,
            data,
            record.request_id,
            usage.input_tokens or 0,
            usage.output_tokens or 0,
            usage.cached_tokens or 0,
            usage.reasoning_tokens or 0,
            0.0 if record.cached else price(usage, model, record.upstream) or 0.0,
            attempts=record.attempts,
        )

    async def _forward(self, batch: Batch, caller: Caller | None, body: JsonObject, request_id: str) -> Answer:
        services = self._services
        kind = FORWARDED[batch.endpoint]
        if caller is not None:
            caller.check(services.pool.routes.named(str(body.get("model", ""))), services.clock())
        async with Metered(services, self._access, self._recording, caller, {}, body, request_id, kind) as metered:
            metered.answer = await forward_json(services, body, kind, request_id, metered.asked)
        try:
            answer = msgspec.json.decode(metered.answer)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise StreamglotError("the upstream's answer is not JSON", code="not_json", status=502, retryable=True) from None
        usage = answer.get("usage") if isinstance(answer, dict) else None
        tokens = usage.get("prompt_tokens", 0) if isinstance(usage, dict) else 0
        counts = TokenCounts(tokens if isinstance(tokens, int) and tokens >= 0 else 0, 0)
        record = metered.record
        cost = price(counts, str(body.get("model", "")), record.upstream) or 0.0
        data = msgspec.json.encode(answer)  # re-encoded, because each result must be on one line
        return Answer(200, data, request_id, counts.input_tokens or 0, cost=cost, attempts=max(1, record.attempts))

    def _failed(
        self, name: str, record: ExchangeRecord, error: StreamError, retry_after: float | None, has_context: bool
    ) -> Answer:
        if not has_context:
            error = msgspec.structs.replace(error, message=hide(error.message, self._services.pool.secrets()))
        usage = record.usage
        return Answer(
            error.status,
            msgspec.json.encode(dialect(name).error_body(error)),
            record.request_id,
            (usage.input_tokens or 0) if usage is not None else 0,
            (usage.output_tokens or 0) if usage is not None else 0,
            retry=error.retryable,
            retry_after=retry_after,
            throttled=error.retryable and error.status == _TOO_MANY,
            attempts=record.attempts,
        )


def _own_options(endpoint: Endpoint, body: JsonObject) -> tuple[JsonObject, dict[str, str]]:
    """Returns the body without fields that say how an answer is delivered, and its options as headers."""
    body, headers = lift_options(endpoint, body, {})
    return {name: value for name, value in body.items() if name not in _STREAMING}, headers
