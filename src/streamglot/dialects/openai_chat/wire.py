"""The wire format: the fields of a chat chunk that are read (the decoder skips all others), finish reasons, usage and errors."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from ...errors import ToolCallParseError
from ...events import Citation, Echo, StreamError
from ...json_types import JsonObject, JsonValue
from .. import faults
from ..counts import UsageFields, two_way
from ..echo import is_native, pack

DIALECT: Final = "openai_chat"


class FunctionDelta(Struct, gc=False):
    name: str | None = None
    arguments: str | JsonObject | list[JsonValue] | None = None


class CustomDelta(Struct, gc=False):
    name: str | None = None
    input: str | None = None


class CallDelta(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None
    custom: CustomDelta | None = None
    extra_content: JsonValue = None


class Delta(Struct, gc=False):
    content: str | list[JsonValue] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | bool | None = None
    thought: str | bool | None = None
    reasoning_details: list[JsonValue] | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: FunctionDelta | None = None
    audio: JsonValue = None
    annotations: list[JsonValue] | None = None
    images: list[JsonValue] | None = None
    executed_tools: JsonValue = None
    is_reasoning: bool | None = None


class ChunkChoice(Struct, gc=False):
    index: int | None = None
    is_reasoning: bool | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    logprobs: JsonObject | None = None
    stop_reason: JsonValue = None
    matched_stop: JsonValue = None
    extensions: JsonObject | None = None
    content_filter_results: JsonValue = None


class Chunk(Struct, gc=False):
    id: str | None = None
    object: str | None = None
    created: float | None = None
    model: str | None = None
    choices: list[ChunkChoice] | None = None
    usage: JsonObject | None = None
    error: JsonValue = None
    message: JsonValue = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    provider: str | None = None
    citations: list[JsonValue] | None = None
    search_results: JsonValue = None
    timings: JsonValue = None
    moderation: JsonValue = None
    prompt_filter_results: JsonValue = None
    x_groq: JsonObject | None = None
    extensions: JsonObject | None = None


chunk_decoder: Final = msgspec.json.Decoder(Chunk)


class _KnownDelta(Delta, forbid_unknown_fields=True, gc=False):
    """Refuses fields that nobody knows. Beside those of ``Delta``, it knows labels that say nothing to a client."""

    role: str | None = None
    channel: str | None = None


class _KnownChoice(ChunkChoice, gc=False):
    delta: _KnownDelta | None = None
    message: _KnownDelta | None = None


class _KnownChunk(Chunk, gc=False):
    choices: list[_KnownChoice] | None = None  # type: ignore[assignment]  # only the decoder writes it


class _LabelledDelta(_KnownDelta, forbid_unknown_fields=True, gc=False):
    """Knows what some providers put beside their text. That costs too much to expect it of all."""

    name: msgspec.Raw | None = None
    token_id: msgspec.Raw | None = None
    provider_metadata: msgspec.Raw | None = None
    graph_data: msgspec.Raw | None = None
    llm_data: msgspec.Raw | None = None
    image_data: msgspec.Raw | None = None
    translation_data: msgspec.Raw | None = None
    web_search_data: msgspec.Raw | None = None


class _LabelledChoice(ChunkChoice, gc=False):
    delta: _LabelledDelta | None = None
    message: _LabelledDelta | None = None


class _LabelledChunk(Chunk, gc=False):
    choices: list[_LabelledChoice] | None = None  # type: ignore[assignment]  # only the decoder writes it


known_decoder: Final = msgspec.json.Decoder(_KnownChunk)
labelled_decoder: Final = msgspec.json.Decoder(_LabelledChunk)
"""These refuse a chunk whose delta has an unknown field. That costs nothing where no delta has one."""


class _AnyChoice(Struct, gc=False):
    delta: dict[str, msgspec.Raw] | None = None
    message: dict[str, msgspec.Raw] | None = None


class _AnyChunk(Struct, gc=False):
    choices: list[_AnyChoice] | None = None


_any_decoder: Final = msgspec.json.Decoder(_AnyChunk)
_KNOWN: Final = frozenset(_LabelledDelta.__struct_fields__)
_EMPTY_TEXT: Final = b'""'


def unknown_texts(data: bytes) -> list[str]:
    """The fields of the deltas, or messages, that have a text and that no reader knows."""
    try:
        chunk = _any_decoder.decode(data)
    except (ValueError, RecursionError):
        return []
    given = [fields for choice in chunk.choices or () for fields in (choice.delta, choice.message) if fields]
    return [
        name
        for fields in given
        for name in fields.keys() - _KNOWN
        if (raw := bytes(fields[name]))[:1] == b'"' and raw != _EMPTY_TEXT
    ]


REASONS, FINISH_OF = two_way(
    {
        "end": ("stop", "end_turn", "eos", "eos_token", "complete"),
        "stop_sequence": ("stop", "stop_sequence"),
        "length": ("length", "max_tokens", "model_length"),
        "tool_calls": ("tool_calls", "tool_use", "function_call"),
        "content_filter": ("content_filter", "safety", "sensitive"),
        "refusal": ("stop", "refusal"),
        "cancelled": ("stop", "abort", "cancelled"),
    },
    other="stop",
)
"""The values of ``finish_reason``, in lower case. ``error`` is missing because it is an error."""


_INPUT: Final = "prompt_tokens_details|prompt_token_details|input_tokens_details"
_OUTPUT: Final = "completion_tokens_details|output_tokens_details"
USAGE: Final = UsageFields(
    input=("prompt_tokens", "input_tokens"),
    output=("completion_tokens", "output_tokens"),
    cached=(f"{_INPUT}.cached_tokens", "prompt_cache_hit_tokens"),
    cache_write=(f"{_INPUT}.cache_write_tokens", f"{_INPUT}.created_cache_tokens"),
    reasoning=(f"{_OUTPUT}.reasoning_tokens", "reasoning_tokens"),
)


# --- state and sources in the fields of a message


def extra_content(echo: Echo) -> JsonValue:
    """The state of a call: the upstream's own field, or any other state packed."""
    own = echo.data.get("extra_content") if is_native(echo, DIALECT) else None
    return {"streamglot": pack(echo)} if own is None else own


def write_citation(citation: Citation) -> JsonObject | None:
    """The annotation for a source; None for one without an address."""
    if is_native(citation.native, DIALECT):
        return citation.native.data  # type: ignore[union-attr]  # it is native, so it is there
    if not citation.url:
        return None
    place = {"start_index": citation.start or 0, "end_index": citation.end or 0}
    return {"type": "url_citation", "url_citation": {"url": citation.url, "title": citation.title, **place}}


# --- errors


def error_body(error: StreamError) -> JsonObject:
    """A tool call that cannot be parsed has a type of its own."""
    body = faults.typed_error_body(error)
    if error.code == ToolCallParseError.code:
        body["error"]["type"] = error.code
    return body
