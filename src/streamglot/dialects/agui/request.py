"""Converts a client's RunAgentInput to a Request. Only clients use AG-UI, so there is no builder.

Reasoning and the following text are separate messages there, and one turn here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.json import encode

from ...events import CallKind, Echo
from ...json_types import JsonObject, JsonValue
from ...messages import (
    MediaPart,
    Message,
    NativePart,
    Part,
    Reasoning,
    ReasoningPart,
    RefusalPart,
    Request,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from ..common.conversation import add_parts, media_from_url, result_content
from ..common.fields import Fields, keep_extra, take
from ..common.function_tools import arguments_text, parse_choice, parse_function
from ..common.lenient import string_in
from ..common.server_tools import Answers, ApprovalAnswer, reason_in
from ..common.state import unpack
from .wire import DIALECT

_ROLES: Final = ("developer", "system", "user", "assistant", "tool", "reasoning", "activity")
_MIME: Final = {"image": "image/*", "audio": "audio/*", "video": "video/*", "document": "application/octet-stream"}


def parse_messages(messages: list[Fields]) -> list[Message]:
    """One assistant turn for all consecutive assistant messages: the writer makes one message per block."""
    parsed: list[Message] = []
    for fields in messages:
        role = fields.need("role", str)
        match role:
            case "developer" | "system" | "user":
                message = Message(role, fields.content(_parse_part), fields.take("name", str, ""))
                message.echo = _parse_echo(fields)
                parsed.append(message)
            case "assistant":
                turn = add_parts(parsed, "assistant")
                turn.parts += _parse_assistant(fields)
                turn.name = turn.name or fields.take("name", str, "")
            case "reasoning":
                add_parts(parsed, "assistant", _parse_reasoning(fields))
            case "tool":
                add_parts(parsed, "tool", _parse_result(fields))
            case "activity":
                """Only shown to the user."""
            case _:
                raise fields.wrong("role", " or ".join(_ROLES), role)
    return _answered(parsed)


def _answered(parsed: list[Message]) -> list[Message]:
    """Matches each result with its call. The result of a tool that the provider ran stays in the turn that called it."""
    calls: dict[str, tuple[ToolCallPart, Message]] = {}
    for message in parsed:
        for part in list(message.parts):
            if isinstance(part, ToolCallPart):
                calls[part.call_id] = (part, message)
            elif isinstance(part, ToolResultPart) and part.call_id in calls:
                call, turn = calls[part.call_id]
                part.kind, part.name = call.kind, call.name
                if call.kind == "server":
                    message.parts.remove(part)
                    place = next(number for number, other in enumerate(turn.parts) if other is call)
                    turn.parts.insert(place + 1, part)
    return [message for message in parsed if message.parts or message.role == "user"]


def _parse_assistant(fields: Fields) -> list[Part]:
    metadata = fields.take("metadata", dict, {})
    content = fields.content(_parse_part)
    if metadata.get("refusal") is True:
        content = [RefusalPart(part.text) if isinstance(part, TextPart) else part for part in content]
    echo = _parse_echo(fields)
    if echo is not None:
        last = next((part for part in reversed(content) if isinstance(part, TextPart)), None)
        if last is None:
            last = TextPart("")
            content.append(last)
        last.echo = echo
    return [*content, *(_parse_call(call) for call in fields.objects("toolCalls"))]


def _parse_call(call: Fields) -> ToolCallPart:
    function = Fields(call.any("function"), call.where("function"))
    metadata = call.take("metadata", dict, {})
    kind: CallKind = "custom" if metadata.get("kind") == "custom" else "function"
    if metadata.get("kind") == "server":
        kind = "server"
    given = function.any("arguments")
    arguments = given if isinstance(given, str) and kind == "custom" else arguments_text(given)
    part = ToolCallPart(call.need("id", str), function.need("name", str), arguments, kind)
    part.complete = metadata.get("complete") is not False
    part.echo, part.native = _parse_echo(call), _parse_native(metadata)
    return part


def _parse_reasoning(fields: Fields) -> ReasoningPart:
    metadata = fields.take("metadata", dict, {})
    echo = _parse_echo(fields)
    redacted, summary = metadata.get("redacted") is True, metadata.get("summary") is True
    return ReasoningPart(fields.take("content", str, ""), summary, redacted, echo)


def _parse_result(fields: Fields) -> ToolResultPart:
    metadata = fields.take("metadata", dict, {})
    error = fields.take("error", str, "")
    content = result_content(fields.content(_parse_part))
    if error and not content:
        content = [TextPart(error)]
    result = ToolResultPart(fields.need("toolCallId", str), content, bool(error) or metadata.get("isError") is True)
    result.native = _parse_native(metadata) or _parse_echo(fields)
    return result


def _parse_echo(fields: Fields) -> Echo | None:
    """Opaque state of a provider or of another source."""
    value = fields.take("encryptedValue", str)
    if not value:
        return None
    return unpack(value) or Echo(DIALECT, {"encryptedValue": value})


def _parse_native(metadata: JsonObject) -> Echo | None:
    packed = metadata.get("streamglot")
    return unpack(packed) if isinstance(packed, str) else None


# --- content


def _parse_part(part: Fields) -> Part:
    kind = part.need("type", str)
    if kind == "text":
        return TextPart(part.need("text", str))
    if kind == "binary":
        return _parse_binary(part)
    if kind not in _MIME:
        return NativePart(DIALECT, {"type": kind, **part.rest})
    source = Fields(part.any("source"), part.where("source"))
    metadata = part.take("metadata", dict, {})
    form, value = source.need("type", str), source.need("value", str)
    mime = source.take("mimeType", str, _MIME[kind])
    match form:
        case "data":
            media = MediaPart(mime, value)
        case "url":
            media = media_from_url(value, mime)
        case "file":
            media = MediaPart(mime, file_id=value)
        case _:
            raise source.wrong("type", "data, url or file", form)
    media.detail, media.filename = string_in(metadata, "detail"), string_in(metadata, "filename")
    return media


def _parse_binary(part: Fields) -> MediaPart:
    """The form of a file before version 1.0."""
    media = media_from_url(part.take("url", str, ""), part.need("mimeType", str))
    media.data = media.data or part.take("data", str, "")
    media.file_id, media.filename = part.take("id", str, ""), part.take("filename", str, "")
    return media


# --- the request

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
