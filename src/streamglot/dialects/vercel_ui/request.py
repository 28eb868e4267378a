"""Converts the body that a chat transport posts to a Request. Only clients use this dialect, so there is no builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...json_types import JsonObject
from ...messages import Message, Request, TextPart, ToolSpec
from ..approval import Answers, ApprovalAnswer, reason_in
from ..common.function_tools import parse_choice
from ..fields import Fields
from ..parameters import keep_extra, take
from .history import parse_messages
from .wire import DIALECT

PARAMETERS: Final = {
    "maxOutputTokens": "max_tokens",
    "stopSequences": "stop",
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "frequencyPenalty": "frequency_penalty",
    "presencePenalty": "presence_penalty",
    "seed": "seed",
}
"""Fields that an application adds to the body, named like the SDK's call settings."""
ESSENTIAL: Final = frozenset(("approvals",))


def parse(body: JsonObject) -> Request:
    """``id``, ``trigger``, ``messageId`` and all unknown fields stay in ``extra``, and so do ``approvals``, the user's answers
    to calls that requested approval."""
    fields = Fields(body)
    request = Request(dialect=DIALECT, stream=True)
    request.model = fields.take("model", str, "")
    request.messages, approvals = parse_messages(fields.objects("messages"))
    system = fields.take("system", str)
    if system:
        request.messages.insert(0, Message("system", [TextPart(system)]))
    request.tools = _parse_tools(fields)
    request.tool_choice = parse_choice(fields, "toolChoice")
    take(fields, PARAMETERS, request)
    extra = {name: value for name, value in fields.rest.items() if value is not None}
    keep_extra(request, {**extra, **({"approvals": approvals} if approvals else {})}, ESSENTIAL)
    return request


def _parse_tools(fields: Fields) -> list[ToolSpec]:
    """The SDK sends no tools; frontends with their own tools send them by name, or as a list."""
    value = fields.any("tools")
    if isinstance(value, dict):
        return [_parse_tool(Fields(tool, f"tools.{name}"), name) for name, tool in value.items()]
    if isinstance(value, list):
        return [_parse_tool(Fields(tool, f"tools[{number}]")) for number, tool in enumerate(value)]
    if value is not None:
        raise fields.wrong("tools", "a list, or an object by name", value)
    return []


def _parse_tool(tool: Fields, name: str = "") -> ToolSpec:
    schema = tool.take("inputSchema", dict) or tool.take("parameters", dict)
    if schema is not None and isinstance(schema.get("jsonSchema"), dict):
        schema = schema["jsonSchema"]
    return ToolSpec(name or tool.need("name", str), tool.take("description", str, ""), schema)


def approval_answers(body: JsonObject, _is_suspended: Callable[[str], bool]) -> Answers:
    """The decisions in parts of the last message whose state is ``approval-responded``. These parts are taken out of the message:
    the answer to this request has their calls again."""
    messages = body.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    parts = last.get("parts") if isinstance(last, dict) else None
    found, left = [], []
    for part in parts if isinstance(parts, list) else ():
        approval = part.get("approval") if isinstance(part, dict) and part.get("state") == "approval-responded" else None
        if isinstance(approval, dict) and isinstance(approval.get("id"), str):
            found.append(ApprovalAnswer(approval["id"], approval.get("approved") is True, reason=reason_in(approval)))
        else:
            left.append(part)
    if not found or not isinstance(messages, list) or not isinstance(last, dict):
        return [], body
    return found, {**body, "messages": [*messages[:-1], {**last, "parts": left}]}
