"""Responses requests: a client's body to a Request, and a Request to the body for an upstream; the input items, then the
parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...errors import RequestError, Unsupported
from ...events import Echo
from ...json_types import JsonObject
from ...messages import (
    Built,
    MediaPart,
    Message,
    NativePart,
    Part,
    Reasoning,
    ReasoningPart,
    RefusalPart,
    Request,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from ..common.conversation import add_parts, build_audio, data_url, failure_marked, media_from_url, parse_audio, result_content
from ..common.fields import Fields, begin, build_output, effort_for, give, give_extra, keep_extra, named_part, parse_output, take
from ..common.function_tools import arguments_text
from ..common.lenient import json_text
from ..common.server_tools import OWN_SERVER, Answers, ApprovalAnswer, reason_in
from ..common.state import unpack
from .compaction import summary_message
from .tools import (
    SEARCH,
    Origin,
    arguments_of,
    build_choice,
    build_tools,
    flat_name,
    found_tools,
    is_client_search,
    name_of,
    origin_of,
    origins,
    parse_choice,
    parse_tools,
    read_annotation,
)
from .wire import (
    ANNOTATIONS,
    CALL_FIELDS,
    CALL_ITEMS,
    DIALECT,
    OUTPUT_ITEMS,
    RESULT_OF,
    SERVER_ITEMS,
    arguments_object,
    is_minted,
    own,
    string_of,
    texts,
)


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
            _parse_thoughts(item, messages)
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


def _parse_thoughts(item: JsonObject, messages: list[Message]) -> None:
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


# --- the request

PARAMETERS: Final = {
    "max_output_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "include: message.output_text.logprobs": "logprobs",
    "top_logprobs": "top_logprobs",
    "parallel_tool_calls": "parallel_tool_calls",
    "text.verbosity": "verbosity",
    "service_tier": "service_tier",
    "prompt_cache_key": "cache_key",
    "store": "store",
    "safety_identifier": "user",
    "user": "user",
    "metadata": "metadata",
    "previous_response_id": "previous_response_id",
}
ESSENTIAL: Final = frozenset(("conversation", "prompt", "background", "tool_choice"))
"""Fields of this dialect only that change the answer: where its history or prompt comes from, and how it is fetched. The others
(truncation, context_management, max_tool_calls, moderation …) only tune it."""
LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED: Final = "reasoning.encrypted_content"


def parse(body: JsonObject) -> Request:
    fields, request = begin(body, DIALECT)
    request.tools = parse_tools(fields)
    request.messages = parse_input(fields, request.tools)
    request.tool_choice = parse_choice(fields)
    request.reasoning = _parse_reasoning(fields)
    _parse_text(fields, request)
    include = fields.words("include")
    if LOGPROBS in include:
        request.logprobs = True
    rest = [name for name in include if name != LOGPROBS]
    if rest:
        fields.rest["include"] = rest
    take(fields, PARAMETERS, request)
    extra = {name: value for name, value in fields.rest.items() if value is not None and value is not False}
    if body.get("user") not in (None, request.user):
        extra["user"] = body["user"]  # in addition to a safety_identifier, which identifies the user
    keep_extra(request, extra, ESSENTIAL)
    return request


def build(request: Request, *, namespaces: bool = True) -> Built:
    """``namespaces``: the upstream accepts tools in namespaces and a tool search."""
    built = Built({"model": request.model})
    body = built.body
    build_input(request, built, namespaces)
    if request.stream:
        body["stream"] = True
    if request.tools:
        body["tools"] = build_tools(request.tools, request.dialect, namespaces)
    if request.tool_choice is not None:
        body["tool_choice"] = build_choice(request.tool_choice, request.tools, namespaces)
    _build_reasoning(request.reasoning, built)
    give(request, PARAMETERS, built)
    if "safety_identifier" in body and request.dialect != DIALECT:
        body["user"] = body.pop("safety_identifier")
    _build_text(request, body)
    _build_include(request, body)
    own = request.dialect == DIALECT and request.extra.get("reasoning")
    if own:
        body["reasoning"] = {**own, **body.get("reasoning", {})}
    give_extra(request, DIALECT, built)
    return built


def _build_include(request: Request, body: JsonObject) -> None:
    include: list[str] = list(request.extra.get("include", [])) if request.dialect == DIALECT else []
    if body.pop("include: message.output_text.logprobs", None):
        include.append(LOGPROBS)
    thinks = request.reasoning is not None and body.get("reasoning", {}).get("effort") != "none"
    thought = any(
        isinstance(part, ReasoningPart) and part.echo is not None for message in request.messages for part in message.parts
    )
    if (thinks or thought) and ENCRYPTED not in include:
        include.append(ENCRYPTED)
    if include:
        body["include"] = include


# --- reasoning and output


def _parse_reasoning(fields: Fields) -> Reasoning | None:
    inner = fields.inner("reasoning")
    if inner is None:
        return None
    reasoning = Reasoning(inner.effort("effort", inner.take("effort", str)), summary=inner.take("summary", str))
    rest = {name: value for name, value in inner.rest.items() if value is not None}
    if rest:
        fields.rest["reasoning"] = rest
    return reasoning


def _build_reasoning(reasoning: Reasoning | None, built: Built) -> None:
    if reasoning is None:
        return
    effort = effort_for(reasoning, built)
    # A client that enables thinking expects to see it; this API shows it only as a summary.
    summary = reasoning.summary or ("auto" if reasoning.enabled and effort != "none" else None)
    fields = {name: value for name, value in (("effort", effort), ("summary", summary)) if value is not None}
    if fields:
        built.body["reasoning"] = fields


def _parse_text(fields: Fields, request: Request) -> None:
    text = fields.inner("text")
    if text is None:
        return
    request.verbosity = text.take("verbosity", str)
    form = text.inner("format")
    if form is not None:
        request.output = parse_output(form, nested=False)
    if text.rest:
        fields.rest["text"] = text.rest


def _build_text(request: Request, body: JsonObject) -> None:
    text: JsonObject = dict(request.extra.get("text", {})) if request.dialect == DIALECT else {}
    verbosity = body.pop("text.verbosity", None)
    if verbosity is not None:
        text["verbosity"] = verbosity
    if request.output is not None:
        text["format"] = build_output(request.output, nested=False)
    if text:
        body["text"] = text


def approval_answers(body: JsonObject, is_suspended: Callable[[str], bool]) -> Answers:
    """The decisions in input items ``mcp_approval_response``. Those about other calls belong to the upstream, and stay."""
    items = body.get("input")
    found, left = [], []
    for item in items if isinstance(items, list) else ():
        answers = isinstance(item, dict) and item.get("type") == "mcp_approval_response"
        id = item.get("approval_request_id") if answers else None
        if isinstance(id, str) and is_suspended(id):
            found.append(ApprovalAnswer(id, item.get("approve") is True, reason=reason_in(item)))
        else:
            left.append(item)
    return found, {**body, "input": left} if found else body
