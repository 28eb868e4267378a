"""The wire format: the fields of a Converse event that are read, stop reasons, usage and errors."""

from __future__ import annotations

import base64
from typing import Final

import msgspec
from msgspec import Struct

from ...events import StreamError
from ...json_types import JsonObject, JsonValue
from ...messages import TokenCounts
from ..common.tables import UsageFields, two_way

DIALECT: Final = "bedrock_converse"


class ToolUseStart(Struct, gc=False):
    tool_use_id: str | None = msgspec.field(default=None, name="toolUseId")
    name: str | None = None
    type: str | None = None


class ToolResultStart(Struct, gc=False):
    tool_use_id: str | None = msgspec.field(default=None, name="toolUseId")
    type: str | None = None
    status: str | None = None


class ImageStart(Struct, gc=False):
    format: str | None = None


class BlockStart(Struct, gc=False):
    tool_use: ToolUseStart | None = msgspec.field(default=None, name="toolUse")
    tool_result: ToolResultStart | None = msgspec.field(default=None, name="toolResult")
    image: ImageStart | None = None


class ToolUseDelta(Struct, gc=False):
    input: JsonValue = None


class ReasoningContent(Struct, gc=False):
    text: str | None = None
    signature: str | None = None
    redacted: str | None = msgspec.field(default=None, name="redactedContent")


class Delta(Struct, gc=False):
    text: str | None = None
    tool_use: ToolUseDelta | None = msgspec.field(default=None, name="toolUse")
    tool_result: JsonValue = msgspec.field(default=None, name="toolResult")
    reasoning: ReasoningContent | None = msgspec.field(default=None, name="reasoningContent")
    citation: JsonValue = None
    image: JsonValue = None


class Payload(Struct, gc=False):
    """The fields of all stream events; the header names the event."""

    index: int | None = msgspec.field(default=None, name="contentBlockIndex")
    start: BlockStart | None = None
    delta: Delta | None = None
    stop_reason: str | None = msgspec.field(default=None, name="stopReason")
    response_fields: JsonValue = msgspec.field(default=None, name="additionalModelResponseFields")
    usage: JsonObject | None = None
    metrics: JsonValue = None
    trace: JsonValue = None
    performance: JsonValue = msgspec.field(default=None, name="performanceConfig")
    tier: JsonValue = msgspec.field(default=None, name="serviceTier")
    message: JsonValue = None


payload_decoder: Final = msgspec.json.Decoder(Payload)

EXTRAS: Final = {"metrics": "metrics", "trace": "trace", "performance": "performanceConfig", "tier": "serviceTier"}
"""Fields of the last event beside the usage, for this dialect only."""

MALFORMED_OUTPUT: Final = "malformed_model_output"
MALFORMED_CALL: Final = "malformed_tool_use"
"""The service could not read the model's output: an error, not an end."""

REASONS, FINISH_OF = two_way(
    {
        "end": ("end_turn",),
        "stop_sequence": ("stop_sequence",),
        "length": ("max_tokens", "model_context_window_exceeded"),
        "tool_calls": ("tool_use",),
        "content_filter": ("content_filtered", "guardrail_intervened"),
        "refusal": ("content_filtered", "refusal"),
        "pause": ("end_turn", "pause_turn"),
    },
    other="end_turn",
)


USAGE: Final = UsageFields(
    input=("inputTokens",),
    output=("outputTokens",),
    cached=("cacheReadInputTokens", "cacheReadInputTokenCount"),
    cache_write=("cacheWriteInputTokens", "cacheWriteInputTokenCount"),
    sum="totalTokens",
    apart=("cached", "cache_write"),
    written=("input", "output", "sum", "cached", "cache_write"),
)


def write_usage(usage: TokenCounts) -> JsonObject:
    """The provider's own object if it had this dialect."""
    if usage.raw and "inputTokens" in usage.raw and "totalTokens" in usage.raw:
        return usage.raw
    return USAGE.write(usage)


def join_blobs(pieces: list[str]) -> str:
    """Joins several base64 texts, each of which may have its own padding."""
    if len(pieces) == 1:
        return pieces[0]
    try:
        return base64.b64encode(b"".join(base64.b64decode(piece, validate=True) for piece in pieces)).decode()
    except ValueError:
        return "".join(pieces)


def blob(text: str) -> str:
    """Encodes text where the wire has bytes."""
    return base64.b64encode(text.encode()).decode()


def unblob(data: str) -> str:
    """The text that ``blob`` encoded; empty if the bytes are not text."""
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:
        return ""


# --- errors


EXCEPTION_OF: Final[dict[int, str]] = {
    400: "ValidationException",
    401: "AccessDeniedException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    413: "ValidationException",
    422: "ValidationException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
    504: "ModelTimeoutException",
    529: "ServiceUnavailableException",
}


def error_body(error: StreamError) -> JsonObject:
    return {"__type": EXCEPTION_OF.get(error.status, "InternalServerException"), "message": error.message}
