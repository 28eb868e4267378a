"""The wire format: the fields of a chunk that are read (the decoder skips all others), finish reasons, usage and errors."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from ...json_types import JsonObject, JsonValue
from ..common import upstream_errors
from ..common.tables import UsageFields, two_way


class ChunkChoice(Struct, gc=False):
    index: int | None = None
    text: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    logprobs: JsonValue = None
    stop_reason: JsonValue = None
    matched_stop: JsonValue = None
    content_filter_results: JsonValue = None


class Chunk(Struct, gc=False):
    id: str | None = None
    object: str | None = None
    created: float | None = None
    model: str | None = None
    choices: list[ChunkChoice] | None = None
    usage: JsonObject | None = None
    error: JsonValue = None
    system_fingerprint: str | None = None
    provider: str | None = None
    timings: JsonValue = None
    prompt_filter_results: JsonValue = None


chunk_decoder: Final = msgspec.json.Decoder(Chunk)

REASONS, FINISH_OF = two_way(
    {
        "end": ("stop", "eos", "eos_token"),
        "stop_sequence": ("stop", "stop_sequence"),
        "length": ("length", "max_tokens"),
        "content_filter": ("content_filter",),
        "cancelled": ("stop", "abort", "cancelled"),
    },
    other="stop",
)
"""The values of ``finish_reason``, in lower case. ``error`` is missing because it is an error."""


USAGE: Final = UsageFields(
    input=("prompt_tokens",),
    output=("completion_tokens",),
    cached=("prompt_tokens_details.cached_tokens", "cached_tokens"),
    reasoning=("completion_tokens_details.reasoning_tokens",),
)


# --- errors


error_body = upstream_errors.typed_error_body
