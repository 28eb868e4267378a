"""The wire format: the fields of a GenerateContentResponse that are read, finish reasons, usage and errors.

Enums that some client libraries write as numbers become names, because the official client fails on the numbers. Schemas of this
dialect, a subset of OpenAPI with upper-case types, become JSON schema.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Raw, Struct, structs

from ...errors import UpstreamProtocolError
from ...events import StopReason, StreamError, Usage
from ...json_types import JsonObject, JsonValue
from ...messages import TokenCounts
from ..common.lenient import loads
from ..common.tables import UsageFields, count, specified, total, two_way

# --- enums

_SAFETY: Final = ("HATE_SPEECH", "DANGEROUS_CONTENT", "HARASSMENT", "SEXUALLY_EXPLICIT")
_PROBABILITIES: Final = {1: "NEGLIGIBLE", 2: "LOW", 3: "MEDIUM", 4: "HIGH"}
ENUM_NAMES: Final[dict[str, dict[int, str]]] = {
    "category": {
        **{number: f"HARM_CATEGORY_{word}" for number, word in enumerate(_SAFETY, 1)},
        7: "HARM_CATEGORY_HARASSMENT",
        8: "HARM_CATEGORY_HATE_SPEECH",
        9: "HARM_CATEGORY_SEXUALLY_EXPLICIT",
        10: "HARM_CATEGORY_DANGEROUS_CONTENT",
    },
    "probability": _PROBABILITIES,
    "severity": {number: f"HARM_SEVERITY_{word}" for number, word in _PROBABILITIES.items()},
    "modality": {1: "TEXT", 2: "IMAGE", 3: "VIDEO", 4: "AUDIO", 5: "DOCUMENT"},
    "trafficType": {1: "ON_DEMAND", 2: "PROVISIONED_THROUGHPUT"},
    "blockReason": {1: "SAFETY", 2: "OTHER", 3: "BLOCKLIST", 4: "PROHIBITED_CONTENT"},
    "urlRetrievalStatus": {1: "URL_RETRIEVAL_STATUS_SUCCESS", 2: "URL_RETRIEVAL_STATUS_ERROR"},
}
"""The two APIs number the harm categories differently, but no number has two meanings."""


def named_enums(value: object) -> JsonValue:
    """The same metadata with names instead of numbers; unknown numbers are dropped."""
    if isinstance(value, list):
        return [named_enums(element) for element in value]
    if not isinstance(value, dict):
        return value
    named: JsonObject = {}
    for key, inner in value.items():
        if key not in ENUM_NAMES or not isinstance(inner, int):
            named[key] = named_enums(inner)
        elif inner in ENUM_NAMES[key]:
            named[key] = ENUM_NAMES[key][inner]
        elif key == "blockReason" and inner:
            named[key] = "OTHER"
    return named


# --- chunks

NO_VALUE: Final = Raw(b"")


class PartialArg(Struct, rename="camel", gc=False):
    json_path: str | None = None
    string_value: str | None = None
    number_value: int | float | None = None
    bool_value: bool | None = None
    null_value: Raw = NO_VALUE
    will_continue: bool | None = None


class FunctionCall(Struct, rename="camel", gc=False):
    """``args`` are kept as written, so that numbers keep all their digits."""

    id: str | None = None
    name: str | None = None
    args: Raw = NO_VALUE
    partial_args: list[PartialArg] | None = None
    will_continue: bool | None = None


class Blob(Struct, rename="camel", gc=False):
    mime_type: str | None = None
    data: str | None = None
    file_uri: str | None = None


class Part(Struct, rename="camel", gc=False):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: FunctionCall | None = None
    inline_data: Blob | None = None
    file_data: Blob | None = None
    executable_code: JsonObject | None = None
    code_execution_result: JsonObject | None = None
    tool_call: JsonObject | None = None
    tool_response: JsonObject | None = None
    function_response: JsonObject | None = None
    part_metadata: JsonValue = None
    video_metadata: JsonValue = None
    media_resolution: JsonValue = None
    audio_transcription: JsonValue = None


PART_MODIFIERS: Final = {
    "part_metadata": "partMetadata",
    "video_metadata": "videoMetadata",
    "media_resolution": "mediaResolution",
    "audio_transcription": "audioTranscription",
}


class Content(Struct, gc=False):
    parts: list[Part] | None = None


class Candidate(Struct, rename="camel", gc=False):
    index: int | None = None
    content: Content | None = None
    finish_reason: str | int | None = None
    finish_message: JsonValue = None
    safety_ratings: JsonValue = None
    citation_metadata: JsonValue = None
    grounding_metadata: JsonValue = None
    url_context_metadata: JsonValue = None
    logprobs_result: JsonValue = None
    avg_logprobs: JsonValue = None
    token_count: JsonValue = None
    continuation_token: JsonValue = None


CANDIDATE_EXTRAS: Final = {
    "finish_message": "finishMessage",
    "safety_ratings": "safetyRatings",
    "citation_metadata": "citationMetadata",
    "grounding_metadata": "groundingMetadata",
    "url_context_metadata": "urlContextMetadata",
    "logprobs_result": "logprobsResult",
    "avg_logprobs": "avgLogprobs",
    "token_count": "tokenCount",
    "continuation_token": "continuationToken",
}


class Chunk(Struct, rename="camel", gc=False):
    candidates: list[Candidate] | None = None
    prompt_feedback: JsonObject | None = None
    usage_metadata: JsonObject | None = None
    model_version: str | None = None
    response_id: str | None = None
    create_time: str | None = None
    error: JsonValue = None


chunk_decoder: Final = msgspec.json.Decoder(Chunk)

# --- camelCase and snake_case

_SNAKE: Final = re.compile(rb'"[a-z]+(?:_[a-z]+)+"\s*:')
_OPAQUE: Final = frozenset(("args", "response", "partMetadata", "customMetadata"))
"""Objects with keys of the client."""


def camel_case(data: bytes) -> bytes:
    """The frame with its keys in camelCase. Most frames have no underscore and cost one check."""
    if b"_" not in data or not _SNAKE.search(data):
        return data
    try:
        return json.dumps(camel_keys(loads(data)[0])).encode()
    except (UpstreamProtocolError, RecursionError):
        return data


def camel_keys(value: object) -> JsonValue:
    if isinstance(value, list):
        return [camel_keys(element) for element in value]
    if not isinstance(value, dict):
        return value
    return {(name := camel(key)): inner if name in _OPAQUE else camel_keys(inner) for key, inner in value.items()}


def camel(key: str) -> str:
    head, *tail = key.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in tail) if head else key


# --- finish reasons

REASONS, FINISH_OF = two_way(
    {
        "end": ("STOP",),
        "stop_sequence": ("STOP",),
        "length": ("MAX_TOKENS",),
        "tool_calls": ("STOP",),
        "content_filter": (
            *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"),
            *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "IMAGE_OTHER"),
        ),
        "refusal": ("SAFETY",),
        "pause": ("CONTINUATION",),
        "other": ("OTHER", "NO_IMAGE", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"),
    },
    other="OTHER",
)
UNSPECIFIED: Final = frozenset(("", "0", "FINISH_REASON_UNSPECIFIED", "BLOCKED_REASON_UNSPECIFIED", "BLOCK_REASON_UNSPECIFIED"))
"""The default of the enum, which the API never uses: not an end."""
NUMBERED: Final[dict[str, str]] = {
    "1": "STOP",
    "2": "MAX_TOKENS",
    "3": "SAFETY",
    "4": "RECITATION",
    "5": "OTHER",
    "6": "LANGUAGE",
    "7": "BLOCKLIST",
    "8": "PROHIBITED_CONTENT",
    "11": "IMAGE_SAFETY",
    "12": "UNEXPECTED_TOOL_CALL",
    "13": "TOO_MANY_TOOL_CALLS",
}
"""Enums that a client library wrote as numbers. AI Studio and Vertex AI agree up to 5, mean a filter by 6 to 8, and contradict
each other at 9 and 10, which count as unknown."""

MALFORMED_CALL: Final = "MALFORMED_FUNCTION_CALL"
"""The model wrote an invalid call. It is an error, not an end."""


def read_reason(raw: str, calls: int) -> StopReason:
    """The meaning of a finish reason. Calls end with STOP like everything else, so the blocks decide."""
    reason = REASONS.get(NUMBERED.get(raw, raw).upper())
    if reason is None or reason == "end":
        return "tool_calls" if calls else reason or "other"
    return reason


def write_reason(reason: StopReason | None, raw: str | None) -> str:
    """The provider's own value if it had this dialect, so that RECITATION does not become SAFETY."""
    if raw is not None and reason is not None:
        word = NUMBERED.get(raw, raw)
        if word in REASONS and read_reason(word, reason == "tool_calls") == reason:
            return word
    return FINISH_OF[reason or "other"]


# --- usage and time

_COUNTS: Final = ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "toolUsePromptTokenCount", "totalTokenCount")


def merge_usage(before: JsonObject, raw: JsonObject) -> JsonObject:
    """Usage is repeated, not always with every field: the last value of each wins."""
    return {**before, **{name: value for name, value in raw.items() if value is not None}}


USAGE: Final = UsageFields(
    input=("promptTokenCount",),
    output=("candidatesTokenCount",),
    cached=("cachedContentTokenCount",),
    reasoning=("thoughtsTokenCount",),
    sum="totalTokenCount",
    apart=("reasoning",),
    written=("input", "output", "sum", "reasoning", "cached"),
)


def read_usage(raw: JsonObject) -> Usage | None:
    usage, tools = USAGE.read(raw), count(raw, "toolUsePromptTokenCount")
    if tools is not None:
        return structs.replace(usage, input_tokens=total(usage.input_tokens, tools))
    is_known = usage.input_tokens is not None or usage.output_tokens is not None or count(raw, "totalTokenCount") is not None
    return usage if is_known else None


_USAGE_FIELDS: Final[dict[str, frozenset[str]]] = dict.fromkeys(
    (
        *_COUNTS,
        *("cacheTokensDetails", "candidatesTokensDetails", "promptTokensDetails", "toolUsePromptTokensDetails"),
        *("cachedContentTokenCount", "trafficType"),
    ),
    frozenset(),
)
"""The usage object of the specification."""


def write_usage(usage: Usage | TokenCounts | None, strict: bool = False) -> JsonObject | None:
    """A usageMetadata object: the provider's own if it had this dialect."""
    if usage is None or (usage.input_tokens is None and usage.output_tokens is None):
        return None
    if usage.raw and any(name in usage.raw for name in _COUNTS):
        own = dict(named_enums(usage.raw))
        return specified(own, _USAGE_FIELDS) if strict else own
    return USAGE.write(usage)


def read_time(text: str | None) -> int:
    """``createTime`` in seconds; 0 if it is missing."""
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp())) if text else 0
    except (ValueError, OverflowError, OSError):
        return 0


# --- errors


STATUS_OF: Final[dict[int, str]] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    529: "UNAVAILABLE",
}


def error_body(error: StreamError) -> JsonObject:
    """The error object, in an HTTP response and in a stream. Clients choose their exception by ``code``, which is the HTTP
    status; our own code is in the details."""
    status = STATUS_OF.get(error.status, "INTERNAL" if error.status >= 500 else "INVALID_ARGUMENT")
    detail = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": error.code, "domain": "streamglot"}
    return {"error": {"code": error.status, "message": error.message, "status": status, "details": [detail]}}


# --- schemas

_DROPPED: Final = frozenset(("propertyOrdering", "nullable", "example"))
_NUMBERS: Final = frozenset(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"))
_INNER: Final = frozenset(("items", "additionalProperties", "not"))
_LISTS: Final = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_MAPS: Final = frozenset(("properties", "$defs", "defs"))


def json_schema(schema: object) -> JsonValue:
    """Types in lower case, ``nullable`` as a type, numeric strings as numbers; property names are kept."""
    if not isinstance(schema, dict):
        return schema
    plain: JsonObject = {}
    for key, value in schema.items():
        name = camel(key)
        if name == "type" and isinstance(value, str):
            plain[name] = value.lower()
        elif name in _MAPS and isinstance(value, dict):
            plain["$defs" if name == "defs" else name] = {inner: json_schema(entry) for inner, entry in value.items()}
        elif name in _LISTS and isinstance(value, list):
            plain[name] = [json_schema(entry) for entry in value]
        elif name in _INNER:
            plain[name] = json_schema(value)
        elif name in _NUMBERS and isinstance(value, str) and value.isdigit():
            plain[name] = int(value)
        elif name not in _DROPPED:
            plain["$ref" if name == "ref" else name] = value
    if schema.get("nullable") is True and isinstance(plain.get("type"), str):
        plain["type"] = [plain["type"], "null"]
        if isinstance(plain.get("enum"), list) and None not in plain["enum"]:
            plain["enum"] = [*plain["enum"], None]
    return plain
