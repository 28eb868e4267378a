"""Calls that streamglot's tool loop ran, as blocks of a remote MCP server, which no client runs.

The start of the block has the whole call, because clients that do not know the block ignore deltas of its arguments.
"""

from __future__ import annotations

from ...json_types import JsonObject
from ..own_tools import OWN_SERVER
from .wire import arguments_object


def own_call(call_id: str, name: str, arguments: str) -> JsonObject:
    given = arguments_object(arguments)
    return {"type": "mcp_tool_use", "id": call_id, "name": name, "server_name": OWN_SERVER, "input": given}


def own_result(call_id: str, text: str, is_error: bool) -> JsonObject:
    content = [{"type": "text", "text": text}]
    return {"type": "mcp_tool_result", "tool_use_id": call_id, "is_error": is_error, "content": content}
