"""Opens the durable batches of a gateway (the service over its store and, if configured, a worker), and runs one item of a batch
behind live traffic.

An item uses the same exchange as a live request, with policies, tools, budgets and recording.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Final

import msgspec

from ..batch.durable.background import BackgroundTraffic
from ..batch.durable.importer import Route
from ..batch.durable.model import PROVIDER, Answer, Batch, Item, LineError, request_name
from ..batch.durable.service import BatchService, ItemRunner
from ..batch.durable.storage import FileStorage
from ..config import BatchesConfig
from ..counters.valkey import SharedLimits
from ..dialects import dialect
from ..engine.ask import AskForTurn, Captured, captured, received
from ..engine.attempts import retry_after_of
from ..engine.exchange import Exchange
from ..engine.stats import ExchangeRecord
from ..engine.turn_recorder import TurnRecorder
from ..errors import RequestError, StreamglotError
from ..events import StreamError
from ..json_types import JsonObject
from ..messages import Response, TokenCounts
from ..store import Database, Store
from ..store.sessions import named
from ..store.turns import Session, Started
from ..tasks import WriteLine
from ..text import ANONYMOUS
from ..upstream import Upstream
from ..upstream.prices import price
from ..upstream.providers import BATCH_APIS, PROVIDER_PRICE_SHARE
from ..upstream.secrets import hide
from .admission import Admission, Admitted
from .auth.access import Access
from .auth.authenticator import Caller
from .endpoints import COUNTED_BY, ENDPOINTS, dialect_of
from .forward import Metered, forward_json
from .http.call import json_object
from .observe.recording import Recording
from .services import GatewayServices

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

    def __init__(
        self, services: GatewayServices, access: Access, admission: Admission, recording: Recording, traffic: BackgroundTraffic
    ) -> None:
        self._services = services
        self._access = access
        self._admission = admission
        self._recording = recording
        self._ask: AskForTurn = partial(services.pool.ask, traffic=traffic)

    async def run(self, batch: Batch, item: Item, request_id: str) -> Answer:
        endpoint = ENDPOINTS.get(batch.endpoint)
        error_dialect = endpoint.dialect if endpoint is not None else dialect_of(batch.endpoint, {})
        record = ExchangeRecord(request_id, error_dialect, self._services.clock())
        try:
            caller = self._caller(batch.owner)
            async with self._admission.batch_slot(caller):
                if endpoint is None:
                    return await self._forward(batch, caller, json_object(item.body), request_id)
                admitted = Admitted(endpoint, record, caller=caller)
                return await self._exchange(batch, item, admitted, self._ask)
        except StreamglotError as error:
            return self._failed(error_dialect, record, error.as_event(), retry_after_of(error), error.has_context)

    def _caller(self, owner: str) -> Caller | None:
        """The caller who owns the batch; None if the batch was made without a key."""
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
        """The body for a provider, after the request hooks of the stages: the provider never sees what they remove."""
        endpoint = ENDPOINTS[batch.endpoint]
        record = ExchangeRecord(request_name(batch, item.number), endpoint.dialect, self._services.clock())
        try:
            admitted = Admitted(endpoint, record, caller=self._caller(batch.owner), charge="later")
            await self._admission.admit(admitted, json_object(item.body), batched=_STREAMING)
            ask = captured(self._services.pool, upstream)
            exchange = self._admission.exchange(admitted, admitted.request, ask=ask, observed=False)
            try:
                await exchange.start()
            finally:
                exchange.close()
        except Captured as for_provider:
            return for_provider.body
        except StreamglotError as error:
            return self._failed(endpoint.dialect, record, error.as_event(), None, error.has_context)
        raise AssertionError("captured() ends the exchange with an error")

    async def complete(self, batch: Batch, item: Item, upstream: str, status: int, body: bytes) -> Answer:
        """Passes the provider's answer through an exchange, as for a call.

        No budget refuses it, because it is already paid for.
        """
        endpoint = ENDPOINTS[batch.endpoint]
        record = ExchangeRecord(request_name(batch, item.number), endpoint.dialect, self._services.clock())
        ask = received(self._ask, self._services.pool, upstream, status, body)
        try:
            admitted = Admitted(endpoint, record, caller=self._caller(batch.owner), charge="paid")
            answer = await self._exchange(batch, item, admitted, ask)
        except StreamglotError as error:
            answer = self._failed(endpoint.dialect, record, error.as_event(), None, error.has_context)
        answer.cost *= PROVIDER_PRICE_SHARE
        return answer

    # --- the exchange

    async def _exchange(self, batch: Batch, item: Item, admitted: Admitted, ask: AskForTurn) -> Answer:
        pool, endpoint = self._services.pool, admitted.endpoint
        exchange: Exchange | None = None
        try:
            await self._admission.admit(admitted, json_object(item.body), batched=_STREAMING)
            await self._record(batch, admitted)
            exchange = self._admission.exchange(admitted, admitted.request, ask=ask)
            pool.watch(exchange)
            await exchange.start()
            collected = await exchange.collect(extensions=admitted.extensions)
            if collected.error is not None:
                return self._failed(endpoint.dialect, admitted.record, collected.error, None, True)
            answer = self._answered(exchange, admitted, collected)
            exchange.finish()
            await exchange.drain()
            return answer
        finally:
            if exchange is not None:
                pool.unwatch(exchange)
                exchange.close()
            elif admitted.reservation is not None:
                admitted.reservation.settle(None, self._services.clock())

    async def _record(self, batch: Batch, admitted: Admitted) -> None:
        """Begins to record the turn.

        The turns of a batch form one session named after the batch, except items that continue another turn.
        """
        store, endpoint, request = self._recording.store, admitted.endpoint, admitted.request
        if store is None:
            return
        if request.previous_response_id or admitted.options.conversation:
            await self._admission.record(admitted, batch.owner)
            return
        session = Session(id=_session_id(batch.owner, batch.id), caller=batch.owner, name=batch.id, started=batch.created)
        started = Started(
            caller=batch.owner,
            request_id=admitted.record.request_id,
            dialect=endpoint.dialect,
            model=admitted.record.model,
            request=request,
            response_id=admitted.response_id if endpoint.retrievable else "",
            retrievable=request.store is not False,
        )
        admitted.recorder = TurnRecorder(
            store.start(session, started, remember=False),
            content=store.settings.content,
            raw=store.settings.raw,
        )

    def _answered(self, exchange: Exchange, admitted: Admitted, collected: Response) -> Answer:
        own_id = admitted.endpoint.retrievable
        data = msgspec.json.encode(self._admission.whole_answer(admitted, exchange.request, collected, own_id=own_id))
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
        body = {name: value for name, value in body.items() if name not in _STREAMING}
        await self._admission.check(caller, str(body.get("model", "")))
        async with Metered(services, self._admission, self._recording, caller, {}, body, request_id, kind) as metered:
            metered.answer = await forward_json(services, body, kind, request_id, metered.calls)
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


async def open_batches(
    services: GatewayServices,
    access: Access,
    store: Store,
    environment: Mapping[str, str],
    runner: Callable[[BackgroundTraffic], ItemRunner],
    answers_live: Callable[[], bool],
) -> BatchService:
    """Starts the batch service of this gateway.

    On PostgreSQL the service has its own connections, so that results do not wait behind turns. SQLite has only one writer, so
    separate connections would not help.
    """
    pool = services.pool
    config = pool.loaded.config.batches

    def route(batch: Batch) -> Route:
        owner = batch.owner

        def upstream_of(model: str) -> str:
            named = pool.routes.named(model)
            caller = access.authenticator.named(owner) if owner and not owner.startswith(ANONYMOUS) else None
            if caller is not None and not caller.may_use(named):
                raise RequestError(f"the key {owner!r} may not use the model {named!r}", code="model_not_allowed", status=403)
            upstream = pool.routes.find(named, lambda: 0.0)[0].upstream
            sent = upstream.batches == "provider" and upstream.dialect in BATCH_APIS and batch.endpoint in ENDPOINTS
            return f"{PROVIDER}{upstream.name}" if sent else upstream.name

        return upstream_of

    service = BatchService(
        store,
        config,
        services.tasks,
        route=route,
        describe=described,
        line_bytes=services.server.max_body_bytes,
        storage=bucket_of(config, environment, services.log),
        database=None if store.database.is_sqlite else await Database.open(store.settings.url),
        limits=_limits(services, store),
    )
    service.start(runner(service.traffic) if config.worker else None, answers_live, services.log)
    return service


def bucket_of(config: BatchesConfig, environment: Mapping[str, str], log: WriteLine) -> FileStorage | None:
    """The S3-compatible store of uploaded files; None if they are in a directory."""
    if not config.directory.startswith("s3://"):
        return None
    from ..batch.durable.storage import S3Storage

    return S3Storage(config.directory, config.s3, environment, log)


def _limits(services: GatewayServices, store: Store) -> SharedLimits | None:
    """The rate limits that all workers count in Valkey; None if there is none, or no worker."""
    config = services.pool.loaded.config
    if not config.valkey.url or not config.batches.worker:
        return None

    def account(name: str) -> str:
        """The key identifies the account, and cannot be found from its hash."""
        upstream = services.pool.routes.upstreams.get(name)
        identity = f"{upstream.base_url}\n{upstream.key}" if upstream is not None else name
        return hashlib.sha256(identity.encode()).hexdigest()[:32]

    return SharedLimits(config.valkey.url, str(store.process.id), account=account, say=services.log)


def described(fault: LineError) -> bytes:
    """The error of a line in the form that a message batch reports."""
    error = RequestError(f"request {fault.line}: {fault.message}", code=fault.code)
    return msgspec.json.encode(dialect(COUNTED_BY).error_body(error.as_event()))
