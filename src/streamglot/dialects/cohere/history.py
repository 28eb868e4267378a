"""The messages of a Cohere chat request, in both directions."""

from __future__ import annotations

from typing import Final

from msgspec import structs

from ...errors import Unsupported
from ...events import Echo
from ...json_types import JsonObject
from ...messages import (
    MediaPart,
    Message,
    NativePart,
    Part,
    ReasoningPart,
    RefusalPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from ..common.conversation import add_parts, result_content, without_results
from ..common.function_tools import arguments_text, build_call, parse_call
from ..echo import unpack
from ..fields import Fields, named_part
from ..media import build_image, parse_image
from .wire import DIALECT, read_citation

_ROLES: Final = ("system", "user", "assistant", "tool")
NO_OUTPUT: Final = "(the tool gave no output)"


# --- the client's messages


def parse_messages(messages: list[Fields]) -> list[Message]:
    parsed: list[Message] = []
    for fields in messages:
        role = fields.need("role", str)
        match role:
            case "system" | "user":
                parsed.append(Message(role, fields.content(_parse_part)))
            case "assistant":
                parsed.append(_parse_assistant(fields))
            case "tool":
                content = result_content(fields.content(_parse_part))
                add_parts(parsed, "tool", ToolResultPart(fields.need("tool_call_id", str), content))
            case _:
                raise fields.wrong("role", " or ".join(_ROLES), role)
    return parsed


def _parse_assistant(fields: Fields) -> Message:
    parts: list[Part] = []
    plan = fields.take("tool_plan", str)
    if plan:
        parts.append(ReasoningPart(plan, echo=Echo(DIALECT, {"field": "tool_plan"})))
    parts += fields.content(_parse_part)
    cited = [read_citation(citation.rest) for citation in fields.objects("citations")]
    text = next((part for part in reversed(parts) if isinstance(part, TextPart)), None)
    if cited and text is not None:
        text.citations = cited
    parts += [parse_call(call, call.need("id", str)) for call in fields.objects("tool_calls")]
    return Message("assistant", parts)


def _parse_part(part: Fields) -> Part:
    kind = part.need("type", str)
    match kind:
        case "text":
            return TextPart(part.need("text", str))
        case "thinking":
            packed = unpack(part.take("signature", str, ""))
            return ReasoningPart(part.need("thinking", str), echo=packed or Echo(DIALECT, {"field": "thinking"}))
        case "image_url":
            return parse_image(part)
    return NativePart(DIALECT, {"type": kind, **part.rest})


# --- the upstream's messages


def build_messages(messages: list[Message]) -> list[JsonObject]:
    built: list[JsonObject] = []
    for message in messages:
        rest, results = without_results(message)
        results = [result for result in results if result.kind != "server"]
        shown: list[Part] = []
        for result in results:
            built.append(_build_result(result, shown))
        if message.role == "assistant":
            built.append(_build_assistant(rest))
        elif rest or not results:
            role = "system" if message.role in ("system", "developer") else "user"
            built.append({"role": role, "content": _build_content([*shown, *rest])})
        elif shown:
            built.append({"role": "user", "content": _build_content(shown)})
    return built


def _build_result(result: ToolResultPart, shown: list[Part]) -> JsonObject:
    """A message for one result. Images, which it cannot contain, go to ``shown``, for a user message after it."""
    content: list[JsonObject] = []
    for part in result.content:
        match part:
            case TextPart():
                text = f"Error: {part.text}" if result.is_error and not content else part.text
                content.append({"type": "text", "text": text})
            case MediaPart():
                shown += [TextPart(f"The tool call {result.call_id} returned:"), part]
                content.append({"type": "text", "text": "(see the next message)"})
            case _:
                content.append(_build_part(part))
    if len(content) <= 1 and all(piece["type"] == "text" for piece in content):
        return {
            "role": "tool",
            "tool_call_id": result.call_id,
            "content": (content[0]["text"] if content else "") or NO_OUTPUT,
        }
    return {"role": "tool", "tool_call_id": result.call_id, "content": content}


def _build_assistant(parts: list[Part]) -> JsonObject:
    body: JsonObject = {"role": "assistant"}
    content: list[Part] = []
    calls: list[JsonObject] = []
    for part in parts:
        match part:
            case ReasoningPart():
                field = None if part.echo is None else part.echo.data.get("field")
                if field == "tool_plan":
                    body["tool_plan"] = body.get("tool_plan", "") + part.text
                elif field is not None:
                    content.append(NativePart(DIALECT, {"type": "thinking", "thinking": part.text}))
            case ToolCallPart(kind="server"):
                pass
            case ToolCallPart():
                calls.append(build_call(structs.replace(part, arguments=arguments_text(part.arguments))))
            case _:
                content.append(part)
    if content:
        body["content"] = _build_content(content)
    if calls:
        body["tool_calls"] = calls
    elif "content" not in body:
        body["content"] = ""
    return body


def _build_content(parts: list[Part]) -> str | list[JsonObject]:
    if all(isinstance(part, (TextPart, RefusalPart)) for part in parts):
        return "".join(part.text for part in parts if isinstance(part, (TextPart, RefusalPart)))
    return [_build_part(part) for part in parts]


def _build_part(part: Part) -> JsonObject:
    match part:
        case TextPart() | RefusalPart():
            return {"type": "text", "text": part.text}
        case MediaPart() if part.mime.startswith("image/") and not part.file_id:
            return build_image(part)
        case MediaPart():
            raise Unsupported(f"media of the type {part.mime!r} cannot be sent to this upstream; it takes images and text")
        case NativePart(dialect="cohere"):
            return part.data
    raise Unsupported(f"{named_part(part)} cannot be expressed in a message to this upstream")
