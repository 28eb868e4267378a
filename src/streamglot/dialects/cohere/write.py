"""Builds the chat response object for a client."""

from __future__ import annotations

from ...json_types import JsonObject
from ...messages import ReasoningPart, RefusalPart, Response, ResponseChoice, TextPart, ToolCallPart
from ..common.custom_tools import call_as_function
from ..common.function_tools import build_call
from ..common.state import is_native, pack
from .wire import DIALECT, FINISH_OF, REASONS, error_body, write_usage


def build(response: Response, *, strict: bool = False) -> JsonObject:
    """Only the first answer: this dialect has no others. ``strict``: no opaque state of other providers."""
    choice = next((choice for choice in response.choices if choice.index == 0), ResponseChoice(0))
    if response.error is not None and not choice.parts:
        return error_body(response.error)
    raw = choice.raw_stop_reason
    body: JsonObject = {
        "id": response.id,
        "finish_reason": raw if raw in REASONS else FINISH_OF[choice.stop_reason or "other"],
        "message": _build_message(choice, strict),
    }
    if response.error is not None:
        body["finish_reason"] = "ERROR"
    usage = write_usage(response.usage)
    if usage is not None:
        body["usage"] = usage
    for extra in response.extras:
        if extra.dialect == DIALECT and "logprobs" in extra.data:
            body["logprobs"] = extra.data["logprobs"]
    return body


def _build_message(choice: ResponseChoice, strict: bool) -> JsonObject:
    content: list[JsonObject] = []
    calls: list[JsonObject] = []
    citations: list[JsonObject] = []
    plan = ""
    for part in choice.parts:
        match part:
            case ReasoningPart():
                field = part.echo.data.get("field") if part.echo is not None and is_native(part.echo, DIALECT) else None
                if field == "tool_plan":
                    plan += part.text
                    continue
                block = {"type": "thinking", "thinking": part.text}
                if part.echo is not None and field != "thinking" and not strict:
                    block["signature"] = pack(part.echo)
                content.append(block)
            case TextPart():
                content.append({"type": "text", "text": part.text})
                citations += [one.native.data for one in part.citations if one.native and is_native(one.native, DIALECT)]
            case RefusalPart():
                content.append({"type": "text", "text": part.text})
            case ToolCallPart(kind="function" | "custom", complete=True):
                calls.append(build_call(call_as_function(part) if part.kind == "custom" else part))
    message: JsonObject = {"role": "assistant"}
    for name, value in (("content", content), ("tool_plan", plan), ("tool_calls", calls), ("citations", citations)):
        if value:
            message[name] = value
    return message
