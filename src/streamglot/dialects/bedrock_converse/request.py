"""Converse requests: a client's body to a Request, and a Request to the body for the service.

The model is part of the URL and not of the body. Options of one model family beyond the common fields go into
``additionalModelRequestFields``: thinking and top_k.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ...events import Echo
from ...json_types import JSON_ERRORS, JsonObject
from ...messages import EFFORTS, Built, Message, OutputFormat, Reasoning, Request, ToolChoice, ToolSpec
from ..common.conversation import cache_mark
from ..common.function_tools import NO_PARAMETERS
from ..fields import Fields
from ..parameters import give, give_extra, keep_extra, take
from ..thinking_budget import fit_budget, is_off
from .history import History, parse_content, parse_messages
from .wire import DIALECT

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
