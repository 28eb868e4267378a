"""The wire format: the fields of a chunk that are read (the decoder skips all others), finish reasons, usage and errors."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from ...events import Usage
from ...json_types import JsonObject, JsonValue
from .. import faults
from ..counts import count, details, totals, two_way


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


def read_usage(raw: JsonObject, before: Usage | None = None) -> Usage:
    """The totals of a usage object; values that it lacks stay as they were."""
    prompt, completion = details(raw, "prompt_tokens_details"), details(raw, "completion_tokens_details")
    cached = count(prompt, "cached_tokens")
    counts = {
        "input_tokens": count(raw, "prompt_tokens"),
        "output_tokens": count(raw, "completion_tokens"),
        "cached_tokens": count(raw, "cached_tokens") if cached is None else cached,
        "reasoning_tokens": count(completion, "reasoning_tokens"),
    }
    return totals(counts, before, raw)


# --- errors


error_body = faults.typed_error_body
