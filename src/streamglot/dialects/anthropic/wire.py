"""The wire format: the fields of stream events that are read, stop reasons, usage, citations and errors, and the blocks of calls
and of opaque state.

A client of this dialect keeps and returns the signature of a ``thinking`` block and the data of a ``redacted_thinking`` block.
State in the format of this dialect is written into them unchanged; any other is packed, so that it comes back with the name of
its maker. The wire has no field for the state of a text or a call; it follows the block in a
``redacted_thinking`` block of its own.

Calls that streamglot's tool loop ran are blocks of a remote MCP server, which no client runs. The start of such a block has the
whole call, because clients that do not know the block ignore deltas of its arguments. If a tool of ours answers a tool that the
client expects its provider to host, the blocks are of the provider's own kinds.
"""

from __future__ import annotations

import base64
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from ...events import Citation, Echo, Event, StopReason, StreamError, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolResult, Usage
from ...json_types import JsonObject, JsonValue
from ...messages import TokenCounts, ToolCallPart
from ..common import upstream_errors
from ..common.server_tools import OWN_SERVER, HostedCall, own_id, sources_of
from ..common.state import is_native, pack, unpack
from ..common.tables import UsageFields, specified, two_way

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


KINDS: Final = frozenset((*upstream_errors.TYPE_OF.values(), "api_error"))


def error_body(error: StreamError) -> JsonObject:
    """The error object, in an HTTP response and in a stream. Clients act on ``type``, above all in a stream, whose status is
    200."""
    kind = error.code if error.code in KINDS else upstream_errors.TYPE_OF.get(error.status, "api_error")
    if kind == "api_error" and 400 <= error.status < 500:
        kind = "invalid_request_error"
    body: JsonObject = {"type": kind, "message": error.message}
    if error.code != kind:
        body["details"] = {"error_code": error.code}
    return {"type": "error", "error": body}


# --- opaque state and foreign ids in fields of this dialect

_VALID_ID = re.compile(r"[a-zA-Z0-9_-]+")
_ID_MARK = "toolu_sg1_"
_CUSTOM_MARK = "toolu_sgc_"
_BEFORE = "block_before"

LATE_TEXT: Final = Echo("streamglot", {"late_text": True})
"""Signs a thinking block that is really text: text that came after a call (see ``write.py``)."""


def packed(echo: Echo) -> str:
    """The signature of a thinking block, or the data of a redacted one."""
    if is_native(echo, DIALECT):
        for name in ("signature", "data"):
            if isinstance(echo.data.get(name), str):
                own: str = echo.data[name]
                return own
    return pack(echo)


def unpacked(text: str, field: str) -> Echo | None:
    """The echo in a client's ``signature`` or ``data``; None if that is empty."""
    return unpack(text) or (Echo(DIALECT, {field: text}) if text else None)


def packed_beside(echo: Echo) -> str:
    """The state of the previous block, for a redacted block."""
    return pack(Echo(echo.provider, {_BEFORE: echo.data}))


def beside(echo: Echo | None) -> Echo | None:
    """The state that ``packed_beside`` packed, or None if this echo belongs to the block itself."""
    if echo is not None and set(echo.data) == {_BEFORE} and isinstance(echo.data[_BEFORE], dict):
        return Echo(echo.provider, echo.data[_BEFORE])
    return None


def is_redacted(echo: Echo) -> bool:
    """Whether this is the state of a redacted block of this dialect."""
    return is_native(echo, DIALECT) and "data" in echo.data


def wire_id(call_id: str, custom: bool = False) -> str:
    """The id in a form that this dialect accepts. An id with other characters is encoded reversibly; so is the id of a custom
    tool's call, because the client has no other field to say that it was one."""
    if not custom and _VALID_ID.fullmatch(call_id):
        return call_id
    mark = _CUSTOM_MARK if custom else _ID_MARK
    return mark + urlsafe_b64encode(call_id.encode("utf-8", "replace")).decode().rstrip("=")


def is_custom(wire: str) -> bool:
    return wire.startswith(_CUSTOM_MARK)


def read_id(wire: str) -> str:
    """The id that ``wire_id`` encoded, or the id itself."""
    if wire.startswith((_ID_MARK, _CUSTOM_MARK)):
        inner = wire[len(_ID_MARK) :]
        try:
            return urlsafe_b64decode(inner + "=" * (-len(inner) % 4)).decode()
        except ValueError:
            return wire
    return wire


# --- calls


def call_block(call: ToolCallPart | ToolCallStart, own: JsonObject | None, given: JsonObject) -> JsonObject | None:
    """A call with these arguments; ``own`` are its fields in this dialect. None for one that a provider of another dialect ran."""
    if call.kind == "server":
        return None if own is None else {**own, "id": call.call_id, "name": call.name, "input": given}
    wire = wire_id(call.call_id, call.kind == "custom")
    return {"type": "tool_use", "id": wire, "name": call.name, "input": given, **(own or {})}


def own_call(call_id: str, name: str, arguments: str) -> JsonObject:
    given = arguments_object(arguments)
    return {"type": "mcp_tool_use", "id": call_id, "name": name, "server_name": OWN_SERVER, "input": given}


def own_result(call_id: str, text: str, is_error: bool) -> JsonObject:
    content = [{"type": "text", "text": text}]
    return {"type": "mcp_tool_result", "tool_use_id": call_id, "is_error": is_error, "content": content}


# --- tools that the client expects its provider to host, answered by a tool of ours

HostedContent = list[JsonObject] | JsonObject
"""The content of a result."""


def _web_search(call: HostedCall) -> HostedContent:
    """Clients show the title and the address. The tool's output is in the opaque field that clients return unchanged."""
    found = [(source.url, source.title, source.text) for source in sources_of(call.text)]
    return [
        {"type": "web_search_result", "url": url, "title": title, "encrypted_content": _opaque(text), "page_age": None}
        for url, title, text in found or [(f"urn:{OWN_SERVER}:{call.name}", call.query, call.text)]
    ]


def _web_fetch(call: HostedCall) -> HostedContent:
    source = {"type": "text", "media_type": "text/plain", "data": call.text}
    document = {"type": "document", "source": source, "title": None, "citations": None}
    return {"type": "web_fetch_result", "url": call.query, "content": document, "retrieved_at": None}


def _code_execution(call: HostedCall) -> HostedContent:
    return {"type": "code_execution_result", "stdout": call.text, "stderr": "", "return_code": 0, "content": []}


_HOSTED: Final[dict[str, Callable[[HostedCall], HostedContent]]] = {
    "web_search": _web_search,
    "web_fetch": _web_fetch,
    "code_execution": _code_execution,
}


def hosted_events(call: HostedCall) -> list[Event] | None:
    """The call and its result; None for a tool without a form of its own."""
    form = _HOSTED.get(call.name)
    if form is None:
        return None
    call_id = own_id("srvtoolu_", call.call_id)
    content: HostedContent = (
        {"type": f"{call.name}_tool_result_error", "error_code": "unavailable"} if call.is_error else form(call)
    )
    block = {"type": f"{call.name}_tool_result", "tool_use_id": call_id, "content": content}
    return [
        ToolCallStart(call_id, call.name, "server", Echo(DIALECT, {"type": "server_tool_use"})),
        ToolCallDelta(msgspec.json.encode(_hosted_input(call)).decode()),
        ToolCallEnd(),
        ToolResult(call_id, call.text, call.is_error, Echo(DIALECT, block)),
    ]


def _hosted_input(call: HostedCall) -> JsonObject:
    """The arguments under the names that clients read, beside those of our tool."""
    name, value = {
        "web_search": ("query", call.query),
        "web_fetch": ("url", call.query),
        "code_execution": ("code", call.code),
    }[call.name]
    return {name: value, **call.arguments}


def _opaque(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
