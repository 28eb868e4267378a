"""Builds the input items for an upstream from messages."""

from __future__ import annotations

from typing import Final

from ...errors import Unsupported
from ...json_types import JsonObject
from ...messages import (
    Built,
    MediaPart,
    Message,
    NativePart,
    Part,
    ReasoningPart,
    RefusalPart,
    Request,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from ..common.function_tools import arguments_text
from ..fields import named_part
from ..media import build_audio, data_url
from ..tool_results import failure_marked
from .tools import Origin, origin_of, origins
from .wire import ANNOTATIONS, CALL_FIELDS, OUTPUT_ITEMS, RESULT_OF, SERVER_ITEMS, arguments_object, is_minted, own

_WRITTEN: Final = (CALL_FIELDS - {"status"}) | {"namespace"}
"""Fields of a call that the builder writes itself."""


def build_input(request: Request, built: Built, namespaces: bool) -> None:
    """Writes ``instructions`` and ``input``. The first system message becomes the instructions if it is a single text."""
    messages = request.messages
    first = messages[0] if messages else None
    if first is not None and first.role == "system" and len(first.parts) == 1 and isinstance(first.parts[0], TextPart):
        built.body["instructions"] = first.parts[0].text
        messages = messages[1:]
    builder = ItemBuilder(messages, request.tools, request.store, namespaces)
    built.body["input"] = [item for message in messages for item in builder.build(message)]


class ItemBuilder:
    """``namespaces``: the upstream accepts tools in namespaces and a tool search."""

    def __init__(
        self,
        messages: list[Message],
        tools: list[ToolSpec],
        store: bool | None = None,
        namespaces: bool = True,
    ) -> None:
        self._kinds = {
            part.call_id: part.kind for message in messages for part in message.parts if isinstance(part, ToolCallPart)
        }
        self._origins = origins(tools) if namespaces else {}
        self._store = store
        self._namespaces = namespaces

    def build(self, message: Message) -> list[JsonObject]:
        """The items of one message. Adjacent texts and media become one item if they share an id and a phase."""
        items: list[JsonObject] = []
        role = "user" if message.role == "tool" else message.role
        latest: JsonObject | None = None
        for part in message.parts:
            own_items: list[JsonObject] | None = None
            match part:
                case ToolResultPart():
                    own_items = self._result(part)
                case ToolCallPart():
                    own_items = self._call(part)
                case ReasoningPart():
                    own_items = self._reasoning(part)
                case NativePart(dialect="openai_responses") if message.role in ("assistant", "tool"):
                    own_items = [part.data]
            if own_items is not None:
                items += own_items
                latest = None
                continue
            fields = _message_fields(part)
            if latest is None or any(latest.get(name) != fields.get(name) for name in ("id", "phase")):
                latest = {"type": "message", "role": role, "content": [], **fields}
                items.append(latest)
            latest["content"].append(_build_part(part, role))
        return items

    # --- calls and results

    def _call(self, part: ToolCallPart) -> list[JsonObject]:
        if part.kind == "server":
            state = next((echo for echo in (part.echo, part.native) if echo is not None and own(echo, *SERVER_ITEMS)), None)
            return [] if state is None else [state.data]
        origin = self._origin(part)
        if origin is not None and origin.is_search:
            return [self._search(part)]
        kind = "custom_tool_call" if part.kind == "custom" else "function_call"
        item: JsonObject = {"type": kind}
        for echo in (part.native, part.echo):
            original = own(echo, kind)
            if original is not None:
                item |= {name: value for name, value in original.items() if name not in _WRITTEN}
        if is_minted(item.get("id")):
            del item["id"]
        given = {"input": part.arguments} if part.kind == "custom" else {"arguments": arguments_text(part.arguments)}
        named = {"name": part.name} if origin is None else {"name": origin.name, "namespace": origin.namespace}
        return [{**item, "call_id": part.call_id, **named, **given}]

    def _origin(self, part: ToolCallPart) -> Origin | None:
        """The origin of a call: as the call itself says, else as the tools of this request do."""
        states = [echo.data for echo in (part.native, part.echo) if echo is not None]
        return origin_of(part.name, states, self._origins) if self._namespaces else None

    def _search(self, part: ToolCallPart) -> JsonObject:
        item = {name: value for name, value in (part.native.data if part.native is not None else {}).items() if name != "name"}
        if is_minted(item.get("id")):
            del item["id"]
        if "arguments" not in item:
            item["arguments"] = arguments_object(part.arguments)
        return {"type": "tool_search_call", "execution": "client", "status": "completed", **item, "call_id": part.call_id}

    def _result(self, part: ToolResultPart) -> list[JsonObject]:
        original = own(part.native, *OUTPUT_ITEMS)
        if original is not None and (self._namespaces or original["type"] != "tool_search_output"):
            return [{**original, "call_id": part.call_id} if original.get("call_id") else original]
        kind = self._kinds.get(part.call_id, part.kind)
        if kind == "server" or own(part.native, *SERVER_ITEMS) is not None:
            return []
        output: str | list[JsonObject] = failure_marked(part.text, part.is_error)
        if any(not isinstance(content, TextPart) for content in part.content):
            output = [_build_part(content, "tool") for content in part.content]
        return [{"type": RESULT_OF["custom" if kind == "custom" else "function"], "call_id": part.call_id, "output": output}]

    def _reasoning(self, part: ReasoningPart) -> list[JsonObject]:
        """Reasoning returns complete. Without its text or its encrypted state it could only be found by its id,
        which does not exist if nothing was stored."""
        item = own(part.echo, "reasoning", "compaction")
        if item is None or (self._store is False and not item.get("encrypted_content") and not item.get("content")):
            return []
        return [{"summary": [], **item} if item["type"] == "reasoning" else item]


def _message_fields(part: Part) -> JsonObject:
    """The id and the phase of the item that this text was part of. An item with an id needs a status."""
    original = own(part.echo, "message") if isinstance(part, TextPart) else None
    fields = {name: original[name] for name in ("id", "phase") if original.get(name)} if original else {}
    if is_minted(fields.get("id")):
        del fields["id"]
    return {**fields, "status": original.get("status", "completed")} if original and "id" in fields else fields


def _build_part(part: Part, role: str) -> JsonObject:
    match part:
        case TextPart():
            if role == "assistant":
                return {"type": "output_text", "text": part.text, "annotations": _annotations(part)}
            return {"type": "input_text", "text": part.text}
        case RefusalPart():
            return {"type": "refusal", "refusal": part.text}
        case MediaPart() if role != "assistant":
            return _build_media(part)
        case NativePart(dialect="openai_responses"):
            return part.data
    raise Unsupported(f"{named_part(part)} cannot be expressed in a {role} message")


def _annotations(part: TextPart) -> list[JsonObject]:
    return [annotation for source in part.citations if (annotation := own(source.native, *ANNOTATIONS)) is not None]


def _build_media(part: MediaPart) -> JsonObject:
    if part.mime.startswith("image/"):
        body = {"type": "input_image", "detail": part.detail or "auto"}
        return body | ({"file_id": part.file_id} if part.file_id else {"image_url": part.url or data_url(part)})
    if part.mime.startswith("audio/") and part.data:
        return build_audio(part)
    if part.file_id:
        return {"type": "input_file", "file_id": part.file_id}
    if part.data:
        return {"type": "input_file", "filename": part.filename or "file", "file_data": data_url(part)}
    return {"type": "input_file", "file_url": part.url}
