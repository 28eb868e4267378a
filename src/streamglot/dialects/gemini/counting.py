"""How many tokens a request has: the question and the answer of this dialect."""

from __future__ import annotations

from typing import Any

from ...errors import RequestError
from ...messages import Request
from .request import parse


def parse_count(body: dict[str, Any], model: str = "") -> Request:
    """The body has contents alone, or a whole request in a field of its own; the address names the model."""
    inner = body.get("generateContentRequest", body.get("generate_content_request"))
    if inner is None:
        inner = body
    if not isinstance(inner, dict):
        raise RequestError("generateContentRequest must be an object", detail={"param": "generateContentRequest"})
    return parse(inner, model=model)


def count_body(tokens: int) -> dict[str, Any]:
    return {"totalTokens": tokens}
