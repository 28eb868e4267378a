"""The wire format: the fields of a chunk that are read. There is no specification, so every field may be missing."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from ...errors import UpstreamRefused
from ...json_types import JsonObject, JsonValue
from ..common import upstream_errors
from ..common.tables import UsageFields, two_way


class FunctionCall(Struct, gc=False):
    name: str | None = None
    arguments: str | JsonObject | list[JsonValue] | None = None


class Delta(Struct, gc=False):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    phase: str | None = None
    status: str | None = None
    function_call: FunctionCall | None = None
    function_id: str | None = None
    extra: JsonValue = None


class ChunkChoice(Struct, gc=False):
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None


class Chunk(Struct, gc=False):
    created: JsonObject | None = msgspec.field(default=None, name="response.created")
    choices: list[ChunkChoice] | None = None
    usage: JsonObject | None = None
    error: JsonValue = None
    success: bool | None = None
    data: JsonValue = None


class Whole(Struct, gc=False):
    """``data`` of an answer without streaming."""

    chat_id: str | None = None
    parent_id: str | None = None
    message_id: str | None = None
    response_id: str | None = None
    choices: list[ChunkChoice] | None = None
    usage: JsonObject | None = None


class Chat(Struct, gc=False):
    """The answer to the request for a new chat."""

    id: str | None = None
    chat_id: str | None = None
    success: bool | None = None
    data: JsonValue = None
    error: JsonValue = None


chunk_decoder: Final = msgspec.json.Decoder(Chunk)

THINKING: Final = frozenset(("think", "thinking_summary"))
ANSWERING: Final = frozenset(("", "answer"))
"""The phases of the answer; a missing phase means the answer, too."""

REASONS, _ = two_way(
    {
        "end": ("stop",),
        "length": ("length",),
        "tool_calls": ("tool_calls", "function_call"),
        "content_filter": ("content_filter",),
    }
)

_STATUS_OF: Final = {
    "bad_request": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "ratelimited": 429,
    "rate_limited": 429,
}


USAGE: Final = UsageFields(
    input=("input_tokens",),
    output=("output_tokens",),
    cached=("input_tokens_details.cached_tokens", "cached_tokens"),
    reasoning=("output_tokens_details.reasoning_tokens",),
)


def refused(data: object) -> UpstreamRefused:
    """``{"success": false, "data": {"code", "details"}}``: the body of a refused request, instead of a stream."""
    error = data if isinstance(data, dict) else {"message": str(data or "the upstream refused the request and gave no reason")}
    code = error.get("code")
    status = _STATUS_OF.get(code.lower()) if isinstance(code, str) else None
    details = error.get("details")
    if isinstance(details, str) and details:
        error = {"message": details, **error}
    return upstream_errors.refusal(error, status)


def summary_text(extra: object) -> str:
    """The text so far of ``extra.summary_thought`` in a summary of the thinking."""
    thought = extra.get("summary_thought") if isinstance(extra, dict) else None
    content = thought.get("content") if isinstance(thought, dict) else None
    if isinstance(content, str):
        return content
    return "\n\n".join(line for line in content if isinstance(line, str)) if isinstance(content, list) else ""
