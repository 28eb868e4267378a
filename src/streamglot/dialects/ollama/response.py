"""Builds the response object for a client."""

from __future__ import annotations

from ...json_types import JsonObject
from ...messages import MediaPart, ReasoningPart, RefusalPart, Response, ResponseChoice, TextPart, ToolCallPart
from ...stages.steps import with_step_breaks
from ..common.function_tools import call_arguments
from .reader import OllamaReader
from .wire import done_reason, error_body, write_time, write_usage


def build(response: Response, *, strict: bool = False, generate: bool = False) -> JsonObject:
    """``generate``: the object of /api/generate. An incomplete answer is an error, because the format has no other way to say
    so."""
    if response.error is not None:
        return error_body(response.error)
    choice = next((choice for choice in response.choices if choice.index == 0), ResponseChoice(0))
    body: JsonObject = {"model": response.model, "created_at": write_time(response.created)}
    message, images = _message(choice, calls=not generate)
    if generate:
        body["response"] = message.pop("content")
        if "thinking" in message:
            body["thinking"] = message["thinking"]
        if images:
            body["image"] = images[-1]
    else:
        body["message"] = {"role": "assistant", **message}
    body["done"] = True
    body["done_reason"] = done_reason(choice.stop_reason or "other", choice.raw_stop_reason)
    for extra in response.extras:
        if extra.dialect == OllamaReader.dialect:
            body.update({name: value for name, value in extra.data.items() if name not in ("logprobs", "completed", "total")})
    logprobs = [token for extra in response.extras if extra.dialect == "ollama" for token in extra.data.get("logprobs", ())]
    if logprobs:
        body["logprobs"] = logprobs
    if response.extensions is not None and not strict:
        body["extensions"] = response.extensions
    return {**body, **write_usage(response.usage)}


def _message(choice: ResponseChoice, calls: bool) -> tuple[JsonObject, list[str]]:
    texts: list[str] = []
    thoughts: list[str] = []
    made: list[JsonObject] = []
    images: list[str] = []
    for part in with_step_breaks(choice):
        match part:
            case TextPart() | RefusalPart():
                texts.append(part.text)
            case ReasoningPart():
                thoughts.append(part.text)
            case ToolCallPart(kind="function" | "custom", complete=True) if calls:
                function = {"index": len(made), "name": part.name, "arguments": call_arguments(part)}
                made.append({"id": part.call_id, "function": function})
            case MediaPart() if part.mime.startswith("image/") and part.data:
                images.append(part.data)
    message: JsonObject = {"content": "".join(texts)}
    if any(thoughts):
        message["thinking"] = "".join(thoughts)
    if made:
        message["tool_calls"] = made
    return message, images
