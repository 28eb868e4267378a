"""Requests that are passed on as they are, to an upstream that has such an address: embeddings, the counting of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ...batch.merging import EMBEDDINGS, mergeable
from ...dialects import dialect
from ...dialects.endpoint import bearer, join
from ...engine.record import clean_id
from ...engine.upstream_request import check_headers, refused
from ...engine.upstream_stream import ErrorContext
from ...errors import RequestError, StreamglotError, Unsupported, UpstreamProtocolError, UpstreamTimeout
from ...messages import Request
from ...upstream import Upstream, UpstreamResponse
from ...upstream.routes import Candidate
from ..endpoints import COUNTED_BY, PLAIN

if TYPE_CHECKING:
    from ..app import Gateway

EMBEDDINGS_PATH: Final = "embeddings"
ANSWER_BYTES: Final = 64 * 2**20
"""An answer that is wanted whole: 2,000 embeddings of 3,000 numbers fit into it."""


async def forward_json(
    gateway: Gateway,
    body: dict[str, Any],
    path: str,
    request_id: str,
    asked: Callable[[Candidate], Mapping[str, str]],
    owner: str = "",
) -> bytes:
    """The upstream's answer to this body at this path beside its chat. ``asked`` is called with the upstream that is asked, and
    returns the trace context that the request carries. ``owner`` is the caller, with whose other requests this one may be
    merged."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise RequestError("model is required and must be a string")
    candidates = gateway.pool.routes.find(model, lambda: 0.0)
    candidate = next((one for one in candidates if one.upstream.dialect in PLAIN and one.upstream.base_url), None)
    if candidate is None:
        raise Unsupported(f"no upstream that serves {model!r} has {path}; name one that has, as upstream/model")
    upstream = candidate.upstream
    trace = asked(candidate)
    check_headers(trace)
    headers = {**trace, **bearer(upstream.key)}
    url = join(upstream.base_url, path)

    async def post(sent: dict[str, Any]) -> bytes:
        return await _post(gateway, candidate, url, headers, sent, request_id)

    request = mergeable(EMBEDDINGS, body) if path == EMBEDDINGS_PATH and path in upstream.merge else None
    if request is None:
        return await post(body)
    return await gateway.merger.send((owner, upstream.name, url, candidate.model), request, post, upstream.merge_seconds)


async def count_tokens(gateway: Gateway, body: dict[str, Any], request: Request, request_id: str) -> bytes | None:
    """The upstream's own count, where it speaks the client's dialect; None where nobody can be asked."""
    candidate = gateway.pool.routes.find(request.model, lambda: 0.0)[0]
    upstream = candidate.upstream
    if upstream.dialect != COUNTED_BY or not upstream.base_url.startswith("http"):
        return None
    place = dialect(upstream.dialect).endpoint(upstream.base_url, request, key=upstream.key, **upstream.options)
    return await _post(gateway, candidate, join(place.url, "count_tokens"), place.headers, body, request_id)


async def _post(
    gateway: Gateway, candidate: Candidate, url: str, headers: dict[str, str], body: dict[str, Any], request_id: str
) -> bytes:
    upstream = candidate.upstream
    told = ErrorContext(candidate, request_id)
    sent = msgspec.json.encode({**body, "model": candidate.model})
    every = {"content-type": "application/json", "x-request-id": clean_id(request_id), **headers, **upstream.headers}
    limit = gateway.pool.limit(upstream)
    await limit.take()
    try:
        async with asyncio.timeout(upstream.timeouts.first_byte):
            answer = await gateway.pool.connections.post(upstream, url, every, sent)
            try:
                if not 200 <= answer.status < 300:
                    raise await refused(answer)
                return await _whole(answer, upstream)
            finally:
                answer.close()
    except TimeoutError:
        raise told.error(UpstreamTimeout(f"no answer within {upstream.timeouts.first_byte:g} s (timeouts.first_byte)")) from None
    except StreamglotError as error:
        raise told.error(error) from None
    finally:
        limit.give_back()


async def _whole(answer: UpstreamResponse, upstream: Upstream) -> bytes:
    pieces, size = [], 0
    while piece := await answer.read():
        pieces.append(piece)
        size += len(piece)
        if size > ANSWER_BYTES:
            raise UpstreamProtocolError(f"the answer of {upstream.name!r} is larger than {ANSWER_BYTES} bytes")
    return b"".join(pieces)
