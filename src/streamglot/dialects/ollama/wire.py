"""The wire format: the fields of a line that are read (the decoder skips all others), usage, times, arguments and errors. And the
model listings that a server of this dialect has for its clients, in particular editors."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Raw, Struct

from ...events import StopReason, StreamError, Usage
from ...framing.lines import whole_characters
from ...json_types import JSON_ERRORS, JsonObject, JsonValue
from ...messages import TokenCounts
from ..common.function_tools import arguments_object
from ..common.lenient import loads
from ..common.tables import UsageFields, two_way
from ..common.writer import encode


class Function(Struct, gc=False):
    name: str | None = None
    arguments: Raw = Raw()


class Call(Struct, gc=False):
    id: str | None = None
    function: Function | None = None


class LineMessage(Struct, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[Call] | None = None
    images: list[str] | None = None


class Line(Struct, gc=False):
    """A line of either endpoint: ``message`` belongs to chat, ``response`` and ``thinking`` to generate."""

    model: str | None = None
    created_at: str | None = None
    message: LineMessage | None = None
    response: str | None = None
    thinking: str | None = None
    tool_calls: list[Call] | None = None
    image: str | None = None
    done: bool | None = None
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    context: JsonValue = None
    logprobs: JsonValue = None
    remote_model: str | None = None
    remote_host: str | None = None
    completed: int | None = None
    total: int | None = None
    debug: JsonValue = msgspec.field(default=None, name="_debug_info")
    error: JsonValue = None
    status_code: int | None = None


line_decoder: Final = msgspec.json.Decoder(Line)

COUNTERS: Final = (
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
)
"""Counters of the last line: durations in nanoseconds, counts in tokens. The wire omits a zero."""

REASONS, FINISH_OF = two_way({"end": ("stop",), "length": ("length",)}, other="stop")
LOADING: Final = frozenset(("load", "unload"))
"""Not an answer: the model was loaded or unloaded, because the request was empty."""


USAGE: Final = UsageFields(input=("prompt_eval_count",), output=("eval_count",))


def read_usage(line: Line) -> Usage | None:
    raw = {name: value for name in COUNTERS if (value := getattr(line, name)) is not None}
    if not raw:
        return None
    return USAGE.read(raw)


def write_usage(usage: Usage | TokenCounts | None) -> JsonObject:
    """The counters of the last line; with durations if the provider had this dialect."""
    if usage is None:
        return {}
    own = usage.raw if usage.raw is not None and not usage.raw.keys() - set(COUNTERS) else {}
    counters = {**own, "prompt_eval_count": usage.input_tokens, "eval_count": usage.output_tokens}
    return {name: counters[name] for name in COUNTERS if counters.get(name) is not None}


def done_reason(reason: StopReason, raw: str | None) -> str:
    return raw if raw in LOADING else FINISH_OF[reason]


def read_time(text: str | None) -> int:
    """Seconds since 1970 for an RFC 3339 time; 0 if it is invalid."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp()))


def write_time(created: int) -> str:
    try:
        moment = datetime.fromtimestamp(created, UTC)
    except (ValueError, OverflowError, OSError):
        moment = datetime.fromtimestamp(0, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def read_arguments(raw: Raw) -> str:
    """The arguments as JSON text with all digits kept; a string of JSON is unpacked."""
    text = bytes(raw).decode("utf-8", "replace").strip()
    if text.startswith('"'):
        value, _ = loads(text.encode())
        text = whole_characters(value).strip()
    return "{}" if text in ("", "null") else text


def arguments_line(text: str) -> bytes:
    """The arguments as one object on one line, numbers unchanged."""
    data = text.encode("utf-8", "replace")
    try:
        msgspec.json.decode(data, type=dict)
    except JSON_ERRORS:
        return encode(arguments_object(text))
    return msgspec.json.format(data, indent=-1)


# --- errors


def error_body(error: StreamError) -> JsonObject:
    return {"error": error.message or error.code}


# --- model listings

API_VERSION: Final = "0.13.0"
"""The API version that is reported. Editors refuse servers with an older version than they need."""
UNKNOWN_TIME: Final = "2026-01-01T00:00:00Z"
_NEVER: Final = "2318-04-10T00:00:00Z"
"""The unload time of a model that stays loaded."""
_CAPABILITIES: Final = ("completion", "tools")
_DETAILS: Final[JsonObject] = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": [],
    "parameter_size": "",
    "quantization_level": "",
}

Named = Iterable[tuple[str, str]]
"""Model names, each with its owner."""


def version() -> JsonObject:
    return {"version": API_VERSION}


def tags(models: Named) -> JsonObject:
    """The available models."""
    return {"models": [_entry(name, owner) for name, owner in models]}


def running(models: Named) -> JsonObject:
    """The loaded models: all of them, permanently."""
    more = {"expires_at": _NEVER, "size_vram": 0}
    return {"models": [{**_entry(name, owner), **more} for name, owner in models]}


def show(name: str, owner: str, context_tokens: int | None = None, capabilities: Iterable[str] = _CAPABILITIES) -> JsonObject:
    """One model. Editors read ``capabilities``, and the context length in ``model_info``."""
    known = {} if context_tokens is None else {f"{owner}.context_length": context_tokens}
    return {
        "license": "",
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": {**_DETAILS, "family": owner, "families": [owner]},
        "model_info": {"general.architecture": owner, "general.basename": name, **known},
        "capabilities": list(capabilities),
        "modified_at": UNKNOWN_TIME,
    }


def _entry(name: str, owner: str) -> JsonObject:
    details = {**_DETAILS, "family": owner, "families": [owner]}
    return {"name": name, "model": name, "modified_at": UNKNOWN_TIME, "size": 0, "digest": "", "details": details}
