"""Tools, choices and calls as the wires have them that follow chat completions, and the arguments of calls for all wires.

Most of these wires have the same objects in other places: a tool and a call have an object ``function``, or its fields beside their
type. A dialect's own fields, and its own places, stay in its ``request.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from ...json_types import JSON_ERRORS, JsonObject, JsonValue
from ...messages import ToolCallPart, ToolChoice, ToolSpec
from .fields import Fields

NO_PARAMETERS: Final[JsonObject] = {"type": "object", "properties": {}}
"""The schema of a function without parameters. Most APIs require one."""


# --- tools


def parse_function(function: Fields) -> ToolSpec:
    """A function by its name, its description and its schema."""
    return ToolSpec(function.need("name", str), function.take("description", str, ""), function.take("parameters", dict))


def build_function(tool: ToolSpec) -> JsonObject:
    """The declaration of a function, or of a custom tool, which has a format instead of a schema."""
    body: JsonObject = {"name": tool.name}
    if tool.description:
        body["description"] = tool.description
    if tool.kind == "custom":
        return body if tool.format is None else {**body, "format": tool.format}
    body["parameters"] = tool.parameters or NO_PARAMETERS
    if tool.strict is not None:
        body["strict"] = tool.strict
    return body


# --- choices


def parse_choice(fields: Fields, name: str, *, lists: bool = False) -> ToolChoice | None:
    """The choice in this field: a word, a named tool in any of the forms that clients send, or a list of allowed tools (``lists``)."""
    value = fields.any(name)
    match value:
        case None:
            return None
        case "auto" | "none" | "required":
            return ToolChoice(value)
        case "any":
            return ToolChoice("required")
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(tools)}} if lists:
            names = [_named(tool) for tool in tools]
        case {"type": "function" | "custom" | "tool"}:
            mode, names = "required", [_named(value)]
        case _:
            mode, names = "required", [None]
    if any(found is None for found in names):
        raise fields.wrong(
            name, f"auto, none, required{', a named tool or allowed_tools' if lists else ' or a named tool'}", value
        )
    return ToolChoice(mode, [found for found in names if found is not None])


def _named(tool: JsonValue) -> str | None:
    match tool:
        case {"function": {"name": str(name)}} | {"custom": {"name": str(name)}} | {"type": "tool", "toolName": str(name)}:
            return name
    return None


def build_choice(choice: ToolChoice, name_tool: Callable[[str], JsonObject], *, nested: bool) -> str | JsonObject:
    """The choice as a word, one named tool or a list of allowed ones. ``nested``: the list is in an object of its own."""
    if not choice.tools or choice.mode == "none":
        return choice.mode
    tools = [name_tool(name) for name in choice.tools]
    if len(tools) == 1 and choice.mode == "required":
        return tools[0]
    allowed = {"mode": choice.mode, "tools": tools}
    return {"type": "allowed_tools", **({"allowed_tools": allowed} if nested else allowed)}


# --- calls


def parse_call(call: Fields, call_id: str) -> ToolCallPart:
    """A call of a function. Its arguments are text, or the object itself."""
    function = call.need_inner("function")
    arguments = arguments_text(function.any("arguments"))
    return ToolCallPart(call_id, function.need("name", str), arguments)


def build_call(part: ToolCallPart) -> JsonObject:
    """A call of a function, or of a custom tool."""
    if part.kind == "custom":
        return {"id": part.call_id, "type": "custom", "custom": {"name": part.name, "input": part.arguments}}
    return {"id": part.call_id, "type": "function", "function": {"name": part.name, "arguments": part.arguments}}


def arguments_text(arguments: JsonValue) -> str:
    """The arguments of a call as JSON text. No arguments are an empty object."""
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
    return text if text.strip() else "{}"


def arguments_object(text: str) -> JsonObject:
    """The arguments of a call as an object. Any other value, and text that is not JSON, is put into one under ``input``."""
    if not text.strip():
        return {}
    try:
        value = msgspec.json.decode(text.encode("utf-8", "replace"))
    except JSON_ERRORS:
        value = text
    return value if isinstance(value, dict) else {"input": value}


def call_arguments(part: ToolCallPart) -> JsonObject:
    """The same for a call, whose arguments are free text if the tool is a custom one."""
    return {"input": part.arguments} if part.kind == "custom" else arguments_object(part.arguments)
