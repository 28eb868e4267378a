"""Converse requests: a client's body to a Request, and a Request to the body for the service.

The model is part of the URL and not of the body. Options of one model family beyond the common fields go into
``additionalModelRequestFields``: thinking and top_k. Media have a kind and a format instead of a MIME type.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from ...errors import Unsupported
from ...events import Echo
from ...json_types import JSON_ERRORS, JsonObject
from ...messages import (
    EFFORTS,
    Built,
    MediaPart,
    Message,
    NativePart,
    OutputFormat,
    Part,
    Reasoning,
    ReasoningPart,
    RefusalPart,
    Request,
    Role,
    TextPart,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    ToolSpec,
)
from ..common.conversation import add_content, add_turn, cache_mark
from ..common.fields import Fields, fit_budget, give, give_extra, is_off, keep_extra, take
from ..common.function_tools import NO_PARAMETERS, call_arguments
from ..common.state import unpack
from .read import read_citation, result_text
from .wire import DIALECT, blob, unblob

# --- media

MIME_OF: Final[dict[str, dict[str, str]]] = {
    "image": {"png": "image/png", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"},
    "document": {
        "pdf": "application/pdf",
        "csv": "text/csv",
        "doc": "application/msword",
        "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xls": "application/vnd.ms-excel",
        "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "html": "text/html",
        "txt": "text/plain",
        "md": "text/markdown",
    },
    "video": {
        "mp4": "video/mp4",
        "mov": "video/quicktime",
        "mkv": "video/x-matroska",
        "webm": "video/webm",
        "flv": "video/x-flv",
        "mpeg": "video/mpeg",
        "mpg": "video/mpg",
        "wmv": "video/x-ms-wmv",
        "three_gp": "video/3gpp",
    },
    "audio": {
        "mp3": "audio/mp3",
        "wav": "audio/wav",
        "opus": "audio/opus",
        "aac": "audio/aac",
        "flac": "audio/flac",
        "ogg": "audio/ogg",
        "m4a": "audio/m4a",
        "webm": "audio/webm",
        "pcm": "audio/pcm",
        "mp4": "audio/mp4",
        "mpeg": "audio/mpeg",
    },
}
KINDS: Final = tuple(MIME_OF)
_FORMAT_OF: Final = {mime: (kind, format) for kind, formats in MIME_OF.items() for format, mime in formats.items()} | {
    "image/jpg": ("image", "jpeg"),
    "audio/x-wav": ("audio", "wav"),
}
_NAME_SIGNS: Final = re.compile(r"[^A-Za-z0-9()\[\] -]+")
_NAME_CHARS: Final = 200


def parse_media(kind: str, block: Fields) -> MediaPart | NativePart:
    """A block of one of ``KINDS``. One with further options (a context, citations) stays native."""
    whole = dict(block.rest)
    format = block.take("format", str, "txt" if kind == "document" else "")
    source = Fields(block.any("source"), block.where("source"))
    part = MediaPart(MIME_OF[kind].get(format, f"{kind}/{format}"), filename=block.take("name", str, ""))
    part.data = source.take("bytes", str, "")
    text, place = source.take("text", str), source.inner("s3Location")
    if text is not None:
        part.data = blob(text)
    if place is not None:
        part.url = place.need("uri", str)
    if block.rest or source.rest or (place is not None and place.rest):
        return NativePart(DIALECT, {kind: whole})
    return part


def build_media(part: MediaPart, number: int) -> JsonObject:
    """``number`` makes the names of documents unique, which the service requires."""
    mime = part.mime.partition(";")[0]
    if mime not in _FORMAT_OF:
        raise Unsupported(f"media of the type {part.mime!r} cannot be sent to Converse; it takes {', '.join(_FORMAT_OF)}")
    kind, format = _FORMAT_OF[mime]
    if part.data:
        source: JsonObject = {"bytes": part.data}
    elif part.url.startswith("s3://"):
        source = {"s3Location": {"uri": part.url}}
    else:
        raise Unsupported(f"a medium by its URL ({part.url or part.file_id}) cannot be sent to Converse; send its content")
    body: JsonObject = {"format": format, "source": source}
    if kind == "document":
        stem = part.filename.rpartition(".")[0] or part.filename
        plain = " ".join(_NAME_SIGNS.sub(" ", stem).split())
        body["name"] = plain[:_NAME_CHARS] if plain else f"document {number}"
    return {kind: body}


# --- messages

_ROLES: Final[dict[str, Role]] = {"user": "user", "assistant": "assistant", "system": "system"}
_ID_SIGNS: Final = re.compile(r"[^A-Za-z0-9_.:-]")
_ID_CHARS: Final = 64
NO_OUTPUT: Final = "(the tool gave no output)"
"""Replaces an empty result: the service refuses blank text, and a model that gets nothing repeats the call."""


# --- the client's messages


def parse_messages(messages: list[Fields]) -> list[Message]:
    parsed: list[Message] = []
    for fields in messages:
        role = _ROLES.get(fields.need("role", str))
        if role is None:
            raise fields.wrong("role", " or ".join(_ROLES), role)
        add_turn(parsed, role, parse_content(fields.objects("content")))
    return parsed


def parse_content(blocks: list[Fields]) -> list[Part]:
    parts: list[Part] = []
    for block in blocks:
        point = block.inner("cachePoint")
        if point is None:
            parts.append(_parse_block(block))
            continue
        marked = parts[-1] if parts else None
        if isinstance(marked, (TextPart, MediaPart, ToolCallPart, ToolResultPart)):
            marked.cache = point.take("ttl", str, "")
        else:
            parts.append(NativePart(DIALECT, {"cachePoint": point.rest}))
    return parts


def _parse_block(block: Fields) -> Part:
    text = block.take("text", str)
    if text is not None:
        return TextPart(text)
    for kind in KINDS:
        media = block.inner(kind)
        if media is not None:
            return parse_media(kind, media)
    call = block.inner("toolUse")
    if call is not None:
        return _parse_call(call)
    result = block.inner("toolResult")
    if result is not None:
        return _parse_result(result)
    reasoning = block.inner("reasoningContent")
    if reasoning is not None:
        return _parse_reasoning(reasoning)
    cited = block.inner("citationsContent")
    if cited is not None:
        cited_text = "".join(piece.take("text", str, "") for piece in cited.objects("content"))
        return TextPart(cited_text, [read_citation(citation.rest) for citation in cited.objects("citations")])
    return NativePart(DIALECT, block.rest)


def _parse_call(call: Fields) -> ToolCallPart:
    arguments = msgspec.json.encode(call.any("input") or {}).decode()
    part = ToolCallPart(call.need("toolUseId", str), call.need("name", str), arguments)
    kind = call.take("type", str)
    if kind == "server_tool_use":
        part.kind, part.native = "server", Echo(DIALECT, {"type": kind})
    return part


def _parse_result(result: Fields) -> ToolResultPart:
    content: list[TextPart | MediaPart | NativePart] = []
    native = dict(result.rest)
    for piece in result.objects("content"):
        media = next((kind for kind in KINDS if kind in piece.rest), None)
        if media is not None:
            content.append(parse_media(media, Fields(piece.any(media), piece.where(media))))
        elif isinstance(piece.rest.get("text"), str) or "json" in piece.rest:
            content.append(TextPart(result_text(piece.rest)))
        else:
            content.append(NativePart(DIALECT, piece.rest))
    part = ToolResultPart(result.need("toolUseId", str), content, result.take("status", str) == "error")
    if result.take("type", str) is not None:
        part.kind, part.native = "server", Echo(DIALECT, {"toolResult": native})
    return part


def _parse_reasoning(reasoning: Fields) -> ReasoningPart:
    inner = reasoning.inner("reasoningText")
    redacted = reasoning.take("redactedContent", str)
    if inner is None:
        return ReasoningPart("", redacted=True, echo=_echo("redactedContent", redacted))
    return ReasoningPart(inner.take("text", str, ""), echo=_echo("signature", inner.take("signature", str)))


def _echo(name: str, value: str | None) -> Echo | None:
    if not value:
        return None
    return unpack(unblob(value) if name == "redactedContent" else value) or Echo(DIALECT, {name: value})


# --- the upstream's messages


class History:
    """Builds the messages for the upstream. Turns must alternate, so adjacent messages of one role are merged."""

    def __init__(self) -> None:
        self.system: list[JsonObject] = []
        self.messages: list[JsonObject] = []
        self.called: dict[str, None] = {}
        """The tools that were called so far. The service requires their declarations."""
        self._documents = 0

    def add(self, message: Message) -> None:
        blocks = [block for part in message.parts for block in self._part(part)]
        if message.role in ("system", "developer"):
            self.system += blocks
            return
        add_content(self.messages, "assistant" if message.role == "assistant" else "user", blocks)

    def _part(self, part: Part) -> list[JsonObject]:
        block = self._block(part)
        if block is None:
            return []
        cache = getattr(part, "cache", None)
        if cache is None:
            return [block]
        return [block, {"cachePoint": cache_mark("default", cache)}]

    def _block(self, part: Part) -> JsonObject | None:
        match part:
            case TextPart() | RefusalPart():
                return {"text": part.text} if part.text.strip() else None
            case MediaPart():
                self._documents += 1
                return build_media(part, self._documents)
            case ReasoningPart():
                return self._reasoning(part)
            case ToolCallPart():
                return self._call(part)
            case ToolResultPart():
                return self._result(part)
            case NativePart(dialect="bedrock_converse"):
                return part.data
        raise Unsupported(f"a part of the dialect {part.dialect!r} cannot be sent to Converse")

    def _reasoning(self, part: ReasoningPart) -> JsonObject | None:
        """Reasoning returns with its proof."""
        if part.echo is None:
            return None
        data = part.echo.data
        if part.redacted and "redactedContent" in data:
            return {"reasoningContent": {"redactedContent": data["redactedContent"]}}
        return {"reasoningContent": {"reasoningText": {"text": part.text, **data}}}

    def _call(self, part: ToolCallPart) -> JsonObject | None:
        call = {"toolUseId": tool_use_id(part.call_id), "name": part.name, "input": call_arguments(part)}
        if part.kind == "server":
            if part.native is None:
                return None
            return {"toolUse": {**call, **part.native.data}}
        self.called[part.name] = None
        return {"toolUse": call}

    def _result(self, part: ToolResultPart) -> JsonObject | None:
        own = None if part.native is None else part.native.data
        if own is not None or part.kind == "server":
            return own
        content = [block for piece in part.content for block in self._part(piece)]
        body: JsonObject = {"toolUseId": tool_use_id(part.call_id), "content": content or [{"text": NO_OUTPUT}]}
        if part.is_error:
            body["status"] = "error"
        return {"toolResult": body}


def tool_use_id(call_id: str) -> str:
    """The id with the characters and the length that the service accepts; the call and its result change in the same way."""
    return _ID_SIGNS.sub("_", call_id)[-_ID_CHARS:]


# --- the request

PARAMETERS: Final = {
    "maxTokens": "max_tokens",
    "temperature": "temperature",
    "topP": "top_p",
    "stopSequences": "stop",
}
"""The names inside ``inferenceConfig``."""
ESSENTIAL: Final = frozenset(("guardrailConfig", "promptVariables"))
TIERS: Final = ("priority", "default", "flex", "reserved")
API_EFFORTS: Final = EFFORTS[2:]
"""The efforts that this API knows: all but "none" and "minimal"."""
BUDGETS: Final = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 32_768, "max": 32_768}
"""Thinking tokens for an effort, if the model takes a number."""
_METADATA_ENTRIES: Final = 16


def parse(body: JsonObject) -> Request:
    fields = Fields(body)
    request = Request(dialect=DIALECT, model=fields.take("modelId", str, ""))
    request.messages = parse_messages(fields.objects("messages"))
    system = parse_content(fields.objects("system"))
    if system:
        request.messages.insert(0, Message("system", system))
    tools = fields.inner("toolConfig")
    if tools is not None:
        request.tools = _parse_tools(tools.objects("tools"))
        request.tool_choice = _parse_choice(tools)
    limits = fields.inner("inferenceConfig")
    if limits is not None:
        take(limits, PARAMETERS, request)
    tier = fields.inner("serviceTier")
    request.service_tier = None if tier is None else tier.take("type", str)
    request.metadata = fields.take("requestMetadata", dict)
    _parse_more(fields, request)
    _parse_output(fields, request)
    keep_extra(request, fields.rest, ESSENTIAL)
    return request


def build(request: Request) -> Built:
    history = History()
    for message in request.messages:
        history.add(message)
    built = Built({"messages": history.messages})
    body = built.body
    if history.system:
        body["system"] = history.system
    _build_tools(request, history, built)
    more: JsonObject = {}
    _build_reasoning(request, more, built)
    _build_parameters(request, more, built)
    if request.output is not None:
        _build_output(request.output, body)
    own = request.extra.get("additionalModelRequestFields") if request.dialect == DIALECT else None
    if more or own:
        body["additionalModelRequestFields"] = {**(own if isinstance(own, dict) else {}), **more}
    give_extra(request, DIALECT, built)
    return built


# --- tools


def _parse_tools(tools: list[Fields]) -> list[ToolSpec]:
    parsed: list[ToolSpec] = []
    for tool in tools:
        point, inner = tool.inner("cachePoint"), tool.inner("toolSpec")
        if point is not None:
            if parsed:
                parsed[-1].cache = point.take("ttl", str, "")
        elif inner is None:
            system = tool.inner("systemTool")
            name = "tool" if system is None else system.take("name", str, "tool")
            parsed.append(ToolSpec(name, kind="server", native=Echo(DIALECT, {**tool.rest, "systemTool": {"name": name}})))
        else:
            schema = inner.inner("inputSchema")
            parsed.append(
                ToolSpec(
                    inner.need("name", str),
                    inner.take("description", str, ""),
                    None if schema is None else schema.take("json", dict),
                    inner.take("strict", bool),
                )
            )
    return parsed


def _parse_choice(tools: Fields) -> ToolChoice | None:
    match tools.any("toolChoice"):
        case None:
            return None
        case {"auto": _}:
            return ToolChoice("auto")
        case {"any": _}:
            return ToolChoice("required")
        case {"tool": {"name": str(name)}}:
            return ToolChoice("required", [name])
        case other:
            raise tools.wrong("toolChoice", "auto, any or a named tool", other)


def _build_tools(request: Request, history: History, built: Built) -> None:
    """The service requires the declaration of every tool in the history, even if no tool may be called any more."""
    choice = request.tool_choice or ToolChoice()
    tools = [tool for tool in request.tools if not choice.tools or tool.name in choice.tools or tool.name in history.called]
    if choice.mode == "none":
        if history.called:
            built.dropped.append("tool_choice")
        tools = [tool for tool in tools if tool.name in history.called]
    known = {tool.name for tool in tools}
    tools += [ToolSpec(name) for name in history.called if name not in known]
    if not tools:
        return
    config: JsonObject = {"tools": [body for tool in tools for body in _build_tool(tool)]}
    if choice.mode == "required":
        config["toolChoice"] = {"tool": {"name": choice.tools[0]}} if len(choice.tools) == 1 else {"any": {}}
    elif choice.mode == "auto" and request.tool_choice is not None:
        config["toolChoice"] = {"auto": {}}
    built.body["toolConfig"] = config


def _build_tool(tool: ToolSpec) -> list[JsonObject]:
    if tool.kind == "server" and tool.native is not None:
        return [tool.native.data]
    schema = tool.parameters or NO_PARAMETERS
    body: JsonObject = {"name": tool.name, "inputSchema": {"json": schema}}
    if tool.description:
        body["description"] = tool.description
    if tool.strict is not None:
        body["strict"] = tool.strict
    return [{"toolSpec": body}] if tool.cache is None else [{"toolSpec": body}, {"cachePoint": cache_mark("default", tool.cache)}]


# --- reasoning, parameters, output


def _parse_more(fields: Fields, request: Request) -> None:
    """Takes the common options out of the fields of one family: thinking and top_k."""
    more = fields.inner("additionalModelRequestFields")
    if more is None:
        return
    thinking = more.inner("thinking")
    if thinking is not None:
        enabled = thinking.take("type", str, "enabled") != "disabled"
        request.reasoning = Reasoning(budget_tokens=thinking.take("budget_tokens", int), enabled=enabled)
    request.top_k = more.take("top_k", int)
    if more.rest:
        fields.rest["additionalModelRequestFields"] = more.rest


def _build_reasoning(request: Request, more: JsonObject, built: Built) -> None:
    reasoning = request.reasoning
    if reasoning is None:
        return
    off = is_off(reasoning)
    effort = reasoning.effort or "medium"
    if "anthropic" in request.model or "claude" in request.model:
        if off:
            more["thinking"] = {"type": "disabled"}
            return
        budget = reasoning.budget_tokens
        if budget is None or request.dialect != DIALECT:
            budget = fit_budget(budget or BUDGETS[effort], request.max_tokens, given=budget is not None)
        if budget is None:
            built.dropped.append("reasoning")
        else:
            more["thinking"] = {"type": "enabled", "budget_tokens": budget}
    elif "nova" in request.model:
        word = "low" if effort == "minimal" else "high" if effort in ("xhigh", "max") else effort
        more["reasoningConfig"] = {"type": "disabled"} if off else {"type": "enabled", "maxReasoningEffort": word}
    elif "gpt-oss" in request.model and not off:
        more["reasoning_effort"] = effort
    elif not off and reasoning.effort in API_EFFORTS:
        built.body["outputConfig"] = {"effort": reasoning.effort}
    elif not off or reasoning.effort != "none":
        built.dropped.append("reasoning")


def _build_parameters(request: Request, more: JsonObject, built: Built) -> None:
    """Like ``give``, with the names of the common part, which is one level down."""
    names = {**PARAMETERS, "top_k": "top_k", "serviceTier": "service_tier", "requestMetadata": "metadata"}
    given = Built({}, built.dropped)
    give(request, names, given)
    if "top_k" in given.body:
        more["top_k"] = given.body.pop("top_k")
    tier = given.body.pop("serviceTier", None)
    if tier in TIERS:
        built.body["serviceTier"] = {"type": tier}
    elif tier not in (None, "auto"):
        built.dropped.append("service_tier")
    notes: JsonObject = given.body.pop("requestMetadata", None) or {}
    if notes and len(notes) <= _METADATA_ENTRIES and all(isinstance(value, str) for value in notes.values()):
        built.body["requestMetadata"] = notes
    elif notes:
        built.dropped.append("metadata")
    if given.body:
        built.body["inferenceConfig"] = given.body


def _parse_output(fields: Fields, request: Request) -> None:
    config = fields.inner("outputConfig")
    if config is None:
        return
    given = config.take("effort", str)
    effort = next((word for word in API_EFFORTS if word == given), None)
    if effort is not None:
        request.reasoning = request.reasoning or Reasoning()
        request.reasoning.effort = effort
    form = config.inner("textFormat")
    structure = None if form is None else form.inner("structure")
    schema = None if structure is None else structure.inner("jsonSchema")
    if schema is None:
        return
    try:
        rules = msgspec.json.decode(schema.need("schema", str), type=JsonObject)
    except JSON_ERRORS:
        raise schema.wrong("schema", "a JSON schema as text", "what is there") from None
    request.output = OutputFormat("json_schema", schema.take("name", str, ""), schema.take("description", str, ""), rules)


def _build_output(output: OutputFormat, body: JsonObject) -> None:
    if output.kind == "text":
        return
    schema = {"schema": msgspec.json.encode(output.schema or {"type": "object"}).decode(), "name": output.name or "answer"}
    if output.description:
        schema["description"] = output.description
    form = {"type": "json_schema", "structure": {"jsonSchema": schema}}
    body["outputConfig"] = {**body.get("outputConfig", {}), "textFormat": form}
