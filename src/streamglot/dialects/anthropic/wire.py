"""The wire format: the fields of stream events that are read, stop reasons, usage, citations and errors."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from ...events import Citation, Echo, StopReason, StreamError, Usage
from ...json_types import JsonObject, JsonValue
from ...messages import TokenCounts
from .. import faults
from ..counts import UsageFields, specified, two_way
from ..echo import is_native

DIALECT: Final = "anthropic"


class WireDelta(Struct, gc=False):
    """The delta of a block and that of the message: one struct, because their fields do not overlap."""

    type: str | None = None
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    citation: JsonObject | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: JsonObject | None = None
    container: JsonObject | None = None


class WireMessage(Struct, gc=False):
    id: str | None = None
    model: str | None = None
    content: list[JsonObject] | None = None
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: JsonObject | None = None
    container: JsonObject | None = None
    context_management: JsonObject | None = None
    usage: JsonObject | None = None


class WireEvent(Struct, gc=False):
    type: str | None = None
    index: int | None = None
    delta: WireDelta | None = None
    content_block: JsonObject | None = None
    message: WireMessage | None = None
    usage: JsonObject | None = None
    error: JsonValue = None
    context_management: JsonObject | None = None


event_decoder: Final = msgspec.json.Decoder(WireEvent)

REASONS, FINISH_OF = two_way(
    {
        "end": ("end_turn",),
        "stop_sequence": ("stop_sequence",),
        "length": ("max_tokens", "model_context_window_exceeded"),
        "tool_calls": ("tool_use",),
        "pause": ("pause_turn",),
        "refusal": ("refusal",),
        "content_filter": ("refusal",),
    },
    other="end_turn",
)


def stop_word(reason: StopReason, raw: str | None, calls: bool) -> str:
    """The ``stop_reason`` to write: the provider's own word if it fits, and ``tool_use`` exactly if there is a call."""
    if calls and reason in ("end", "stop_sequence", "tool_calls", "other"):
        return "tool_use"
    if reason == "tool_calls":
        return "end_turn"
    return raw if raw is not None and REASONS.get(raw) == reason else FINISH_OF[reason]


# --- usage: the wire format counts cached tokens separately, the events include them in the input


USAGE: Final = UsageFields(
    input=("input_tokens",),
    output=("output_tokens",),
    cached=("cache_read_input_tokens",),
    cache_write=("cache_creation_input_tokens",),
    reasoning=("output_tokens_details.thinking_tokens",),
    apart=("cached", "cache_write"),
    written=("input", "cache_write", "cached", "output", "reasoning"),
)


_NO_FIELDS: Final[frozenset[str]] = frozenset()
_COUNTS: Final = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_USAGE_FIELDS: Final = {
    **dict.fromkeys((*_COUNTS, "inference_geo", "service_tier", "speed"), _NO_FIELDS),
    "cache_creation": frozenset(("ephemeral_1h_input_tokens", "ephemeral_5m_input_tokens")),
    "output_tokens_details": frozenset(("thinking_tokens",)),
    "server_tool_use": frozenset(("web_fetch_requests", "web_search_requests")),
}
"""The usage object of the specification."""


def write_usage(usage: Usage | TokenCounts | None, strict: bool = False) -> JsonObject:
    """A usage object. It is the provider's own where that was one of this dialect, so that its details survive."""
    if usage is None:
        return {"input_tokens": 0, "output_tokens": 0}
    raw = usage.raw
    if raw and "output_tokens" in raw and "total_tokens" not in raw and "input_tokens_details" not in raw:
        read = USAGE.read(raw)
        if "input_tokens" in raw and (read.input_tokens, read.output_tokens) == (usage.input_tokens, usage.output_tokens):
            return specified(raw, _USAGE_FIELDS) if strict else raw
    return USAGE.write(usage)


# --- citations


def read_citation(raw: JsonObject) -> Citation:
    """Reads a citation. Its offsets refer to the source, not to the answer, so they stay in ``native``."""
    words = {name: value for name, value in raw.items() if isinstance(value, str)}
    url = words.get("url", "")
    source = words.get("source", "")
    if not url and source.startswith(("https://", "http://")):
        url = source
    title = words.get("title") or words.get("document_title", "")
    return Citation(url, title, words.get("cited_text", ""), native=Echo(DIALECT, raw))


def write_citation(citation: Citation) -> JsonObject | None:
    """The citation in this dialect's own form, or as a web page where its address is known, or None."""
    if citation.native is not None and is_native(citation.native, DIALECT):
        return citation.native.data
    if not citation.url:
        return None
    return {
        "type": "web_search_result_location",
        "url": citation.url,
        "title": citation.title or citation.url,
        "cited_text": citation.cited_text,
        "encrypted_index": "",
    }


# --- what calls are given, and what tools that the provider ran answered


def arguments_object(text: str) -> JsonObject:
    """Arguments as the object that this dialect requires: an empty text becomes an empty object, any other value becomes
    ``input``."""
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text)
        if isinstance(value, str):
            value = msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return {"input": text}
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"input": value}


def result_text(content: object) -> str:
    """The text of a result, for readers that do not know its native form."""
    match content:
        case str():
            return content
        case {"text": str(text)}:
            return text
        case {"url": str(url), "title": str(title)}:
            return f"{title} {url}"
        case [*entries]:
            return "\n".join(result_text(entry) for entry in entries)
    return msgspec.json.encode(content).decode()


def is_failure(block: JsonObject) -> bool:
    content = block.get("content")
    kind = content.get("type") if isinstance(content, dict) else None
    return block.get("is_error") is True or (isinstance(kind, str) and kind.endswith("_error"))


# --- errors


KINDS: Final = frozenset((*faults.TYPE_OF.values(), "api_error"))


def error_body(error: StreamError) -> JsonObject:
    """The error object, in an HTTP response and in a stream. Clients act on ``type``, above all in a stream, whose status is
    200."""
    kind = error.code if error.code in KINDS else faults.TYPE_OF.get(error.status, "api_error")
    if kind == "api_error" and 400 <= error.status < 500:
        kind = "invalid_request_error"
    body: JsonObject = {"type": kind, "message": error.message}
    if error.code != kind:
        body["details"] = {"error_code": error.code}
    return {"type": "error", "error": body}
