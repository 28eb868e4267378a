"""Requests that are passed on as they are, to an upstream that has such an address: embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..dialects.endpoint import bearer, join
from ..errors import RequestError, Unsupported

if TYPE_CHECKING:
    from .app import Gateway

PLAIN = ("openai_chat", "openai_responses", "openai_completions")
"""Dialects whose upstreams have embeddings beside their chat, under the same base address."""


async def forward_json(gateway: Gateway, body: dict[str, Any], path: str) -> tuple[int, bytes, str]:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise RequestError("model is required and must be a string")
    candidates = gateway.routes.find(model, lambda: 0.0)
    candidate = next((one for one in candidates if one.upstream.dialect in PLAIN and one.upstream.base_url), None)
    if candidate is None:
        raise Unsupported(f"no upstream that serves {model!r} has {path}")
    upstream = candidate.upstream
    headers = {"content-type": "application/json", **bearer(upstream.key), **upstream.headers}
    sent = msgspec.json.encode({**body, "model": candidate.model})
    answer = await gateway.client.post(upstream, join(upstream.base_url, path), headers, sent)
    pieces = []
    try:
        while piece := await answer.read():
            pieces.append(piece)
    finally:
        answer.close()
    return answer.status, b"".join(pieces), answer.headers.get("content-type", "application/json")
