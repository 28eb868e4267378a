"""Responses requests: a client's body to a Request, and a Request to the body for an upstream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...json_types import JsonObject
from ...messages import Built, Reasoning, ReasoningPart, Request
from ..approval import Answers, ApprovalAnswer, reason_in
from ..fields import Fields
from ..parameters import begin, build_output, give, give_extra, keep_extra, parse_output, take
from ..thinking_budget import effort_for
from .history import parse_input
from .input_items import build_input
from .tools import build_choice, build_tools, parse_choice, parse_tools
from .wire import DIALECT

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
