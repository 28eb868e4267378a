"""Chat requests: a client's body to a Request, and a Request to the body for the upstream; the messages, then the parameters."""

from __future__ import annotations

from typing import Final

from msgspec import structs

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
from ..common.conversation import add_parts, build_image, parse_image, result_content, without_results
from ..common.fields import Fields, begin, give, give_extra, is_off, keep_extra, named_part, take
from ..common.function_tools import NO_PARAMETERS, arguments_text, build_call, parse_call, parse_function
from ..common.state import unpack
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


# --- the request

PARAMETERS: Final = {
    "max_tokens": "max_tokens",
    "stop_sequences": "stop",
    "temperature": "temperature",
    "p": "top_p",
    "k": "top_k",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
    "logprobs": "logprobs",
}
ESSENTIAL: Final = frozenset(("documents",))
BUDGETS: Final = {"minimal": 512, "low": 1024, "medium": 4096, "high": 16_384, "xhigh": 31_000, "max": 31_000}
"""Thinking tokens for an effort: this upstream takes a number."""


def parse(body: JsonObject) -> Request:
    fields, request = begin(body, DIALECT)
    request.messages = parse_messages(fields.objects("messages"))
    strict = fields.take("strict_tools", bool)
    request.tools = [_parse_tool(tool, strict) for tool in fields.objects("tools")]
    choice = fields.take("tool_choice", str)
    if choice is not None:
        if choice.upper() not in ("REQUIRED", "NONE"):
            raise fields.wrong("tool_choice", "REQUIRED or NONE", choice)
        request.tool_choice = ToolChoice("required" if choice.upper() == "REQUIRED" else "none")
    thinking = fields.inner("thinking")
    if thinking is not None:
        enabled = thinking.take("type", str, "enabled") != "disabled"
        request.reasoning = Reasoning(budget_tokens=thinking.take("token_budget", int), enabled=enabled)
    request.output = _parse_output(fields)
    take(fields, PARAMETERS, request)
    keep_extra(request, fields.rest, ESSENTIAL)
    return request


def build(request: Request) -> Built:
    built = Built({"model": request.model, "messages": build_messages(request.messages)})
    body = built.body
    if request.stream:
        body["stream"] = True
    _build_tools(request, built)
    _build_reasoning(request.reasoning, body)
    if request.output is not None and request.output.kind != "text":
        body["response_format"] = {"type": "json_object"}
        if request.output.schema is not None:
            body["response_format"]["json_schema"] = request.output.schema
    give(request, PARAMETERS, built)
    give_extra(request, DIALECT, built)
    return built


def _parse_tool(tool: Fields, strict: bool | None) -> ToolSpec:
    spec = parse_function(tool.need_inner("function"))
    spec.strict = strict
    return spec


def _build_tools(request: Request, built: Built) -> None:
    """A choice among some tools is expressed by sending only those."""
    choice = request.tool_choice or ToolChoice()
    tools = [tool for tool in request.tools if not choice.tools or tool.name in choice.tools]
    if not tools:
        return
    built.body["tools"] = [_build_tool(tool) for tool in tools]
    if choice.mode != "auto":
        built.body["tool_choice"] = choice.mode.upper()
    if all(tool.strict for tool in tools):
        built.body["strict_tools"] = True


def _build_tool(tool: ToolSpec) -> JsonObject:
    body: JsonObject = {"name": tool.name, "parameters": tool.parameters or NO_PARAMETERS}
    if tool.description:
        body["description"] = tool.description
    return {"type": "function", "function": body}


def _build_reasoning(reasoning: Reasoning | None, body: JsonObject) -> None:
    if reasoning is None:
        return
    if is_off(reasoning):
        body["thinking"] = {"type": "disabled"}
        return
    body["thinking"] = {"type": "enabled"}
    budget = reasoning.budget_tokens or (BUDGETS[reasoning.effort] if reasoning.effort is not None else None)
    if budget is not None:
        body["thinking"]["token_budget"] = budget


def _parse_output(fields: Fields) -> OutputFormat | None:
    form = fields.inner("response_format")
    if form is None:
        return None
    kind = form.take("type", str, "text")
    schema = form.take("json_schema", dict) or form.take("schema", dict)
    if kind == "json_object":
        return OutputFormat("json_object") if schema is None else OutputFormat("json_schema", schema=schema)
    if kind != "text":
        raise form.wrong("type", "text or json_object", kind)
    return OutputFormat("text")
