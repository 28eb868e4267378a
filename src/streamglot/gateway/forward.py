"""Forwards requests unchanged to an upstream with such an endpoint: embeddings and token counting. Estimates what none can count.

A forwarded request is metered like an exchange: a slot, a reservation, a recorded turn, a log line. The content of the request
and of the answer is not stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from ..dialects import dialect
from ..dialects.interface import bearer, join
from ..engine.answer import ErrorContext, refused
from ..engine.attempts import check_headers
from ..engine.observer import ExchangeResult
from ..engine.stats import BYTES_PER_TOKEN, ExchangeRecord, clean_id, estimate
from ..errors import RequestError, StreamglotError, Unsupported, UpstreamTimeout
from ..events import Usage
from ..json_types import JsonObject, JsonValue
from ..messages import Request, Response, TokenCounts
from ..tasks import patient_timeout
from ..upstream.http import read_whole
from ..upstream.prices import price
from ..upstream.rate_limits import limit_headers
from ..upstream.routing.routes import Candidate
from ..upstream.secrets import SecretMask, hide
from .admission import Admission, context_of
from .api.router import KEY, APIRoute, Handler, json_of, json_reply, query_of, request_id, while_there
from .auth.access import limits_told
from .auth.authenticator import Caller, anonymous
from .auth.budgets import Reservation
from .endpoints import COUNTED_BY, PLAIN, RETRIEVABLE, dialect_of
from .http.call import ClientDisconnected, Reply, RoutedCall
from .merging import EMBEDDINGS, mergeable
from .observe.recording import Recording
from .services import GatewayServices

if TYPE_CHECKING:
    from ..store import Turn as StoredTurn
    from .observe.tracing import AttemptSpan

LARGEST_COUNT: Final = 2**31 - 1
"""Tokens of one request. A larger count from an upstream is ignored."""
EMBEDDINGS_PATH: Final = "embeddings"
ANSWER_BYTES: Final = 64 * 2**20
"""Bytes of an answer, which is held in memory. 2,000 embeddings of 3,000 numbers fit into it."""


async def forward_json(
    services: GatewayServices,
    body: JsonObject,
    path: str,
    request_id: str,
    calls: Callable[[Candidate], Mapping[str, str]],
    owner: str = "",
    limits: dict[str, str] | None = None,
) -> bytes:
    """The upstream's answer to this body at a path beside its chat endpoint.

    ``calls`` is told the candidate that is tried, and returns the trace context that the request carries. ``owner`` is the
    caller; only requests of one caller may be merged. ``limits`` gets the headers in which the upstream tells its rate limits.
    """
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise RequestError("model is required and must be a string")
    candidates = services.pool.routes.find(model, lambda: 0.0)
    candidate = next((one for one in candidates if one.upstream.dialect in PLAIN and one.upstream.base_url), None)
    if candidate is None:
        raise Unsupported(f"no upstream that serves {model!r} has {path}; name an upstream that has it, as upstream/model")
    upstream = candidate.upstream
    trace = calls(candidate)
    check_headers(trace)
    headers = {**trace, **bearer(upstream.key)}
    url = join(upstream.base_url, path)

    async def post(sent: JsonObject) -> bytes:
        return await _post(services, candidate, url, headers, sent, request_id, limits)

    request = mergeable(EMBEDDINGS, body) if path == EMBEDDINGS_PATH and path in upstream.merge else None
    if request is None:
        return await post(body)
    return await services.merger.send((owner, upstream.name, url, candidate.model), request, post, upstream.merge_seconds)


async def count_tokens(
    services: GatewayServices, body: JsonObject, request: Request, request_id: str, limits: dict[str, str]
) -> bytes | None:
    """The upstream's own token count if it has the client's dialect; None if no upstream can count. ``limits`` as above."""
    candidate = services.pool.routes.find(request.model, lambda: 0.0)[0]
    upstream = candidate.upstream
    if upstream.dialect != COUNTED_BY or not upstream.base_url.startswith("http"):
        return None
    place = dialect(upstream.dialect).endpoint(upstream.base_url, request, key=upstream.key, **upstream.options)
    return await _post(services, candidate, join(place.url, "count_tokens"), place.headers, body, request_id, limits)


async def _post(
    services: GatewayServices,
    candidate: Candidate,
    url: str,
    headers: dict[str, str],
    body: JsonObject,
    request_id: str,
    limits: dict[str, str] | None,
) -> bytes:
    upstream = candidate.upstream
    context = ErrorContext(candidate, request_id)
    sent = msgspec.json.encode({**body, "model": candidate.model})
    every = {"content-type": "application/json", "x-request-id": clean_id(request_id), **headers, **upstream.headers}
    limit = services.pool.limit(upstream)
    await limit.take()
    try:
        async with patient_timeout(upstream.timeouts.first_byte):
            answer = await services.pool.connections.post(upstream, url, every, sent)
            try:
                if limits is not None:
                    told, secrets = limit_headers(answer.headers), context.secrets()
                    limits.update({name: hide(value, secrets) for name, value in told.items()})
                if not 200 <= answer.status < 300:
                    raise await refused(answer)
                data = await read_whole(answer, f"the answer of {upstream.name!r}", ANSWER_BYTES, "ask for less in one request")
                mask = SecretMask(upstream.live_secrets())
                return mask.feed(data) + mask.close()
            finally:
                answer.close()
    except TimeoutError:
        raise context.error(
            UpstreamTimeout(f"no answer within {upstream.timeouts.first_byte:g} s (timeouts.first_byte)")
        ) from None
    except StreamglotError as error:
        raise context.error(error) from None
    finally:
        limit.give_back()


def forward_routes(services: GatewayServices, admission: Admission, recording: Recording) -> list[APIRoute]:
    @asynccontextmanager
    async def forwarded(call: RoutedCall, model: str = "") -> AsyncIterator[tuple[Caller | None, JsonObject, dict[str, str]]]:
        """Gives the caller, the body, and a place for the rate limits that an upstream tells. The response tells them or those of the
        caller, also if it is an error. ``model`` comes from the path."""
        caller = admission.caller(call.headers, query_of(call).get(KEY, ""))
        limits: dict[str, str] = {}
        try:
            body = await json_of(services, call)
            await admission.check(caller, model or str(body.get("model") or ""))
            yield caller, body, limits
        finally:
            call.extra_headers |= limits_told(caller, dialect_of(call.path, call.headers), limits, services.clock())

    async def counted(call: RoutedCall) -> Reply:
        async with forwarded(call) as (caller, body, limits):
            counting = dialect(COUNTED_BY)
            counting.need_conversation(body)
            request = counting.parse_count(body)
            async with admission.slot(caller):
                answer = await while_there(call, count_tokens(services, body, request, request_id(call), limits))
            return Reply(200, answer or msgspec.json.encode(counting.count_body(estimate(request))))

    def estimated(name: str) -> Handler:
        """A handler that estimates the tokens of a request in this dialect without calling an upstream."""

        async def count(call: RoutedCall, model: str = "") -> Reply:
            async with forwarded(call, model) as (_, body, _):
                counting = dialect(name)
                return json_reply(counting.count_body(estimate(counting.parse_count(body, model))))

        return count

    async def embeddings(call: RoutedCall) -> Reply:
        id = request_id(call)
        async with (
            forwarded(call) as (caller, body, limits),
            Metered(services, admission, recording, caller, call.headers, body, id, EMBEDDINGS_PATH) as metered,
        ):
            owner = caller.name if caller is not None else anonymous(call.headers)
            work = forward_json(services, body, EMBEDDINGS_PATH, id, metered.calls, owner, limits)
            metered.answer = answer = await while_there(call, work)
            return Reply(200, answer)

    in_path = estimated("gemini")
    return [
        APIRoute(
            "POST",
            "/v1/responses/input_tokens",
            estimated(RETRIEVABLE),
            "An estimate of the tokens of a request for a response",
        ),
        APIRoute("POST", "/v1/models/{model:path}:countTokens", in_path),
        APIRoute(
            "POST",
            "/v1beta/models/{model:path}:countTokens",
            in_path,
            "An estimate of the tokens of a request, for clients of Gemini",
        ),
        APIRoute("POST", "/v1alpha/models/{model:path}:countTokens", in_path),
        APIRoute("POST", "/v1/messages/count_tokens", counted, "An estimate of the tokens of a request"),
        APIRoute("POST", "/v1/embeddings", embeddings, "Embeddings, forwarded to the upstream"),
    ]


class Metered:
    """An async context manager. Forward the request inside it, and set its ``answer``."""

    def __init__(
        self,
        services: GatewayServices,
        admission: Admission,
        recording: Recording,
        caller: Caller | None,
        headers: Mapping[str, str],
        body: Mapping[str, JsonValue],
        request_id: str,
        kind: str,
    ) -> None:
        self.answer: bytes | None = None
        self._services = services
        self._admission = admission
        self._recording = recording
        self._caller = caller
        self._headers = headers
        self._estimate = estimated_input(body.get("input"))
        model = body.get("model")
        self.record = ExchangeRecord(
            request_id, kind, services.clock(), services.pool.routes.named(model if isinstance(model, str) else "")
        )
        self.record.key = caller.name if caller is not None else ""
        self._candidate: Candidate | None = None
        self._reservation: Reservation | None = None
        self._stored: StoredTurn | None = None
        tracing = recording.tracing
        self._span = None if tracing is None else tracing.request("POST", f"/v1/{kind}", headers, kind)
        self._attempt: AttemptSpan | None = None
        self._context = context_of(self.record, headers if self._span is None else self._span.headers)
        self._turn = admission.slot(caller)

    def calls(self, candidate: Candidate) -> Mapping[str, str]:
        """Notes the upstream that is about to be called. Returns the trace context that the request carries."""
        self._candidate = candidate
        self.record.attempts += 1
        self.record.upstream, self.record.upstream_dialect = candidate.upstream.name, candidate.upstream.dialect
        tracing = self._recording.tracing
        if tracing is None or self._span is None:
            return self._context.trace
        self._attempt = tracing.attempt(candidate, Request(), self.record.dialect, self._span)
        return self._attempt.headers

    async def __aenter__(self) -> Metered:
        self._reservation = await self._admission.reserve(self._caller, self.record.model, self._estimate, 1)
        try:
            await self._turn.__aenter__()
        except BaseException as error:
            self._settle(error)
            raise
        try:
            self._stored = await self._begin() if self._recording.store is not None else None
        except BaseException as error:
            await self.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._turn.__aexit__(kind, error, trace)
        self._settle(error)

    async def _begin(self) -> StoredTurn:
        from ..store import SessionHints, Started

        assert self._recording.store is not None
        record, request = self.record, Request(model=self.record.model, dialect=self.record.dialect)
        caller = record.key or anonymous(self._headers)
        session = await self._recording.store.find_session(SessionHints(caller=caller), request)
        started = Started(
            caller=caller, request_id=record.request_id, dialect=record.dialect, model=record.model, request=request, probe=True
        )
        return self._recording.store.start(session, started)

    def _settle(self, error: BaseException | None) -> None:
        record, now = self.record, self._services.clock()
        if isinstance(error, StreamglotError):
            record.failed(error.as_event())
        else:
            record.ending = "end" if error is None else "client_gone" if isinstance(error, ClientDisconnected) else "error"
        usage = self._used(record.ending)
        record.usage = Usage(usage.input_tokens, usage.output_tokens)
        written = self._reservation.settle(usage, now) if self._reservation is not None else None
        if self._stored is not None:
            from ..store import Finished

            model = self._candidate.model if self._candidate is not None else ""
            response = Response(usage=usage, error=error.as_event() if isinstance(error, StreamglotError) else None)
            self._stored.finish(
                Finished(
                    ending=record.ending,
                    response=response,
                    upstream=record.upstream,
                    upstream_dialect=record.upstream_dialect,
                    upstream_model=model,
                    cost=partial(price, usage, model, record.upstream),
                    timings={"seconds": now - record.began},
                    written=written,
                )
            )
        if self._attempt is not None:
            self._attempt.failed(error) if error is not None else self._attempt.used(record.usage)
        result = ExchangeResult(self._context, record, Request(), seconds=now - record.began)
        for observer in self._recording.observers_for(None, None, self._span):
            observer.finished(result)

    def _used(self, ending: str) -> TokenCounts:
        """The usage that the answer reports.

        Returns an estimate if the answer does not report it or the client did not wait for it, and zero for a refusal.
        """
        if ending == "end":
            return TokenCounts(_input_tokens(self.answer or b"", self._estimate), 0)
        return TokenCounts(self._estimate if ending == "client_gone" and self._candidate is not None else 0, 0)


def _input_tokens(answer: bytes, otherwise: int) -> int:
    try:
        usage = msgspec.json.decode(answer, type=_Answer).usage or _Counts()
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        usage = _Counts()
    for count in (usage.prompt_tokens, usage.input_tokens, usage.total_tokens):
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= LARGEST_COUNT:
            return count
    return otherwise


def estimated_input(given: object) -> int:
    """An estimate of the tokens of these inputs. A number counts as one token, a list of numbers as tokenized text."""
    return sum(_tokens(one) for one in (given if isinstance(given, list) else [given]))


def _tokens(one: object) -> int:
    if isinstance(one, str):
        return round(len(one.encode("utf-8", "replace")) / BYTES_PER_TOKEN) + 1
    return len(one) if isinstance(one, list) else 1


class _Counts(Struct):
    prompt_tokens: JsonValue = None
    input_tokens: JsonValue = None
    total_tokens: JsonValue = None


class _Answer(Struct):
    """The fields that are read of an answer."""

    usage: _Counts | None = None
