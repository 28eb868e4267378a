"""How many tokens a request has: the question and the answer of this dialect."""

from __future__ import annotations

from typing import Any

from ...messages import Request
from .request import parse


def parse_count(body: dict[str, Any], model: str = "") -> Request:  # noqa: ARG001  # the body names the model here
    return parse(body)


def count_body(tokens: int) -> dict[str, Any]:
    return {"object": "response.input_tokens", "input_tokens": tokens}
