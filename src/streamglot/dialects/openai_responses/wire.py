"""The wire format: the fields of events that are read, item types, ids, end reasons, usage and errors."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

from ...events import CallKind, Echo, StopReason, StreamError, Usage
from ...json_types import JsonObject, JsonValue
from ...messages import TokenCounts
from ..common import upstream_errors
from ..common.lenient import clean, loads
from ..common.tables import UsageFields

DIALECT: Final = "openai_responses"


class Event(Struct, gc=False):
    type: str | None = None
    delta: JsonValue = None
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    text: str | None = None
    refusal: str | None = None
    arguments: str | JsonObject | None = None
    input: str | None = None
    name: str | None = None
    logprobs: list[JsonValue] | None = None
    item: JsonObject | None = None
    part: JsonObject | None = None
    annotation: JsonObject | None = None
    response: JsonObject | None = None
    error: JsonValue = None


event_decoder: Final = msgspec.json.Decoder(Event)

CALL_ITEMS: Final[dict[str, CallKind]] = {"function_call": "function", "custom_tool_call": "custom"}
"""Items for calls that the client runs, and their kind."""
CALL_FIELDS: Final = frozenset(("type", "status", "arguments", "input", "call_id", "name"))
"""Fields of a call that its events contain; the others are its native form."""
RESULT_OF: Final = {"function": "function_call_output", "custom": "custom_tool_call_output"}
SERVER_ITEMS: Final = frozenset(
    (
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "computer_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "tool_search_call",
        "program",
    )
)
"""Calls of tools that only this dialect has; the provider runs most of them."""
OUTPUT_ITEMS: Final = frozenset(
    (
        "function_call_output",
        "custom_tool_call_output",
        "computer_call_output",
        "local_shell_call_output",
        "shell_call_output",
        "apply_patch_call_output",
        "mcp_approval_response",
        "tool_search_output",
        "program_output",
    )
)
"""Items with the result of a tool."""
ANNOTATIONS: Final = frozenset(("url_citation", "file_citation", "container_file_citation", "file_path"))

INCOMPLETE: Final[dict[str, StopReason]] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "length": "length",
    "content_filter": "content_filter",
}
"""``incomplete_details.reason``."""
DETAIL_OF: Final[dict[StopReason, str]] = {"length": "max_output_tokens", "content_filter": "content_filter"}
ENDS: Final = frozenset(("response.completed", "response.incomplete", "response.failed", "response.cancelled", "response.done"))
LIFECYCLE: Final = frozenset(
    (
        "id",
        "object",
        "created_at",
        "completed_at",
        "status",
        "model",
        "output",
        "output_text",
        "usage",
        "error",
        "incomplete_details",
    )
)
"""The fields of a response that describe its progress; all others repeat the request."""


# --- ids

_NO_ID: Final = re.compile(r"[^A-Za-z0-9]")
_MINTED: Final = re.compile(r"[a-z]+_sglot_")
_PREFIX_OF: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "image_generation_call": "ig",
    "function_call_output": "fco",
    "custom_tool_call_output": "ctco",
}


def make_item_id(kind: str, response_id: str, number: int) -> str:
    """The id of an item without one: stable for the same response, and recognizable as ours."""
    return f"{_PREFIX_OF.get(kind, 'item')}_sglot_{_NO_ID.sub('', response_id)[-24:]}_{number}"


def is_minted(item_id: object) -> bool:
    return isinstance(item_id, str) and _MINTED.match(item_id) is not None


# --- items


def texts(entries: object, *kinds: str) -> list[str]:
    """The texts of a list of parts, including empty ones, so that positions are kept."""
    parts = entries if isinstance(entries, list) else []
    return [text if isinstance(text := part.get("text"), str) else "" for part in parts if is_kind(part, *kinds)]


def is_kind(part: object, *kinds: str) -> bool:
    return isinstance(part, dict) and part.get("type") in kinds


def string_of(item: JsonObject, *names: str) -> str:
    """The first of these fields that is a non-empty string."""
    return next((value for name in names if isinstance(value := item.get(name), str) and value), "")


def arguments_object(text: str) -> JsonValue:
    """The arguments of a call as a JSON value."""
    return clean(loads(text.encode("utf-8", "replace"))[0]) if text.strip() else {}


def own(echo: Echo | None, *kinds: str) -> JsonObject | None:
    """The item in an echo, if it is of one of these types."""
    return echo.data if echo is not None and echo.data.get("type") in kinds else None


# --- usage


USAGE: Final = UsageFields(
    input=("input_tokens", "prompt_tokens"),
    output=("output_tokens", "completion_tokens"),
    cached=("input_tokens_details.cached_tokens",),
    cache_write=("input_tokens_details.cache_write_tokens",),
    reasoning=("output_tokens_details.reasoning_tokens",),
    sum="total_tokens",
    written=("input", "cached", "cache_write", "output", "reasoning", "sum"),
    always=("cached", "reasoning"),
)


def write_usage(usage: Usage | TokenCounts | None, strict: bool = False) -> JsonObject | None:
    """A usage object with both detail objects, which clients require. Other counts of the provider are kept, unless ``strict``
    omits what the specification does not have."""
    if usage is None or (usage.input_tokens is None and usage.output_tokens is None):
        return None
    body = USAGE.write(usage)
    raw = usage.raw
    if raw and "input_tokens" in raw and "total_tokens" in raw:
        return {**({} if strict else raw), **body, "total_tokens": whole_number(raw["total_tokens"]) or body["total_tokens"]}
    return body


def whole_number(value: object) -> int | None:
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) else None


# --- errors


_CODES: Final = frozenset(
    (
        "server_error",
        "rate_limit_exceeded",
        "invalid_prompt",
        "data_residency_mismatch",
        "bio_policy",
        "misalignment_policy_violation",
        "vector_store_timeout",
    )
)
"""The values that the specification allows in ``response.error.code``, in addition to the image errors."""


error_body = upstream_errors.typed_error_body


def response_error(error: StreamError, strict: bool = False) -> JsonObject:
    """``response.error`` of a failed response. Clients act on well-known codes, so the code is kept unless ``strict``."""
    code = error.code
    if strict and code not in _CODES and not code.startswith(("image_", "invalid_image", "invalid_base64_image")):
        code = {429: "rate_limit_exceeded", 400: "invalid_prompt"}.get(error.status, "server_error")
    return {"code": code, "message": error.message}
