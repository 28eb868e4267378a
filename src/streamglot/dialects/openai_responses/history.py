"""The input items of a Responses request, both ways."""

from __future__ import annotations

from typing import Any, Final

from ...errors import RequestError, Unsupported
from ...events import CallKind, Echo
from ...messages import (
    Built,
    MediaPart,
    Message,
    NativePart,
    Part,
    ReasoningPart,
    RefusalPart,
    Request,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from ..echo import unpack
from ..fields import Fields
from ..media import data_url, media_from_url
from ..own_tools import OWN_SERVER
from .server_items import arguments_of, name_of
from .wire import CALL_ITEMS, DIALECT, OUTPUT_ITEMS, RESULT_OF, SERVER_ITEMS, is_minted, json_text, own, texts, word

_CALL_FIELDS: Final = frozenset(("type", "status", "arguments", "input", "call_id", "name"))

# --- the client's items


def parse_input(fields: Fields) -> list[Message]:
    messages: list[Message] = []
    instructions = fields.take("instructions", str)
    if instructions:
        messages.append(Message("system", [TextPart(instructions)]))
    value = fields.any("input")
    if isinstance(value, str):
        messages.append(Message("user", [TextPart(value)]))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _parse_item(Fields(item, f"{fields.where('input')}[{number}]"), messages)
    elif value is not None:
        raise fields.wrong("input", "a string or a list of items", value)
    return messages


def _add(messages: list[Message], role: Role, part: Part) -> None:
    """Items that stand side by side in one turn are parts of one message."""
    if messages and messages[-1].role == role:
        messages[-1].parts.append(part)
    else:
        messages.append(Message(role, [part]))


def _parse_item(fields: Fields, messages: list[Message]) -> None:
    item = dict(fields.rest)
    kind = fields.take("type", str, "message")
    match kind:
        case "message":
            _parse_message(fields, messages)
        case "reasoning":
            _parse_reasoning(item, messages)
        case "function_call" | "custom_tool_call":
            arguments = fields.any("arguments") if kind == "function_call" else fields.take("input", str, "")
            told = json_text(arguments)
            text = told if kind == "custom_tool_call" or told.strip() else "{}"
            call = ToolCallPart(fields.need("call_id", str), fields.need("name", str), text, CALL_ITEMS[kind])
            call.native = Echo(DIALECT, {name: value for name, value in item.items() if name not in _CALL_FIELDS - {"type"}})
            _add(messages, "assistant", call)
        case "function_call_output" | "custom_tool_call_output":
            content = [part for part in _parse_content(fields, "output") if isinstance(part, (TextPart, MediaPart, NativePart))]
            result = ToolResultPart(fields.need("call_id", str), content)
            result.kind = "custom" if kind == "custom_tool_call_output" else "function"
            _add(messages, "tool", result)
        case "compaction":
            _add(messages, "assistant", ReasoningPart("", redacted=True, echo=Echo(DIALECT, item)))
        case "mcp_call" if item.get("server_label") == OWN_SERVER:
            for part in _parse_own_call(fields):
                _add(messages, "assistant", part)
        case _ if kind in SERVER_ITEMS:
            call_id = word(item, "call_id", "id") or name_of(item)
            call = ToolCallPart(call_id, name_of(item), arguments_of(item) or "{}", "server", native=Echo(DIALECT, item))
            _add(messages, "assistant", call)
        case _:
            _add(messages, "tool" if kind in OUTPUT_ITEMS else "assistant", NativePart(DIALECT, item))


def _parse_own_call(fields: Fields) -> list[Part]:
    """A call that our tool loop ran, and its result."""
    call = ToolCallPart(fields.need("id", str), fields.need("name", str), fields.take("arguments", str, "") or "{}", "server")
    error = fields.any("error")
    told = error.get("content") if isinstance(error, dict) else None
    said = "".join(texts(told, "text")) if error else fields.take("output", str, "")
    return [call, ToolResultPart(call.call_id, [TextPart(said)], is_error=bool(error), kind="server")]


def _parse_message(fields: Fields, messages: list[Message]) -> None:
    role = fields.need("role", str)
    parts = _parse_content(fields, "content")
    match role:
        case "assistant":
            told = {name: value for name in ("id", "phase") if (value := fields.take(name, str))}
            for part in parts:
                if isinstance(part, TextPart) and "phase" in told:
                    part.echo = Echo(DIALECT, {"type": "message", **told})
                _add(messages, "assistant", part)
        case "system" | "developer" | "user":
            messages.append(Message(role, parts))
        case _:
            raise fields.wrong("role", "user, assistant, system or developer", role)


def _parse_reasoning(item: dict[str, Any], messages: list[Message]) -> None:
    """A thought. What we packed into it is unpacked; state of a call or a text goes back to where it belongs."""
    packed = unpack(word(item, "encrypted_content"))
    if packed is not None and set(packed.data) == {"call_id", "echo"}:
        _give_back(messages, packed.data["call_id"], Echo(packed.provider, packed.data["echo"]))
        return
    summary, raw = texts(item.get("summary"), "summary_text"), texts(item.get("content"), "reasoning_text", "text")
    echo = packed
    if echo is None and not is_minted(item.get("id")):
        echo = Echo(DIALECT, item)
    text = "".join(raw or summary)
    _add(messages, "assistant", ReasoningPart(text, bool(summary and not raw), not text and echo is not None, echo))


def _give_back(messages: list[Message], call_id: object, echo: Echo) -> None:
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
            return TextPart(part.need("text", str))
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
            audio = Fields(part.any("input_audio"), part.where("input_audio"))
            return MediaPart(f"audio/{audio.take('format', str, 'wav')}", audio.need("data", str))
    return NativePart(DIALECT, {"type": kind, **part.rest})


def _with_bytes(media: MediaPart, part: Fields) -> MediaPart:
    if not (media.data or media.url or media.file_id):
        raise RequestError(f"{part.path} has neither data nor an address nor a file id", detail={"param": part.path})
    return media


# --- the upstream's items


def build_input(request: Request, provider: str, built: Built) -> None:
    """``instructions`` and ``input``. The first message of the system becomes the instructions if it is one text."""
    messages = request.messages
    first = messages[0] if messages else None
    if first is not None and first.role == "system" and len(first.parts) == 1 and isinstance(first.parts[0], TextPart):
        built.body["instructions"] = first.parts[0].text
        messages = messages[1:]
    calls = {part.call_id: part.kind for message in messages for part in message.parts if isinstance(part, ToolCallPart)}
    items: list[dict[str, Any]] = []
    for message in messages:
        items += build_message(message, calls, provider, request.store)
    if any(getattr(part, "cache", None) is not None for message in request.messages for part in message.parts):
        built.dropped.append("cache_control")
    built.body["input"] = items


def build_message(message: Message, calls: dict[str, CallKind], provider: str, store: bool | None) -> list[dict[str, Any]]:
    """The items of one message. Texts and media that stand side by side in it are one item, if they share a phase."""
    items: list[dict[str, Any]] = []
    role = "user" if message.role == "tool" else message.role
    latest: dict[str, Any] | None = None
    for part in message.parts:
        own_items: list[dict[str, Any]] | None = None
        match part:
            case ToolResultPart():
                own_items = _build_result(part, calls.get(part.call_id, part.kind))
            case ToolCallPart():
                own_items = _build_call(part, provider)
            case ReasoningPart():
                own_items = _build_reasoning(part, provider, store)
            case NativePart(dialect="openai_responses") if message.role in ("assistant", "tool"):
                own_items = [part.data]
        if own_items is not None:
            items += own_items
            latest = None
            continue
        told = own(part.echo, "message") if isinstance(part, TextPart) else None
        phase = {"phase": told["phase"]} if told and told.get("phase") else {}
        if latest is None or latest.get("phase") != phase.get("phase"):
            latest = {"type": "message", "role": role, "content": [], **phase}
            items.append(latest)
        latest["content"].append(_build_part(part, role))
    return items


def _build_part(part: Part, role: str) -> dict[str, Any]:
    match part:
        case TextPart():
            if role == "assistant":
                return {"type": "output_text", "text": part.text, "annotations": []}
            return {"type": "input_text", "text": part.text}
        case RefusalPart():
            return {"type": "refusal", "refusal": part.text}
        case MediaPart() if role != "assistant":
            return _build_media(part)
        case NativePart(dialect="openai_responses"):
            return part.data
    raise Unsupported(f"a part of the kind {type(part).__name__} cannot be said in a message of the {role}")


def _build_media(part: MediaPart) -> dict[str, Any]:
    if part.mime.startswith("image/"):
        body = {"type": "input_image", "detail": part.detail or "auto"}
        return body | ({"file_id": part.file_id} if part.file_id else {"image_url": part.url or data_url(part)})
    if part.mime.startswith("audio/") and part.data:
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.mime.removeprefix("audio/")}}
    if part.file_id:
        return {"type": "input_file", "file_id": part.file_id}
    if part.data:
        return {"type": "input_file", "filename": part.filename or "file", "file_data": data_url(part)}
    return {"type": "input_file", "file_url": part.url}


def _build_call(part: ToolCallPart, provider: str) -> list[dict[str, Any]]:
    if part.kind == "server":
        state = next((echo for echo in (part.echo, part.native) if echo is not None and own(echo, *SERVER_ITEMS)), None)
        return [state.data] if state is not None and state.provider == provider else []
    kind = "custom_tool_call" if part.kind == "custom" else "function_call"
    item: dict[str, Any] = {"type": kind}
    for echo in (part.native, part.echo):
        told = own(echo, kind)
        if echo is not None and told is not None and echo.provider == provider:
            item |= {name: value for name, value in told.items() if name not in _CALL_FIELDS}
    if is_minted(item.get("id")):
        del item["id"]
    given = (
        {"input": part.arguments} if part.kind == "custom" else {"arguments": (part.arguments.strip() and part.arguments) or "{}"}
    )
    return [{**item, "call_id": part.call_id, "name": part.name, **given}]


def _build_result(part: ToolResultPart, kind: str) -> list[dict[str, Any]]:
    told = own(part.native, *OUTPUT_ITEMS)
    if told is not None:
        return [told]
    if kind == "server" or own(part.native, *SERVER_ITEMS) is not None:
        return []
    output: str | list[dict[str, Any]] = part.text
    if any(not isinstance(content, TextPart) for content in part.content):
        output = [_build_part(content, "tool") for content in part.content]
    elif part.is_error and not part.text.lower().startswith("error"):
        output = f"Error: {part.text}"
    return [{"type": RESULT_OF["custom" if kind == "custom" else "function"], "call_id": part.call_id, "output": output}]


def _build_reasoning(part: ReasoningPart, provider: str, store: bool | None) -> list[dict[str, Any]]:
    """A thought goes back to the provider that had it, whole. One without its text or encrypted state can only be found
    by its id, which no one does who was told to store nothing."""
    if part.echo is None or part.echo.provider != provider:
        return []
    item = own(part.echo, "reasoning", "compaction")
    if item is None or (store is False and not item.get("encrypted_content") and not item.get("content")):
        return []
    return [{"summary": [], **item} if item["type"] == "reasoning" else item]
