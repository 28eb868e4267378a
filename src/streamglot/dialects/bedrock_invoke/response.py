"""Builds InvokeModel responses in the format of a family that has a dialect."""

from __future__ import annotations

from typing import Final

from ...errors import ConfigError
from ...json_types import JsonObject
from ...messages import Response
from .. import dialect

_DIALECT_OF: Final = {"anthropic": "anthropic", "nova": "bedrock_converse", "openai": "openai_chat"}


def build(response: Response, *, strict: bool = False, family: str = "anthropic") -> JsonObject:
    if family not in _DIALECT_OF:
        raise ConfigError(f"a response cannot be written for the family {family!r}; supported families: {', '.join(_DIALECT_OF)}")
    return dialect(_DIALECT_OF[family]).build_response(response, strict=strict)
