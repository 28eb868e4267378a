"""Builds the Converse response object."""

from __future__ import annotations

from ...json_types import JsonObject
from ...messages import (
    MediaPart,
    Part,
    ReasoningPart,
    RefusalPart,
    Response,
    ResponseChoice,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from ..common.function_tools import call_arguments
from ..common.state import is_native, pack
from .request import build_media
from .wire import DIALECT, FINISH_OF, REASONS, blob, error_body, write_usage


def build(response: Response, *, strict: bool = False) -> JsonObject:
    """Only the first answer: this dialect has no others. ``strict``: no opaque state of other providers."""
    choice = next((choice for choice in response.choices if choice.index == 0), ResponseChoice(0))
    if response.error is not None and not choice.parts:
        return error_body(response.error)
    content = [block for part in choice.parts if (block := _block(part, strict)) is not None]
    raw = choice.raw_stop_reason
    reason = raw if raw in REASONS else FINISH_OF[choice.stop_reason or "other"]
    body: JsonObject = {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": reason,
        "usage": write_usage(response.usage),
        "metrics": {"latencyMs": 0},
    }
    for extra in response.extras:
        if extra.dialect == DIALECT:
            body.update({name: value for name, value in extra.data.items() if name != "content"})
    if response.error is not None:
        body.update(error_body(response.error))
    return body


def _block(part: Part, strict: bool) -> JsonObject | None:
    match part:
        case TextPart() if own := [
            source.native.data for source in part.citations if source.native and is_native(source.native, DIALECT)
        ]:
            return {"citationsContent": {"content": [{"text": part.text}], "citations": own}}
        case TextPart() | RefusalPart():
            return {"text": part.text}
        case ReasoningPart():
            return _reasoning(part, strict)
        case ToolCallPart() if part.complete or part.kind == "server":
            call = {"toolUseId": part.call_id, "name": part.name, "input": call_arguments(part)}
            return {"toolUse": {**call, "type": "server_tool_use"} if part.kind == "server" else call}
        case ToolResultPart():
            return part.native.data if part.native is not None and "toolResult" in part.native.data else None
        case MediaPart() if part.data and part.mime.startswith("image/"):
            return build_media(part, 0)
    return None


def _reasoning(part: ReasoningPart, strict: bool) -> JsonObject | None:
    data = {} if part.echo is None else part.echo.data
    if part.echo is not None and not is_native(part.echo, DIALECT):
        packed = pack(part.echo)
        data = {"redactedContent": blob(packed)} if part.redacted else {"signature": packed}
        data = {} if strict else data
    if part.redacted:
        return {"reasoningContent": data} if data else None
    return {"reasoningContent": {"reasoningText": {"text": part.text, **data}}}
