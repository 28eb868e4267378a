"""The messages of a chat request, in both directions. Results are matched to calls by id, by the tool's name, or by order."""

from __future__ import annotations

from ...errors import Unsupported
from ...events import Echo
from ...json_types import JsonObject
from ...messages import (
    Built,
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
from ..common.conversation import add_parts, without_results
from ..common.function_tools import arguments_object, parse_call
from ..fields import Fields, named_part
from ..media import image_type, media_from_url
from ..tool_results import split_results

DIALECT = "ollama"


# --- the client's messages


class _Calls:
    """The calls so far. Calls without ids get one, and results find the call that they belong to."""

    def __init__(self) -> None:
        self._count = 0
        self._open: list[ToolCallPart] = []

    def add(self, call: Fields) -> ToolCallPart:
        self._count += 1
        part = parse_call(call, call.take("id", str) or f"call_{self._count}")
        self._open.append(part)
        return part

    def answered(self, call_id: str, name: str) -> tuple[str, str]:
        """The id and the name of the call that this result belongs to."""
        for part in self._open:
            if (part.call_id == call_id) if call_id else (part.name == name if name else True):
                self._open.remove(part)
                return part.call_id, name or part.name
        return call_id or f"call_{name or self._count}", name


def parse_messages(messages: list[Fields]) -> list[Message]:
    parsed: list[Message] = []
    calls = _Calls()
    for fields in messages:
        role = fields.need("role", str).lower()
        match role:
            case "system" | "user":
                parsed.append(Message(role, parse_content(fields)))
            case "assistant":
                thinking = fields.take("thinking", str)
                parts: list[Part] = [ReasoningPart(thinking, echo=Echo(DIALECT, {"field": "thinking"}))] if thinking else []
                parts += parse_content(fields)
                parts += [calls.add(call) for call in fields.objects("tool_calls")]
                parsed.append(Message("assistant", parts))
            case "tool":
                name = fields.take("tool_name", str, "") or fields.take("name", str, "")
                call_id, name = calls.answered(fields.take("tool_call_id", str, ""), name)
                content = [part for part in parse_content(fields) if isinstance(part, (TextPart, MediaPart))]
                add_parts(parsed, "tool", ToolResultPart(call_id, [*content], name=name))
            case _:
                raise fields.wrong("role", "system or user or assistant or tool", role)
    return parsed


def parse_content(fields: Fields, name: str = "content") -> list[Part]:
    text = fields.take(name, str, "")
    parts: list[Part] = [TextPart(text)] if text else []
    for image in fields.words("images"):
        bare = not image.startswith("data:")
        parts.append(MediaPart(image_type(image, "image/png"), image) if bare else media_from_url(image, "image/png"))
    return parts


# --- the upstream's messages


def build_messages(messages: list[Message], built: Built) -> list[JsonObject]:
    bodies: list[JsonObject] = []
    names = {part.call_id: part.name for message in messages for part in message.parts if isinstance(part, ToolCallPart)}
    for message in messages:
        rest, results = without_results(message)
        bodies += _build_results(results, names, built)
        if message.role == "assistant":
            bodies.append(_build_assistant(rest, built))
        elif rest or not results:
            role = "system" if message.role in ("system", "developer") else "user"
            bodies.append({"role": role, **build_content(rest, built)})
        if message.name:
            built.drop("messages.name")
    return bodies


def _build_results(results: list[ToolResultPart], names: dict[str, str], built: Built) -> list[JsonObject]:
    """A message for each result. Their images follow in a user message."""
    bodies: list[JsonObject] = []
    texts, shown = split_results(results, (MediaPart, NativePart))
    for result, text in texts:
        body = {"role": "tool", "content": text, "tool_call_id": result.call_id}
        name = result.name or names.get(result.call_id, "")
        bodies.append({**body, "tool_name": name} if name else body)
    if shown:
        bodies.append({"role": "user", **build_content(shown, built)})
    return bodies


def _build_assistant(parts: list[Part], built: Built) -> JsonObject:
    calls = [part for part in parts if isinstance(part, ToolCallPart) and part.kind != "server"]
    thoughts = [part for part in parts if isinstance(part, ReasoningPart)]
    content: list[Part] = [part for part in parts if not isinstance(part, (ToolCallPart, ReasoningPart))]
    body: JsonObject = {"role": "assistant", **build_content(content, built)}
    thinking = "".join(part.text for part in thoughts)
    if thinking:
        body["thinking"] = thinking
    if calls:
        body["tool_calls"] = [_build_call(part) for part in calls]
    return body


def _build_call(part: ToolCallPart) -> JsonObject:
    return {"id": part.call_id, "function": {"name": part.name, "arguments": arguments_object(part.arguments)}}


def build_content(parts: list[Part], built: Built, name: str = "content") -> JsonObject:
    """The text as one string, and the images as bare base64."""
    texts: list[str] = []
    images: list[str] = []
    for part in parts:
        match part:
            case TextPart() | RefusalPart():
                texts.append(part.text)
            case MediaPart() if part.mime.startswith("image/") and part.data:
                images.append(part.data)
                if part.detail:
                    built.drop("image.detail")
            case MediaPart() if part.mime.startswith("image/"):
                raise Unsupported(
                    f"an image by its URL ({part.url or part.file_id}) cannot be sent to this upstream; send its content",
                    detail={"param": "images"},
                )
            case MediaPart():
                raise Unsupported(f"a file of the type {part.mime!r} cannot be sent to this upstream, which takes images only")
            case NativePart():
                raise Unsupported(f"a part of the dialect {part.dialect!r} cannot be sent to this upstream")
            case _:
                raise Unsupported(f"{named_part(part)} cannot be part of such a message")
    body: JsonObject = {name: "".join(texts)}
    if images:
        body["images"] = images
    return body
