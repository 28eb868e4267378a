"""Reasoning and calls of a whole answer that stand only in its ``extensions``, the pieces as they were generated."""

from __future__ import annotations

from msgspec import convert

from ...json_types import JsonObject, JsonValue
from .details import shown
from .wire import CallDelta, Delta


def complete(message: Delta, extensions: JsonObject) -> None:
    """Adds the reasoning and the calls that the message itself lacks. A call with a result was run by the server."""
    if not _has_reasoning(message):
        pieces = [piece for piece in _list(extensions, "reasoning_chunks") if isinstance(piece, str)]
        message.reasoning = "".join(pieces) or message.reasoning
    if not message.tool_calls and message.function_call is None:
        message.tool_calls = _calls(_list(extensions, "tool_call_chunks")) or message.tool_calls


def _has_reasoning(message: Delta) -> bool:
    if message.reasoning or message.reasoning_content:
        return True
    if any(isinstance(entry, dict) and shown(entry)[0] for entry in message.reasoning_details or ()):
        return True
    parts = message.content if isinstance(message.content, list) else ()
    return any(isinstance(part, dict) and part.get("type") == "thinking" for part in parts)


def _list(extensions: JsonObject, name: str) -> list[JsonValue]:
    value = extensions.get(name)
    return value if isinstance(value, list) else []


def _calls(chunks: list[JsonValue]) -> list[CallDelta]:
    names: dict[str, str] = {}
    arguments: dict[str, list[str]] = {}
    for chunk in chunks:
        if not isinstance(chunk, dict):
            continue
        call_id, name, delta = chunk.get("tool_call_id"), chunk.get("tool_name"), chunk.get("delta")
        if not isinstance(call_id, str):
            continue
        match chunk.get("type"):
            case "start" if isinstance(name, str) and name:
                names[call_id], arguments[call_id] = name, []
            case "args" if call_id in names and isinstance(delta, str):
                arguments[call_id].append(delta)
            case "result":
                names.pop(call_id, None)
    calls = [
        {"index": index, "id": call_id, "function": {"name": name, "arguments": "".join(arguments[call_id])}}
        for index, (call_id, name) in enumerate(names.items())
    ]
    return convert(calls, list[CallDelta])
