"""Tools that the client expects its provider to host, answered by a tool of ours: as blocks of the provider's own kinds."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

import msgspec

from ...events import Echo, Event, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolResult
from ...json_types import JsonObject
from ..hosted_tools import HostedCall, sources_of
from ..own_tools import OWN_SERVER, own_id
from .wire import DIALECT

Content = list[JsonObject] | JsonObject


def _web_search(call: HostedCall) -> Content:
    """Clients show the title and the address. The tool's output is in the opaque field that clients return unchanged."""
    found = [(source.url, source.title, source.text) for source in sources_of(call.text)]
    return [
        {"type": "web_search_result", "url": url, "title": title, "encrypted_content": _opaque(text), "page_age": None}
        for url, title, text in found or [(f"urn:{OWN_SERVER}:{call.name}", call.query, call.text)]
    ]


def _web_fetch(call: HostedCall) -> Content:
    source = {"type": "text", "media_type": "text/plain", "data": call.text}
    document = {"type": "document", "source": source, "title": None, "citations": None}
    return {"type": "web_fetch_result", "url": call.query, "content": document, "retrieved_at": None}


def _code(call: HostedCall) -> Content:
    return {"type": "code_execution_result", "stdout": call.text, "stderr": "", "return_code": 0, "content": []}


_FORMS: Final[dict[str, Callable[[HostedCall], Content]]] = {
    "web_search": _web_search,
    "web_fetch": _web_fetch,
    "code_execution": _code,
}


def events(call: HostedCall) -> list[Event] | None:
    """The call and its result; None for a tool without a form of its own."""
    form = _FORMS.get(call.name)
    if form is None:
        return None
    call_id = own_id("srvtoolu_", call.call_id)
    content: Content = {"type": f"{call.name}_tool_result_error", "error_code": "unavailable"} if call.is_error else form(call)
    block = {"type": f"{call.name}_tool_result", "tool_use_id": call_id, "content": content}
    return [
        ToolCallStart(call_id, call.name, "server", Echo(DIALECT, {"type": "server_tool_use"})),
        ToolCallDelta(msgspec.json.encode(_input(call)).decode()),
        ToolCallEnd(),
        ToolResult(call_id, call.text, call.is_error, Echo(DIALECT, block)),
    ]


def _input(call: HostedCall) -> JsonObject:
    """The arguments under the names that clients read, beside those of our tool."""
    name, value = {
        "web_search": ("query", call.query),
        "web_fetch": ("url", call.query),
        "code_execution": ("code", call.code),
    }[call.name]
    return {name: value, **call.arguments}


def _opaque(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
