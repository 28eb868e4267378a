"""Converts the body that a chat transport posts to a Request. Only clients use this dialect, so there is no builder.

One assistant UI message has a whole tool loop: each of its steps becomes a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from ...json_types import JsonObject
from ...messages import (
    MediaPart,
    Message,
    NativePart,
    Part,
    ReasoningPart,
    RefusalPart,
    Request,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    ToolSpec,
)
from ..common.conversation import media_from_url
from ..common.fields import Fields, keep_extra, take
from ..common.function_tools import parse_choice
from ..common.server_tools import Answers, ApprovalAnswer, reason_in
from .wire import DIALECT, read_metadata

_ROLES: Final = ("system", "user", "assistant")
_SHOWN_ONLY: Final = ("source-url", "source-document")
_DENIED: Final = "Tool call execution denied."


def parse_messages(messages: list[Fields]) -> tuple[list[Message], list[JsonObject]]:
    """The messages, and the user's answers to calls that requested approval and have no result yet."""
    parsed: list[Message] = []
    approvals: list[JsonObject] = []
    roles = [fields.need("role", str) for fields in messages]
    last_user = max((number for number, role in enumerate(roles) if role == "user"), default=-1)
    for number, (role, fields) in enumerate(zip(roles, messages, strict=True)):
        parts = fields.objects("parts") or _plain(fields)
        match role:
            case "system":
                parsed.append(Message("system", _parse_plain(parts)))
            case "user":
                parsed.append(Message("user", _parse_plain(parts)))
            case "assistant":
                turns = _Turns(superseded=number < last_user)
                for part in parts:
                    turns.add(part)
                parsed += [message for message in turns.messages if message.parts]
                approvals += turns.approvals
            case _:
                raise fields.wrong("role", " or ".join(_ROLES), role)
    return parsed, approvals


def _plain(fields: Fields) -> list[Fields]:
    """Older clients send ``content`` instead of ``parts``."""
    content = fields.take("content", str, "")
    return [Fields({"type": "text", "text": content}, fields.where("content"))] if content else []


class _Turns:
    """The turns of one assistant UI message."""

    def __init__(self, superseded: bool) -> None:
        self.messages: list[Message] = []
        self.approvals: list[JsonObject] = []
        self._superseded = superseded
        self._step: Message | None = None
        self._results: Message | None = None

    def add(self, part: Fields) -> None:
        kind = part.need("type", str)
        if kind == "step-start":
            self._step = self._results = None
        elif kind == "steering-message":
            self._step = self._results = None
            self.messages.append(Message("user", _parse_plain(part.objects("parts"))))
        elif kind == "dynamic-tool":
            self._add_call(part, part.need("toolName", str))
        elif kind.startswith("tool-"):
            self._add_call(part, kind.removeprefix("tool-"))
        else:
            parsed = _parse_part(kind, part)
            if parsed is not None:
                self._turn("assistant").parts.append(parsed)

    def _turn(self, role: Role) -> Message:
        if role == "assistant":
            if self._step is None:
                self._step = Message("assistant", [])
                self.messages.append(self._step)
            return self._step
        if self._results is None:
            self._results = Message("tool", [])
            self.messages.append(self._results)
        return self._results

    def _add_call(self, part: Fields, name: str) -> None:
        state = part.take("state", str, "")
        if state == "input-streaming" or (state == "approval-requested" and self._superseded):
            return
        call = _parse_call(part, name)
        self._turn("assistant").parts.append(call)
        approval = part.inner("approval")
        result = _parse_result(part, state, call, approval)
        if result is None:
            if state == "approval-responded" and approval is not None:
                approved = {"id": approval.need("id", str), "callId": call.call_id, "approved": True}
                reason = approval.take("reason", str)
                self.approvals.append({**approved, **({"reason": reason} if reason else {})})
        elif call.kind == "server":
            self._turn("assistant").parts.append(result)
        else:
            self._turn("tool").parts.append(result)


def _parse_call(part: Fields, name: str) -> ToolCallPart:
    echo, native, marks = read_metadata(part.take("callProviderMetadata", dict))
    value = part.any("input")
    raw = part.any("rawInput")
    if value is None:
        value = raw
    custom = marks.get("kind") == "custom" and isinstance(value, str)
    arguments = value if isinstance(value, str) and custom else _json(value)
    call = ToolCallPart(part.need("toolCallId", str), name, arguments, "custom" if custom else "function")
    if part.take("providerExecuted", bool, False):
        call.kind = "server"
    call.echo, call.native = echo, native
    return call


def _json(value: object) -> str:
    """The input as JSON text. An input that was not JSON is kept in an object that says so."""
    if isinstance(value, str):
        return msgspec.json.encode({"input": value}).decode()
    return msgspec.json.encode({} if value is None else value).decode()


def _parse_result(part: Fields, state: str, call: ToolCallPart, approval: Fields | None) -> ToolResultPart | None:
    _, native, _ = read_metadata(part.take("resultProviderMetadata", dict))
    reason = "" if approval is None else approval.rest.get("reason")
    denied = reason if isinstance(reason, str) and reason else _DENIED
    match state:
        case "output-available":
            output = part.any("output")
            text = output if isinstance(output, str) else msgspec.json.encode(output).decode()
            failed = False
        case "output-error":
            text, failed = part.take("errorText", str, "") or "error", True
        case "output-denied":
            text, failed = denied, True
        case "approval-responded" if approval is not None and approval.take("approved", bool, False) is False:
            text, failed = denied, True
        case _:
            return None
    return ToolResultPart(call.call_id, [TextPart(text)], failed, call.name, call.kind, native)


# --- parts


def _parse_plain(parts: list[Fields]) -> list[Part]:
    """The parts of a message that is not the assistant's."""
    parsed = [_parse_part(part.need("type", str), part) for part in parts]
    return [part for part in parsed if part is not None]


def _parse_part(kind: str, part: Fields) -> Part | None:
    """The part; None for parts that are only shown: sources, and data of the application."""
    if kind in _SHOWN_ONLY or kind.startswith("data-"):
        return None
    echo, _, marks = read_metadata(part.take("providerMetadata", dict))
    match kind:
        case "text":
            text = part.take("text", str, "")
            if marks.get("refusal") is True:
                return RefusalPart(text)
            return TextPart(text, echo=echo) if text or echo else None
        case "reasoning":
            summary, redacted = marks.get("summary") is True, marks.get("redacted") is True
            return ReasoningPart(part.take("text", str, ""), summary, redacted, echo)
        case "file":
            return _parse_file(part)
    return NativePart(DIALECT, {"type": kind, **part.rest})


def _parse_file(part: Fields) -> MediaPart:
    mime = part.take("mediaType", str, "application/octet-stream")
    media = media_from_url(part.take("url", str, ""), mime if "/" in mime else f"{mime}/*")
    reference = part.take("providerReference", dict)
    if reference:
        media.file_id = next((value for value in reference.values() if isinstance(value, str)), "")
        media.url = media.data = ""
    media.filename = part.take("filename", str, "")
    return media


# --- the request

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
