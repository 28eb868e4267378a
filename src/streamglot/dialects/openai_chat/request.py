"""Chat requests: a client's body to a Request, and a Request to the body for an upstream."""

from __future__ import annotations

from functools import cache
from typing import Final

from ...events import Echo
from ...json_types import JsonObject
from ...messages import Built, OutputFormat, Reasoning, Request, ToolChoice, ToolSpec
from ..common.completions import SAMPLING, build_stream, parse_usage_option
from ..common.function_tools import build_choice, build_function, parse_choice, parse_function
from ..echo import is_native
from ..fields import Fields
from ..parameters import begin, build_output, give, give_extra, keep_extra, parse_output, take
from ..thinking_budget import effort_for
from .history import build_messages, parse_messages
from .wire import DIALECT

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
