"""Builds the message object for a client."""

from __future__ import annotations

from ...json_types import JsonObject
from ...messages import (
    Part,
    ReasoningPart,
    RefusalPart,
    Response,
    ResponseChoice,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from ..echo import is_native
from .own_calls import call_block, own_call, own_result
from .state import is_redacted, packed, packed_beside
from .wire import DIALECT, arguments_object, error_body, stop_word, write_citation, write_usage


def build(response: Response, *, strict: bool = False) -> JsonObject:
    """Calls come last, because the API requires that when the client sends them back. An incomplete call is left out, so that
    no client runs it."""
    if response.error is not None and not any(choice.parts for choice in response.choices):
        return error_body(response.error)
    choice = next((choice for choice in response.choices if choice.index == 0), None) or ResponseChoice(0, stop_reason="other")
    extras = [extra.data for extra in response.extras if extra.dialect == DIALECT]
    content = [data["content_block"] for data in extras if isinstance(data.get("content_block"), dict)]
    calls: list[JsonObject] = []
    answered = {part.call_id: part for part in choice.parts if isinstance(part, ToolResultPart) and part.native is None}
    for part in choice.parts:
        if isinstance(part, ToolCallPart) and part.kind == "server" and part.native is None and part.call_id in answered:
            content += _own_blocks(part, answered[part.call_id])
            continue
        client_runs_it = isinstance(part, ToolCallPart) and part.kind != "server"
        (calls if client_runs_it else content).extend(_blocks(part))
    stop = None if choice.stop_reason is None else stop_word(choice.stop_reason, choice.raw_stop_reason, bool(calls))
    body: JsonObject = {
        "id": response.id,
        "type": "message",
        "role": "assistant",
        "model": response.model,
        "content": content + calls,
        "stop_reason": stop,
        "stop_sequence": choice.stop_sequence if stop == "stop_sequence" else None,
        "usage": write_usage(response.usage, strict),
    }
    for data in extras:
        names = ("stop_details", "container") if strict else ("stop_details", "container", "context_management")
        body.update({name: data[name] for name in names if name in data})
    if response.extensions is not None and not strict:
        body["extensions"] = response.extensions
    if response.error is not None:
        body.update(error_body(response.error))
    return body


def _blocks(part: Part) -> list[JsonObject]:
    match part:
        case TextPart() | RefusalPart():
            return _text_blocks(part)
        case ReasoningPart():
            return _reasoning_blocks(part)
        case ToolCallPart():
            return _call_blocks(part)
        case ToolResultPart() if part.native is not None and is_native(part.native, DIALECT):
            return [part.native.data]
    return []


def _text_blocks(part: TextPart | RefusalPart) -> list[JsonObject]:
    echo = part.echo if isinstance(part, TextPart) else None
    state: list[JsonObject] = [] if echo is None else [{"type": "redacted_thinking", "data": packed_beside(echo)}]
    if not part.text.strip():
        return state
    body: JsonObject = {"type": "text", "text": part.text}
    if isinstance(part, RefusalPart):
        return [body]
    citations = [citation for citation in map(write_citation, part.citations) if citation is not None]
    if citations:
        body["citations"] = citations
    return [body, *state]


def _reasoning_blocks(part: ReasoningPart) -> list[JsonObject]:
    echo = part.echo
    if echo is not None and (is_redacted(echo) or not (part.text or "signature" in echo.data)):
        return [{"type": "redacted_thinking", "data": packed(echo)}]
    if echo is None and not part.text:
        return []
    return [{"type": "thinking", "thinking": part.text, "signature": "" if echo is None else packed(echo)}]


def _own_blocks(call: ToolCallPart, result: ToolResultPart) -> list[JsonObject]:
    """A call that streamglot's tool loop ran, and its result."""
    arguments = call.arguments if call.complete else ""
    return [own_call(call.call_id, call.name, arguments), own_result(call.call_id, result.text, result.is_error)]


def _call_blocks(part: ToolCallPart) -> list[JsonObject]:
    own = part.native.data if part.native is not None and is_native(part.native, DIALECT) else None
    given = {"input": part.arguments} if part.kind == "custom" else arguments_object(part.arguments)
    body = call_block(part, own, given)
    if body is None or not (part.complete or part.kind == "server"):
        return []
    if part.echo is not None and part.kind != "server":
        return [body, {"type": "redacted_thinking", "data": packed_beside(part.echo)}]
    return [body]
