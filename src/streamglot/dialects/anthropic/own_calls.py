"""The blocks of calls. Those that streamglot's tool loop ran are blocks of a remote MCP server, which no client runs.

The start of the block has the whole call, because clients that do not know the block ignore deltas of its arguments.
"""

from __future__ import annotations

from ...events import ToolCallStart
from ...json_types import JsonObject
from ...messages import ToolCallPart
from ..own_tools import OWN_SERVER
from .state import wire_id
from .wire import arguments_object


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
