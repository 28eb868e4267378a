"""Forwards requests unchanged to an upstream with such an endpoint: embeddings and token counting. Estimates what none can count."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from ...batch.merging import EMBEDDINGS, mergeable
from ...dialects import dialect
from ...dialects.endpoint import bearer, join
from ...engine.answer import ErrorContext
from ...engine.record import clean_id
from ...engine.tokens import estimate
from ...engine.upstream_request import check_headers
from ...engine.upstream_stream import refused
from ...errors import RequestError, StreamglotError, Unsupported, UpstreamTimeout
from ...json_types import JsonObject
from ...messages import Request
from ...tasks import patient_timeout
from ...upstream.rate_limits import limit_headers
from ...upstream.response import read_whole
from ...upstream.routes import Candidate
from ...upstream.secrets import SecretMask, hide
from ..admission import Admission
from ..auth.access import limits_told
from ..auth.authenticator import Caller, anonymous
from ..endpoints import COUNTED_BY, PLAIN, RETRIEVABLE, dialect_of
from ..http.call import RoutedCall
from ..http.reply import Reply
from ..observe.recording import Recording
from ..services import GatewayServices
from .metered import Metered
from .router import KEY, APIRoute, Handler, json_of, json_reply, query_of, request_id, while_there

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
            admission.check(caller, model or str(body.get("model") or ""))
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
