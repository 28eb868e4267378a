"""Cohere chat requests: a client's body to a Request, and a Request to the body for the upstream."""

from __future__ import annotations

from typing import Final

from ...json_types import JsonObject
from ...messages import Built, OutputFormat, Reasoning, Request, ToolChoice, ToolSpec
from ..common.function_tools import NO_PARAMETERS, parse_function
from ..fields import Fields
from ..parameters import begin, give, give_extra, keep_extra, take
from ..thinking_budget import is_off
from .history import build_messages, parse_messages
from .wire import DIALECT

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
