"""Converts the input items of a client to messages."""

from __future__ import annotations

from ...errors import RequestError
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
    ToolSpec,
)
from ..common.conversation import add_parts, result_content
from ..common.function_tools import arguments_text
from ..echo import unpack
from ..fields import Fields
from ..lenient import json_text
from ..media import media_from_url, parse_audio
from ..own_tools import OWN_SERVER
from .compaction import summary_message
from .server_items import arguments_of, name_of, read_annotation
from .tools import SEARCH, flat_name, found_tools, is_client_search, origins
from .wire import CALL_FIELDS, CALL_ITEMS, DIALECT, OUTPUT_ITEMS, SERVER_ITEMS, is_minted, string_of, texts


def parse_input(fields: Fields, tools: list[ToolSpec]) -> list[Message]:
    """``tools`` are those of the request: a call in a namespace has the flat name of its tool."""
    names = {(origin.namespace, origin.name): name for name, origin in origins(tools).items()}
    messages: list[Message] = []
    instructions = fields.take("instructions", str)
    if instructions:
        messages.append(Message("system", [TextPart(instructions)]))
    value = fields.any("input")
    if isinstance(value, str):
        messages.append(Message("user", [TextPart(value)]))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _parse_item(Fields(item, f"{fields.where('input')}[{number}]"), messages, names)
    elif value is not None:
        raise fields.wrong("input", "a string or a list of items", value)
    return messages


def _parse_item(fields: Fields, messages: list[Message], names: dict[tuple[str, str], str]) -> None:
    item = dict(fields.rest)
    kind = fields.take("type", str, "message")
    match kind:
        case "message":
            _parse_message(fields, messages)
        case "reasoning":
            _parse_reasoning(item, messages)
        case "function_call" | "custom_tool_call":
            arguments = fields.any("arguments") if kind == "function_call" else fields.take("input", str, "")
            text = json_text(arguments) if kind == "custom_tool_call" else arguments_text(json_text(arguments))
            name, namespace = fields.need("name", str), string_of(item, "namespace")
            flat = names.get((namespace, name)) or flat_name(namespace, name)
            call = ToolCallPart(fields.need("call_id", str), flat, text, CALL_ITEMS[kind])
            kept = ("type",) if is_minted(item.get("id")) else ("type", "status")
            native = {field: value for field, value in item.items() if field not in CALL_FIELDS.difference(kept)}
            call.native = Echo(DIALECT, {**native, "name": name} if namespace else native)
            add_parts(messages, "assistant", call)
        case "tool_search_call" if is_client_search(item):
            call = ToolCallPart(fields.need("call_id", str), SEARCH, json_text(item.get("arguments")) or "{}")
            call.native = Echo(DIALECT, item)
            add_parts(messages, "assistant", call)
        case "tool_search_output" if is_client_search(item):
            found = found_tools(item)
            tools_text = json_text({"tools": found}) if found else "no tool was found"
            result = ToolResultPart(fields.need("call_id", str), [TextPart(tools_text)], native=Echo(DIALECT, item))
            add_parts(messages, "tool", result)
        case "function_call_output" | "custom_tool_call_output":
            content = result_content(_parse_content(fields, "output"))
            result = ToolResultPart(fields.need("call_id", str), content)
            result.kind = "custom" if kind == "custom_tool_call_output" else "function"
            add_parts(messages, "tool", result)
        case "compaction" if (summary := summary_message(item)) is not None:
            messages.append(summary)
        case "compaction":
            add_parts(messages, "assistant", ReasoningPart("", redacted=True, echo=Echo(DIALECT, item)))
        case "mcp_approval_request" if item.get("server_label") == OWN_SERVER:
            pass  # our own approval question; the model has not seen the call, which follows once it is approved
        case "mcp_call" if item.get("server_label") == OWN_SERVER:
            add_parts(messages, "assistant", *_parse_own_call(fields))
        case _ if kind in SERVER_ITEMS:
            call_id = string_of(item, "call_id", "id") or name_of(item)
            call = ToolCallPart(call_id, name_of(item), arguments_of(item) or "{}", "server", native=Echo(DIALECT, item))
            add_parts(messages, "assistant", call)
        case _:
            add_parts(messages, "tool" if kind in OUTPUT_ITEMS else "assistant", NativePart(DIALECT, item))


def _parse_own_call(fields: Fields) -> list[Part]:
    """A call that streamglot's tool loop ran, and its result."""
    call = ToolCallPart(fields.need("id", str), fields.need("name", str), fields.take("arguments", str, "") or "{}", "server")
    error = fields.any("error")
    content = error.get("content") if isinstance(error, dict) else None
    output = "".join(texts(content, "text")) if error else fields.take("output", str, "")
    return [call, ToolResultPart(call.call_id, [TextPart(output)], is_error=bool(error), kind="server")]


def _parse_message(fields: Fields, messages: list[Message]) -> None:
    role = fields.need("role", str)
    parts = _parse_content(fields, "content")
    match role:
        case "assistant":
            item_fields = {name: value for name in ("id", "phase", "status") if (value := fields.take(name, str))}
            if is_minted(item_fields.get("id")):
                del item_fields["id"]
            if "id" not in item_fields:
                item_fields.pop("status", None)
            for part in parts:
                if isinstance(part, TextPart) and item_fields:
                    part.echo = Echo(DIALECT, {"type": "message", **item_fields})
                add_parts(messages, "assistant", part)
        case "system" | "developer" | "user":
            messages.append(Message(role, parts))
        case _:
            raise fields.wrong("role", "user, assistant, system or developer", role)


def _parse_reasoning(item: JsonObject, messages: list[Message]) -> None:
    """A reasoning item. Packed state is unpacked; state of a call or a text returns to its place."""
    packed = unpack(string_of(item, "encrypted_content"))
    if packed is not None and set(packed.data) == {"call_id", "echo"}:
        _restore_state(messages, packed.data["call_id"], Echo(packed.provider, packed.data["echo"]))
        return
    summary, raw = texts(item.get("summary"), "summary_text"), texts(item.get("content"), "reasoning_text", "text")
    echo = packed
    if echo is None and not is_minted(item.get("id")):
        echo = Echo(DIALECT, item)
    text = "".join(raw or summary)
    add_parts(messages, "assistant", ReasoningPart(text, bool(summary and not raw), not text and echo is not None, echo))


def _restore_state(messages: list[Message], call_id: object, echo: Echo) -> None:
    for part in reversed(messages[-1].parts if messages else []):
        if isinstance(part, ToolCallPart if call_id else TextPart) and getattr(part, "call_id", "") == call_id:
            part.echo = echo
            return


def _parse_content(fields: Fields, name: str) -> list[Part]:
    content = fields.any(name)
    if content is None:
        return []
    if isinstance(content, str):
        return [TextPart(content)]
    if not isinstance(content, list):
        raise fields.wrong(name, "a string or a list of parts", content)
    return [_parse_part(Fields(part, f"{fields.where(name)}[{number}]")) for number, part in enumerate(content)]


def _parse_part(part: Fields) -> Part:
    kind = part.need("type", str)
    match kind:
        case "input_text" | "output_text" | "text":
            text = part.need("text", str)
            return TextPart(text, [read_annotation(source.rest, DIALECT) for source in part.objects("annotations")])
        case "refusal":
            return RefusalPart(part.need("refusal", str))
        case "input_image":
            link = part.any("image_url")
            url = link.get("url") if isinstance(link, dict) else link
            media = media_from_url(url, "image/*") if isinstance(url, str) else MediaPart("image/*")
            media.file_id, media.detail = part.take("file_id", str, ""), part.take("detail", str, "")
            return _with_bytes(media, part)
        case "input_file":
            media = media_from_url(part.take("file_data", str, ""), "application/octet-stream")
            media.url = part.take("file_url", str, "") or media.url
            media.file_id, media.filename = part.take("file_id", str, ""), part.take("filename", str, "")
            return _with_bytes(media, part)
        case "input_audio":
            return parse_audio(part)
    return NativePart(DIALECT, {"type": kind, **part.rest})


def _with_bytes(media: MediaPart, part: Fields) -> MediaPart:
    if not (media.data or media.url or media.file_id):
        raise RequestError(f"{part.path} has neither data nor a URL nor a file id", detail={"param": part.path})
    return media
