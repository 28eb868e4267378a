"""Converts a client's RunAgentInput to a Request. Only clients use AG-UI, so there is no builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.json import encode

from ...json_types import JsonObject, JsonValue
from ...messages import Message, Reasoning, Request, TextPart
from ..approval import Answers, ApprovalAnswer, reason_in
from ..common.function_tools import parse_choice, parse_function
from ..fields import Fields
from ..parameters import keep_extra, take
from .history import parse_messages
from .wire import DIALECT

PARAMETERS: Final = {
    "maxTokens": "max_tokens",
    "stop": "stop",
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "minP": "min_p",
    "frequencyPenalty": "frequency_penalty",
    "presencePenalty": "presence_penalty",
    "seed": "seed",
    "parallelToolCalls": "parallel_tool_calls",
    "verbosity": "verbosity",
    "serviceTier": "service_tier",
    "user": "user",
}
"""The protocol has no sampling parameters; these are accepted inside ``forwardedProps``."""
ESSENTIAL: Final = frozenset(("resume",))
_EMPTY: Final[tuple[JsonValue, ...]] = (None, {}, [])


def parse(body: JsonObject) -> Request:
    """``threadId``, ``runId``, ``state``, ``resume`` and all unknown fields stay in ``extra``: the run needs them, the model
    does not."""
    fields = Fields(body)
    request = Request(dialect=DIALECT, stream=True)
    session = {name: fields.need(name, str) for name in ("threadId", "runId")}
    request.messages = parse_messages(fields.objects("messages"))
    _add_context(fields.objects("context"), request.messages)
    request.tools = [parse_function(tool) for tool in fields.objects("tools")]
    _take_forwarded(fields, request)
    resume = [_parse_resume(answer) for answer in fields.objects("resume")]
    left = {name: value for name, value in fields.rest.items() if value not in _EMPTY}
    keep_extra(request, {**session, **({"resume": resume} if resume else {}), **left}, ESSENTIAL)
    return request


def _add_context(context: list[Fields], messages: list[Message]) -> None:
    """Adds the application's context as system instructions after the existing ones."""
    if not context:
        return
    lines = [f"{entry.take('description', str, '')}: {entry.take('value', str, '')}" for entry in context]
    place = next((number for number, message in enumerate(messages) if message.role not in ("system", "developer")), None)
    context_message = Message("system", [TextPart("\n".join(["Context:", *lines]))])
    messages.insert(len(messages) if place is None else place, context_message)


def _take_forwarded(fields: Fields, request: Request) -> None:
    value = fields.any("forwardedProps")
    if not isinstance(value, dict):
        if value is not None:
            fields.rest["forwardedProps"] = value
        return
    forwarded = Fields(value, "forwardedProps")
    request.model = forwarded.take("model", str, "")
    take(forwarded, PARAMETERS, request)
    effort = forwarded.effort("reasoningEffort", forwarded.take("reasoningEffort", str))
    if effort is not None:
        request.reasoning = Reasoning(effort)
    request.tool_choice = parse_choice(forwarded, "toolChoice")
    fields.rest["forwardedProps"] = forwarded.rest


def _parse_resume(answer: Fields) -> JsonObject:
    status = answer.need("status", str)
    if status not in ("resolved", "cancelled"):
        raise answer.wrong("status", "resolved or cancelled", status)
    known = {"interruptId": answer.need("interruptId", str), "status": status}
    return {**known, **{name: value for name, value in answer.rest.items() if value is not None}}


def approval_answers(body: JsonObject, _is_suspended: Callable[[str], bool]) -> Answers:
    """The decisions in ``resume``: [{interruptId, status, payload: {approved, arguments?, reason?}}]. A cancelled one is a
    denial."""
    resume = body.get("resume")
    found = []
    for entry in resume if isinstance(resume, list) else ():
        if not isinstance(entry, dict) or not isinstance(entry.get("interruptId"), str):
            continue
        payload = entry.get("payload")
        decision: JsonObject = payload if isinstance(payload, dict) else {}
        approved = entry.get("status") == "resolved" and decision.get("approved") is True
        changed = decision.get("arguments")
        arguments = encode(changed).decode() if isinstance(changed, dict) else changed
        found.append(
            ApprovalAnswer(entry["interruptId"], approved, arguments if isinstance(arguments, str) else None, reason_in(decision))
        )
    return found, body
