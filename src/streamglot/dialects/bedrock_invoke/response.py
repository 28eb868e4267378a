"""InvokeModel responses that are no stream: parsed whatever family wrote them, built in the shape of one with a dialect."""

from __future__ import annotations

from typing import Any, Final

from ...errors import ConfigError
from ...messages import Response
from ...stages.collect import collect
from .. import dialect
from .reader import BedrockInvokeReader

_DIALECT_OF: Final = {"anthropic": "anthropic", "nova": "bedrock_converse", "openai": "openai_chat"}


def parse(body: dict[str, Any], *, provider: str | None = None) -> Response:
    return collect(BedrockInvokeReader(provider=provider).read_whole(body))


def build(response: Response, *, strict: bool = False, family: str = "anthropic") -> dict[str, Any]:
    if family not in _DIALECT_OF:
        raise ConfigError(f"a response cannot be written for the family {family!r}; it can for {', '.join(_DIALECT_OF)}")
    return dialect(_DIALECT_OF[family]).build_response(response, strict=strict)
