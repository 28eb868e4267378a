"""Calls that our loop ran, in the history that a client brings back."""

from __future__ import annotations

from msgspec import structs

from ..dialects.own_tools import is_own_id
from ..messages import Message, Part, Request, Response, ResponseChoice, ToolCallPart, ToolResultPart
from ..stages import messages_of


def with_own_calls(request: Request) -> Request:
    """The request as a provider knows its conversation: calls that a loop ran are calls of functions, followed by their
    results. A request that declares no tools loses them, because some providers refuse calls without declared tools."""
    if not _has_calls(request.messages):
        return request
    request = _without_hosted(request)
    if not any(_of_loop(part) for message in request.messages for part in message.parts):
        return request
    messages: list[Message] = []
    for message in request.messages:
        ours = {part.call_id for part in message.parts if isinstance(part, ToolCallPart) and _of_loop(part)}
        if not ours:
            messages.append(message)
        elif request.tools:
            messages += messages_of(Response(choices=[ResponseChoice(0, message.parts)]))
        else:
            rest = [
                part for part in message.parts if not (isinstance(part, (ToolCallPart, ToolResultPart)) and part.call_id in ours)
            ]
            messages += [structs.replace(message, parts=rest)] if rest else []
    return structs.replace(request, messages=messages)


def _without_hosted(request: Request) -> Request:
    """Calls that were shown in the form of a provider's own tools are left out: no provider knows them. The text of the answer
    that used them stays."""
    if not any(_is_hosted(part) for message in request.messages for part in message.parts):
        return request
    left = [
        structs.replace(message, parts=[part for part in message.parts if not _is_hosted(part)]) for message in request.messages
    ]
    return structs.replace(request, messages=[message for message in left if message.parts])


def _has_calls(messages: list[Message]) -> bool:
    for message in messages:
        for part in message.parts:
            if isinstance(part, (ToolCallPart, ToolResultPart)):
                return True
    return False


def _is_hosted(part: Part) -> bool:
    return isinstance(part, (ToolCallPart, ToolResultPart)) and is_own_id(part.call_id)


def _of_loop(part: Part) -> bool:
    return isinstance(part, ToolCallPart) and part.kind == "server" and part.native is None
