"""Requests for /api/chat and /api/generate: a client's body to a Request, and a Request to the body for an upstream.

The wire has results without ids too: they are matched to calls by id, by the tool's name, or by order.
"""

from __future__ import annotations

from typing import Final

from ...errors import Unsupported
from ...events import Echo
from ...json_types import JsonObject
from ...messages import (
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
    TextPart,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    ToolSpec,
)
from ..common.conversation import add_parts, image_type, media_from_url, split_results, without_results
from ..common.fields import Fields, begin, give, give_extra, is_off, keep_extra, named_part, take
from ..common.function_tools import arguments_object, build_function, parse_call, parse_function
from ..common.state import is_native

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


# --- the request

PARAMETERS: Final = {"logprobs": "logprobs", "top_logprobs": "top_logprobs"}
OPTIONS: Final = {
    "num_predict": "max_tokens",
    "stop": "stop",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "repeat_penalty": "repetition_penalty",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}
"""Fields of the object ``options``; its other fields (num_ctx, mirostat …) belong to this dialect only."""
ESSENTIAL: Final = frozenset(("suffix", "template", "raw", "context"))
LEVELS: Final = ("low", "medium", "high", "max")
_LEVEL_OF: Final = {"minimal": "low", "xhigh": "high"}


def parse(body: JsonObject) -> Request:
    """A body with ``messages`` is for /api/chat, any other for /api/generate. Both stream by default."""
    fields, request = begin(body, DIALECT, stream=True)
    if "messages" in fields.rest:
        request.messages = parse_messages(fields.objects("messages"))
    else:
        request.messages = _parse_prompt(fields)
    request.tools = [_parse_tool(tool) for tool in fields.objects("tools")]
    request.reasoning = _parse_think(fields)
    request.output = _parse_format(fields)
    take(fields, PARAMETERS, request)
    options = fields.inner("options")
    if options is not None:
        _parse_options(options, request)
        if options.rest:
            fields.rest["options"] = options.rest
    keep_extra(request, fields.rest, [name for name in ESSENTIAL if fields.rest.get(name)])
    return request


def build(request: Request, *, generate: bool = False, think_levels: bool = True) -> Built:
    """``generate``: build the body for /api/generate. ``think_levels``: the model
    accepts low, medium and high for ``think``; most accept only true and false."""
    built = Built({"model": request.model})
    body = built.body
    body.update(_build_prompt(request, built) if generate else _build_chat(request, built))
    body["stream"] = request.stream
    _build_think(request.reasoning, think_levels, built)
    if request.output is not None and request.output.kind != "text":
        body["format"] = request.output.schema or "json"
    give(request, {**OPTIONS, **PARAMETERS}, built)
    options = {name: body.pop(name) for name in OPTIONS if name in body}
    own = request.extra.get("options") if request.dialect == DIALECT else None
    options = {**(own if isinstance(own, dict) else {}), **options}
    if options:
        body["options"] = options
    give_extra(request, DIALECT, built)
    return built


# --- the two forms


def _parse_prompt(fields: Fields) -> list[Message]:
    messages = []
    system = fields.take("system", str, "")
    if system:
        messages += parse_messages([Fields({"role": "system", "content": system})])
    parts = parse_content(fields, "prompt")
    if parts:
        messages.append(Message("user", parts))
    return messages


def _build_prompt(request: Request, built: Built) -> JsonObject:
    system = [message for message in request.messages if message.role in ("system", "developer")]
    rest = [message for message in request.messages if message not in system]
    if len(rest) > 1 or any(message.role != "user" for message in rest):
        raise Unsupported("/api/generate accepts one prompt, not a conversation; use /api/chat", detail={"param": "messages"})
    if request.tools:
        raise Unsupported("/api/generate accepts no tools; use /api/chat", detail={"param": "tools"})
    body = build_content([part for message in rest for part in message.parts], built, "prompt")
    if system:
        body["system"] = "\n\n".join(message.text for message in system)
    return body


def _build_chat(request: Request, built: Built) -> JsonObject:
    body: JsonObject = {"messages": build_messages(request.messages, built)}
    choice = request.tool_choice or ToolChoice()
    if choice.mode == "required" or (choice.tools and choice.mode == "auto"):
        raise Unsupported("the chosen upstream cannot be forced to call a tool", detail={"param": "tool_choice"})
    if request.tools and choice.mode != "none":
        body["tools"] = [_build_tool(tool, built) for tool in request.tools]
    return body


# --- tools


def _parse_tool(tool: Fields) -> ToolSpec:
    kind = tool.take("type", str, "function")
    if kind != "function":
        return ToolSpec(kind, kind="server", native=Echo(DIALECT, {"type": kind, **tool.rest}))
    return parse_function(tool.need_inner("function", "a tool of type 'function'"))


def _build_tool(tool: ToolSpec, built: Built) -> JsonObject:
    if tool.native is not None and is_native(tool.native, DIALECT):
        return tool.native.data
    function = build_function(tool)
    if "strict" in function:
        del function["strict"]
        built.drop("tools.strict")
    return {"type": "function", "function": function}


# --- think, format, options


def _parse_think(fields: Fields) -> Reasoning | None:
    think = fields.any("think")
    if think is None or isinstance(think, bool):
        return None if think is None else Reasoning(enabled=think)
    if think not in LEVELS:
        raise fields.wrong("think", f"true, false, {', '.join(LEVELS)}", think)
    return Reasoning(effort=think)


def _build_think(reasoning: Reasoning | None, levels: bool, built: Built) -> None:
    if reasoning is None:
        return
    if reasoning.budget_tokens is not None:
        built.drop("reasoning.budget_tokens")
    if reasoning.summary is not None:
        built.drop("reasoning.summary")
    if is_off(reasoning):
        built.body["think"] = False
    elif reasoning.effort is not None and levels:
        built.body["think"] = _LEVEL_OF.get(reasoning.effort, reasoning.effort)
    elif reasoning.effort or reasoning.enabled or reasoning.budget_tokens:
        built.body["think"] = True


def _parse_format(fields: Fields) -> OutputFormat | None:
    form = fields.any("format")
    if form is None or form == "":
        return None
    if form == "json":
        return OutputFormat("json_object")
    if not isinstance(form, dict):
        raise fields.wrong("format", "'json' or a JSON schema", form)
    return OutputFormat("json_schema", schema=form)


def _parse_options(options: Fields, request: Request) -> None:
    max_tokens = options.rest.get("num_predict")
    endless = isinstance(max_tokens, int) and max_tokens < 0
    if endless:
        del options.rest["num_predict"]
    take(options, OPTIONS, request)
    if endless:
        # -1 means "no limit" and -2 "until the context is full", only in this dialect.
        options.rest["num_predict"] = max_tokens
