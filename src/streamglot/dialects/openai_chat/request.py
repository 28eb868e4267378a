"""Chat requests: a client's body to a Request, and a Request to the body for an upstream; the messages, then the parameters."""

from __future__ import annotations

from functools import cache
from typing import Final

from ...errors import Unsupported
from ...events import Echo
from ...json_types import JsonObject, JsonValue
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
from ..common.completions import SAMPLING, build_stream, parse_usage_option
from ..common.conversation import (
    add_parts,
    build_audio,
    build_image,
    cache_mark,
    data_url,
    media_from_url,
    parse_audio,
    parse_image,
    result_content,
    split_results,
    without_results,
)
from ..common.fields import Fields, begin, build_output, effort_for, give, give_extra, keep_extra, named_part, parse_output, take
from ..common.function_tools import (
    arguments_text,
    build_call,
    build_choice,
    build_function,
    parse_call,
    parse_choice,
    parse_function,
)
from ..common.state import is_native, unpack
from .wire import DIALECT, is_bare, is_our_summary, split_text, text_apart, unmarked, with_texts

_TEXT_ROLES = ("system", "developer", "user", "assistant")
_PLAIN = ("reasoning_content", "reasoning")
"""The fields for reasoning as plain text."""
UNNAMED = "reasoning_content"
"""The field for reasoning if it is not known who wrote it: upstreams refuse a turn without this one, and ignore the other."""
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


# --- the client's messages


def parse_messages(messages: list[JsonValue]) -> list[Message]:
    parsed: list[Message] = []
    for number, message in enumerate(messages):
        if type(message) is dict and len(message) == 2:
            role, content = message.get("role"), message.get("content")
            if role in _TEXT_ROLES and type(content) is str and content:  # the usual case
                parsed.append(Message(role, [TextPart(content)]))
                continue
        fields = Fields(message, f"messages[{number}]")
        role = fields.need("role", str)
        match role:
            case "system" | "developer" | "user":
                parsed.append(Message(role, fields.content(_parse_part), fields.take("name", str, "")))
            case "assistant":
                parsed.append(_parse_assistant(fields))
            case "tool":
                call_id, content = fields.need("tool_call_id", str), result_content(fields.content(_parse_part))
                result = ToolResultPart(call_id, content, name=fields.take("name", str, ""))
                add_parts(parsed, "tool", result)
            case "function":
                name = fields.need("name", str)
                content = result_content(fields.content(_parse_part))
                add_parts(parsed, "tool", ToolResultPart(_latest_call(parsed, name), content, name=name))
            case _:
                raise fields.wrong("role", " or ".join(_ROLES), role)
    return parsed


def _latest_call(parsed: list[Message], name: str) -> str:
    calls = [part for message in parsed for part in message.parts if isinstance(part, ToolCallPart) and part.name == name]
    return calls[-1].call_id if calls else f"call_{name}"


def _parse_assistant(fields: Fields) -> Message:
    thoughts, states = _parse_thoughts(fields)
    parts: list[Part] = [*thoughts, *_with_states(fields.content(_parse_part), states)]
    refusal = fields.take("refusal", str)
    if refusal:
        parts.append(RefusalPart(refusal))
    for call in fields.objects("tool_calls"):
        parts.append(_parse_call(call))
    legacy = fields.inner("function_call")
    if legacy is not None:
        name = legacy.need("name", str)
        parts.append(ToolCallPart(f"call_{name}", name, legacy.take("arguments", str, "") or "{}"))
    audio = fields.take("audio", dict)
    if audio is not None:
        parts.append(NativePart(DIALECT, {"audio": audio}))
    return Message("assistant", parts, fields.take("name", str, ""))


def _parse_call(call: Fields) -> ToolCallPart:
    call_id = call.need("id", str)
    custom = call.inner("custom")
    if custom is not None:
        part = ToolCallPart(call_id, custom.need("name", str), custom.take("input", str, ""), "custom")
    else:
        part = parse_call(call, call_id)
    extra = call.take("extra_content", dict)
    if extra is not None:
        packed = extra.get("streamglot")
        part.echo = unpack(packed) if isinstance(packed, str) else Echo(DIALECT, {"extra_content": extra})
    return part


def _with_states(parts: list[Part], states: list[Echo]) -> list[Part]:
    """The content with the states of its texts."""
    if not states or len(parts) != 1 or not isinstance(parts[0], TextPart):
        return parts
    return [TextPart(text, echo=echo, cache=parts[0].cache) for text, echo in split_text(parts[0].text, states)]


def _parse_thoughts(fields: Fields) -> tuple[list[ReasoningPart], list[Echo]]:
    """The reasoning of a message, with the fields that its upstream wrote, and the states of its texts. The writer invents the
    other fields for the client, and packs into ``reasoning_details`` which these are."""
    given = {field: text for field in _PLAIN if (text := fields.take(field, str))}
    plain = next(iter(given.values()), "")
    alike: list[JsonValue] = [UNNAMED] if len(set(given.values())) < len(given) else [*given][:1]
    parts: list[ReasoningPart] = []
    own: list[JsonObject] = []
    states: list[Echo] = []
    for entries in _entries(fields.take("reasoning_details", list, [])):
        packed = next((echo for entry in entries if (echo := _packed(entry)) is not None), None)
        if packed is None:
            own.append(_joined(entries))
        elif "indexes" in packed.data:
            parts.append(_own_reasoning(*unmarked(own, packed.data)))
            own = []
        elif set(packed.data) == {"text", "echo"}:
            states.append(packed)
        elif "texts" in packed.data:
            own = with_texts(own, packed.data)
        else:
            packed, beside = text_apart(packed)
            hidden = all(entry.get("type") == "reasoning.encrypted" for entry in entries)
            summary = any(entry.get("summary") or entry.get("type") == "reasoning.summary" for entry in entries)
            parts.append(ReasoningPart(_shown(entries) or beside, summary, hidden, packed))
    if own and not ((parts or given) and all(map(is_bare, own))):  # bare ones are invented beside the plain fields
        parts.append(_own_reasoning(own, alike, plain))
    if plain and not any(part.text for part in parts):
        cut = [part for part in parts if not part.redacted]
        if len(cut) == 1:  # the client joined the texts and kept the signature
            cut[0].text = plain
        else:
            parts.insert(0, ReasoningPart(plain, echo=Echo(DIALECT, {"field": alike[0]})))
    return parts, states


def _own_reasoning(entries: list[JsonObject], more: list[JsonValue], plain: str = "") -> ReasoningPart:
    """Reasoning in the upstream's own entries, with the fields that have its text too."""
    text = _shown(entries) or plain
    data: JsonObject = {"reasoning_details": entries, **({"more": more} if more else {})}
    return ReasoningPart(text, redacted=not text, echo=Echo(DIALECT, data))


def _joined(entries: list[JsonObject]) -> JsonObject:
    """One entry from its pieces."""
    if len(entries) == 1:
        return entries[0]
    merged: JsonObject = {}
    for entry in entries:
        for name, value in entry.items():
            before = merged.get(name)
            joined = name in ("text", "summary", "data") and isinstance(before, str) and isinstance(value, str)
            merged[name] = f"{before}{value}" if joined else value
    return merged


def _entries(details: list[JsonValue]) -> list[list[JsonObject]]:
    """The entries of ``reasoning_details``. Clients that append every piece of a stream return an entry in pieces."""
    groups: list[list[JsonObject]] = []
    for entry in details:
        if not isinstance(entry, dict) or is_our_summary(entry):
            continue
        place = entry.get("index")
        if groups and isinstance(place, int) and groups[-1][0].get("index") == place:
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


def _packed(entry: JsonObject) -> Echo | None:
    return unpack(str(entry.get("signature") or entry.get("data") or ""))


def _shown(entries: list[JsonObject]) -> str:
    return "".join(str(entry.get("text") or entry.get("summary") or "") for entry in entries)


def _parse_part(part: Fields) -> Part:
    kind = part.need("type", str)
    cache = part.inner("cache_control") or part.inner("prompt_cache_breakpoint")
    ttl = None if cache is None else cache.take("ttl", str, "")
    match kind:
        case "text" | "input_text" | "output_text":
            return TextPart(part.need("text", str), cache=ttl)
        case "refusal":
            return RefusalPart(part.need("refusal", str))
        case "thinking":
            pieces = part.objects("thinking")
            text = "".join(piece.take("text", str, "") for piece in pieces)
            state = {name: value for name, value in part.rest.items() if name in ("signature", "id")}
            return ReasoningPart(text, echo=Echo(DIALECT, {"thinking": state}))
        case "image_url":
            media = parse_image(part)
            media.cache = ttl
            return media
        case "input_audio":
            media = parse_audio(part)
            media.cache = ttl
            return media
        case "file":
            file = Fields(part.any("file"), part.where("file"))
            media = media_from_url(file.take("file_data", str, ""), "application/octet-stream")
            media.file_id, media.filename, media.cache = file.take("file_id", str, ""), file.take("filename", str, ""), ttl
            return media
    return NativePart(DIALECT, {"type": kind, **part.rest})


# --- the upstream's messages


def build_messages(messages: list[Message]) -> list[JsonObject]:
    built: list[JsonObject] = []
    for message in messages:
        parts = message.parts
        if len(parts) == 1 and type(parts[0]) is TextPart and parts[0].cache is None and not message.name:  # the usual case
            built.append({"role": message.role if message.role != "tool" else "user", "content": parts[0].text})
            continue
        rest, results = without_results(message)
        if results:
            built += _build_results(results)
        if message.role == "assistant":
            built.append(_build_assistant(message, rest))
        elif rest or not results:
            body: JsonObject = {"role": message.role if message.role != "tool" else "user", "content": _build_content(rest)}
            if message.name:
                body["name"] = message.name
            built.append(body)
    return built


def _build_results(results: list[ToolResultPart]) -> list[JsonObject]:
    """A message for each result. Their images and files follow in a user message."""
    texts, media = split_results(results, (MediaPart,))
    built: list[JsonObject] = [{"role": "tool", "tool_call_id": result.call_id, "content": text} for result, text in texts]
    if media:
        built.append({"role": "user", "content": _build_content(media)})
    return built


def _build_assistant(message: Message, parts: list[Part]) -> JsonObject:
    body: JsonObject = {"role": "assistant"}
    if message.name:
        body["name"] = message.name
    content: list[Part] = []
    calls: list[JsonObject] = []
    for part in parts:
        match part:
            case ReasoningPart():
                thinking = _build_thought(part, body)
                if thinking is not None:
                    content.append(thinking)
            case RefusalPart():
                body["refusal"] = part.text
            case ToolCallPart(kind="server"):
                pass
            case ToolCallPart():
                calls.append(_build_call(part))
            case NativePart(dialect="openai_chat") if "audio" in part.data:
                body["audio"] = part.data["audio"]
            case _:
                content.append(part)
    body["content"] = _build_content(content) if content else None if calls or "refusal" in body else ""
    if calls:
        body["tool_calls"] = calls
    return body


def _build_thought(part: ReasoningPart, body: JsonObject) -> NativePart | None:
    """Reasoning returns in the fields in which it came."""
    if part.echo is None:
        return None
    match part.echo.data:
        case {"thinking": dict(state)}:
            return NativePart(DIALECT, {"type": "thinking", "thinking": [{"type": "text", "text": part.text}], **state})
        case {"reasoning_details": list(entries)}:
            body["reasoning_details"] = [*body.get("reasoning_details", []), *entries]
        case {"field": field}:
            name = field if field in _PLAIN else UNNAMED
            body[name] = body.get(name, "") + part.text
    for name in part.echo.data.get("more") or ():
        if name in _PLAIN and part.text:
            body[name] = body.get(name, "") + part.text
    return None


def _build_call(part: ToolCallPart) -> JsonObject:
    call = build_call(part)
    if part.kind == "custom":
        return call
    call["function"]["arguments"] = arguments_text(part.arguments)
    if part.echo is not None and "extra_content" in part.echo.data:
        call["extra_content"] = part.echo.data["extra_content"]
    return call


def _build_content(parts: list[Part]) -> str | list[JsonObject]:
    if all(isinstance(part, TextPart) and part.cache is None for part in parts):
        return "".join(part.text for part in parts if isinstance(part, TextPart))
    return [_build_part(part) for part in parts]


def _build_part(part: Part) -> JsonObject:
    body: JsonObject
    match part:
        case TextPart():
            body = {"type": "text", "text": part.text}
        case RefusalPart():
            body = {"type": "refusal", "refusal": part.text}
        case MediaPart():
            body = _build_media(part)
        case NativePart(dialect="openai_chat"):
            body = part.data
        case _:
            raise Unsupported(f"{named_part(part)} cannot be expressed in a chat message")
    cache = getattr(part, "cache", None)
    if cache is not None:
        body["cache_control"] = cache_mark("ephemeral", cache)
    return body


def _build_media(part: MediaPart) -> JsonObject:
    if part.mime.startswith("image/") and not part.file_id:
        return build_image(part)
    if part.mime.startswith("audio/") and part.data:
        return build_audio(part)
    if part.file_id:
        return {"type": "file", "file": {"file_id": part.file_id}}
    if not part.data:
        raise Unsupported(f"a file by its URL ({part.url}) cannot be sent to a chat upstream; send its content")
    return {"type": "file", "file": {"filename": part.filename or "file", "file_data": data_url(part)}}


# --- the request

PARAMETERS: Final = {
    "max_completion_tokens": "max_tokens",
    "safety_identifier": "user",
    **SAMPLING,
    "logprobs": "logprobs",
    "top_logprobs": "top_logprobs",
    "parallel_tool_calls": "parallel_tool_calls",
    "verbosity": "verbosity",
    "modalities": "modalities",
    "audio": "audio",
    "service_tier": "service_tier",
    "prompt_cache_key": "cache_key",
    "store": "store",
    "metadata": "metadata",
}
ESSENTIAL: Final = frozenset(("web_search_options",))


def parse(body: JsonObject) -> Request:
    fields, request = begin(body, DIALECT)
    parse_usage_option(fields, request)
    request.messages = parse_messages(fields.take("messages", list, []))
    if not fields.rest.keys() <= PARAMETERS.keys():  # more than plain parameters
        request.tools = [parse_tool(tool) for tool in fields.objects("tools")]
        request.functions = "functions" in body
        request.tools += [_function(function) for function in fields.objects("functions")]
        request.tool_choice = _parse_choice(fields)
        request.reasoning = _parse_reasoning(fields)
        request.output = _parse_output(fields)
    take(fields, PARAMETERS, request)
    keep_extra(request, fields.rest, ESSENTIAL)
    return request


def build(request: Request, *, max_tokens: str = "max_tokens", reasoning_object: bool = False) -> Built:
    """``max_tokens`` is the upstream's name for the limit. ``reasoning_object``: the upstream takes the object ``reasoning`` of
    routers."""
    built = Built({"model": request.model, "messages": build_messages(request.messages), **build_stream(request)})
    body = built.body
    if request.tools:
        body["tools"] = [build_tool(tool) for tool in request.tools]
    if request.tool_choice is not None:
        body["tool_choice"] = _build_choice(request.tool_choice, request.tools)
    own = request.extra.get("reasoning") if request.dialect == DIALECT else None
    if reasoning_object or isinstance(own, dict):
        _build_reasoning_object(request.reasoning, own if isinstance(own, dict) else {}, built)
    else:
        _build_reasoning(request.reasoning, built)
    if request.output is not None:
        body["response_format"] = build_output(request.output, nested=True)
    give(request, _names(max_tokens), built)
    give_extra(request, DIALECT, built)
    return built


@cache
def _names(max_tokens: str) -> dict[str, str]:
    names = {name: field for name, field in PARAMETERS.items() if name != "safety_identifier"}  # not all servers know it
    return {max_tokens: "max_tokens", **names}


# --- tools


def parse_tool(tool: Fields) -> ToolSpec:
    kind = tool.take("type", str, "function")
    if kind == "function":
        spec = _function(tool.need_inner("function", "a tool of type 'function'"))
    elif kind == "custom":
        inner = tool.inner("custom") or tool
        name, description = inner.need("name", str), inner.take("description", str, "")
        spec = ToolSpec(name, description, kind="custom", format=inner.take("format", dict))
    else:
        native = Echo(DIALECT, {"type": kind, **tool.rest})
        spec = ToolSpec(tool.take("name", str, kind), kind="server", native=native)
    cache = tool.inner("cache_control")
    spec.cache = None if cache is None else cache.take("ttl", str, "")
    return spec


def _function(function: Fields) -> ToolSpec:
    spec = parse_function(function)
    spec.strict = function.take("strict", bool)
    return spec


def build_tool(tool: ToolSpec) -> JsonObject:
    if tool.kind == "server" and tool.native is not None:
        return tool.native.data
    return {"type": tool.kind, tool.kind: build_function(tool)}


def _parse_choice(fields: Fields) -> ToolChoice | None:
    legacy = fields.any("function_call")
    if fields.rest.get("tool_choice") is None and legacy is not None:
        fields.rest["tool_choice"] = legacy if isinstance(legacy, str) else {"type": "function", "function": legacy}
    return parse_choice(fields, "tool_choice", lists=True)


def _build_choice(choice: ToolChoice, tools: list[ToolSpec]) -> str | JsonObject:
    custom = {tool.name for tool in tools if tool.kind == "custom"}

    def named(name: str) -> JsonObject:
        kind = "custom" if name in custom else "function"
        return {"type": kind, kind: {"name": name}}

    return build_choice(choice, named, nested=True)


# --- reasoning and output


def _parse_reasoning(fields: Fields) -> Reasoning | None:
    """``reasoning_effort``, the object ``reasoning`` of routers, or the switch ``thinking`` of some servers."""
    effort = fields.take("reasoning_effort", str)
    more = fields.inner("reasoning")
    reasoning = _parse_switch(fields)
    if reasoning is None:
        if effort is None and more is None:
            return None
        reasoning = Reasoning()
    if more is not None:
        effort = effort or more.take("effort", str)
        reasoning.budget_tokens = more.take("max_tokens", int, reasoning.budget_tokens)
        reasoning.enabled = more.take("enabled", bool, reasoning.enabled)
        reasoning.summary = more.take("summary", str)
        if more.rest:
            fields.rest["reasoning"] = more.rest
    reasoning.effort = fields.effort("reasoning_effort", effort)
    return reasoning


def _parse_switch(fields: Fields) -> Reasoning | None:
    """``thinking``: a boolean, or an object whose type says the same. Other forms stay with the fields of this dialect."""
    match fields.rest.get("thinking"):
        case bool(enabled):
            reasoning = Reasoning(enabled=enabled)
        case {"type": "enabled" | "adaptive" | "disabled" as kind, **more}:
            budget = more.get("budget_tokens")
            reasoning = Reasoning(budget_tokens=budget if type(budget) is int else None, enabled=kind != "disabled")
        case _:
            return None
    reasoning.native = Echo(DIALECT, {"thinking": fields.any("thinking")})
    return reasoning


def _build_reasoning(reasoning: Reasoning | None, built: Built) -> None:
    if reasoning is None:
        return
    if reasoning.native is not None and is_native(reasoning.native, DIALECT):
        built.body.update(reasoning.native.data)
        if reasoning.effort is not None:
            built.body["reasoning_effort"] = reasoning.effort
        return
    effort = effort_for(reasoning, built)
    if effort is not None:
        built.body["reasoning_effort"] = effort


def _build_reasoning_object(reasoning: Reasoning | None, own: JsonObject, built: Built) -> None:
    """The object ``reasoning``, which takes the effort or a number of tokens, not both. ``own`` are fields that only it has: a
    client that sends them gets all others in it, too."""
    given: JsonObject = {}
    if reasoning is not None:
        if reasoning.enabled is False or reasoning.budget_tokens == 0:
            given["enabled"] = False
        elif reasoning.budget_tokens is not None:
            given["max_tokens"] = reasoning.budget_tokens
            if reasoning.effort is not None:
                built.dropped.append("reasoning.effort")
        elif reasoning.effort is not None:
            given["effort"] = reasoning.effort
        elif reasoning.enabled:
            given["enabled"] = True
    if given or own:
        built.body["reasoning"] = {**given, **own}


def _parse_output(fields: Fields) -> OutputFormat | None:
    form = fields.inner("response_format")
    return None if form is None else parse_output(form, nested=True)
