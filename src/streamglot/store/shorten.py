"""Shortens contents that do not fit: each long part is cut and says so. Pure.

A shortened conversation can still be continued: messages and calls keep their places, ids and order.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from ..json_types import JsonValue
from ..messages import (
    MediaPart,
    NativePart,
    Part,
    ReasoningPart,
    RefusalPart,
    Request,
    Response,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

PART_CHARS: Final = 4096
"""Characters kept of each part: enough to recognize it, little enough for thousands of turns."""
ERROR_CHARS: Final = 500
"""Characters kept of an error message."""


def short_request(request: Request) -> Request:
    """The request with short messages. Long tools and long fields of a single dialect are left out."""
    return replace(
        request,
        messages=[replace(message, parts=[short_part(part) for part in message.parts]) for message in request.messages],
        tools=[] if encoded_size(request.tools) > PART_CHARS else request.tools,
        extra={} if encoded_size(request.extra) > PART_CHARS else request.extra,
        metadata=None if encoded_size(request.metadata) > PART_CHARS else request.metadata,
    )


def short_response(response: Response) -> Response:
    """The response with short parts. Its ending and its usage stay."""
    choices = [replace(choice, parts=[short_part(part) for part in choice.parts], extras=[]) for choice in response.choices]
    bare = bare_response(response)
    return replace(response, choices=choices, usage=bare.usage, error=bare.error, extras=[], extensions=None)


def bare_response(response: Response) -> Response:
    """The usage and the error of a response, without its content."""
    error = response.error
    if error is not None:
        error = replace(error, message=error.message[:ERROR_CHARS], detail=None)
    usage = replace(response.usage, raw=None)
    return Response(id=response.id, model=response.model, created=response.created, usage=usage, error=error)


def short_part(part: Part) -> Part:
    """The part itself if it is short, else its shortened form. The provider state of a cut part is dropped: a signature is
    worthless without the text that it signs."""
    match part:
        case TextPart() | RefusalPart() | ReasoningPart():
            return _short_text(part)
        case ToolCallPart() if len(part.arguments) > PART_CHARS or _large(part.echo, part.native):
            left_out = {"streamglot": f"{len(part.arguments)} characters of arguments were not stored"}
            return replace(part, arguments=msgspec.json.encode(left_out).decode(), echo=None, native=None)
        case ToolResultPart():
            content: list[JsonValue] = [short_part(inner) for inner in part.content]
            return replace(part, content=content, native=None if _large(part.native) else part.native)
        case MediaPart() if len(part.data) + len(part.url) + len(part.transcript) > PART_CHARS:
            return TextPart(f"[{part.mime or 'a medium'} of {len(part.data)} characters was not stored]")
        case NativePart() if encoded_size(part.data) > PART_CHARS:
            return TextPart(f"[a part in the dialect {part.dialect} was not stored]")
    return part


def _short_text(part: TextPart | RefusalPart | ReasoningPart) -> Part:
    large = not isinstance(part, RefusalPart) and _large(part.echo)
    if len(part.text) <= PART_CHARS and not large:
        return part
    text = part.text
    if len(text) > PART_CHARS:
        text = f"{text[:PART_CHARS]} [{len(text) - PART_CHARS} more characters were not stored]"
    if isinstance(part, RefusalPart):
        return RefusalPart(text)
    if isinstance(part, ReasoningPart):
        return replace(part, text=text, echo=None)
    return replace(part, text=text, echo=None, citations=[])


def _large(*states: object) -> bool:
    return any(state is not None and encoded_size(state) > PART_CHARS for state in states)


def encoded_size(value: object) -> int:
    """The approximate size in bytes. A value that cannot be encoded counts as large."""
    if not value:
        return 0
    try:
        return len(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return PART_CHARS + 1
