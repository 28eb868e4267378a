"""The wire format: the fields of a chat event that are read, finish reasons, usage and errors."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from ...events import Citation, Echo, StreamError
from ...json_types import JsonObject, JsonValue
from ...messages import TokenCounts
from ..common.lenient import string_in
from ..common.tables import UsageFields, two_way

DIALECT: Final = "cohere"


class Function(Struct, gc=False):
    name: str | None = None
    arguments: str | JsonObject | None = None


class Call(Struct, gc=False):
    id: str | None = None
    function: Function | None = None


class Content(Struct, gc=False):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None


class DeltaMessage(Struct, gc=False):
    """In a delta, ``content`` and ``tool_calls`` have one element; in a complete response, a list."""

    content: Content | list[JsonValue] | None = None
    tool_plan: str | None = None
    tool_calls: Call | list[JsonValue] | None = None
    citations: JsonValue = None


class Delta(Struct, gc=False):
    message: DeltaMessage | None = None
    finish_reason: str | None = None
    usage: JsonObject | None = None
    error: JsonValue = None


class WireEvent(Struct, gc=False):
    type: str | None = None
    id: str | None = None
    index: int | None = None
    delta: Delta | None = None
    logprobs: JsonValue = None
    message: JsonValue = None
    error: JsonValue = None


event_decoder: Final = msgspec.json.Decoder(WireEvent)

REASONS, FINISH_OF = two_way(
    {
        "end": ("COMPLETE",),
        "stop_sequence": ("STOP_SEQUENCE",),
        "length": ("MAX_TOKENS", "ERROR_LIMIT"),
        "tool_calls": ("TOOL_CALL",),
        "content_filter": ("COMPLETE", "ERROR_TOXIC"),
        "cancelled": ("COMPLETE", "USER_CANCEL"),
    },
    other="COMPLETE",
)
FAILURES: Final = {"ERROR": 500, "TIMEOUT": 504}
"""Finish reasons that mean a failure."""


USAGE: Final = UsageFields(
    input=("tokens.input_tokens", "billed_units.input_tokens"),
    output=("tokens.output_tokens", "billed_units.output_tokens"),
    cached=("cached_tokens",),
    reasoning=("tokens.reasoning_tokens",),
    written=("input", "output", "cached"),
)
"""``tokens`` is what the model processed, ``billed_units`` what is charged; the first is the token count."""


def write_usage(usage: TokenCounts) -> JsonObject | None:
    """The provider's own object if it had this dialect."""
    if usage.raw and "tokens" in usage.raw:
        return usage.raw
    if usage.input_tokens is None and usage.output_tokens is None:
        return None
    body = USAGE.write(usage)
    return {"billed_units": dict(body["tokens"]), **body}


def read_citation(citation: JsonObject) -> Citation:
    """The offsets refer to the answer; the title and the text come from its first source."""
    sources = citation.get("sources")
    first = sources[0] if isinstance(sources, list) and sources and isinstance(sources[0], dict) else {}
    document = {**_object(first, "tool_output"), **_object(first, "document")}
    quote = next((document[name] for name in ("text", "snippet", "content") if isinstance(document.get(name), str)), "")
    start, end = (value if isinstance(value := citation.get(name), int) else None for name in ("start", "end"))
    return Citation(string_in(document, "url"), string_in(document, "title"), quote, start, end, Echo(DIALECT, citation))


def _object(raw: JsonObject, name: str) -> JsonObject:
    value = raw.get(name)
    return value if isinstance(value, dict) else {}


# --- errors


def error_body(error: StreamError) -> JsonObject:
    return {"message": error.message}
