"""Builds the GenerateContentResponse object for a client."""

from __future__ import annotations

from ...json_types import JsonObject
from ...messages import MediaPart, Part, Response, ResponseChoice, TextPart, ToolResultPart
from ...stages.steps import with_step_breaks
from .citations import write_citation
from .enums import named_enums
from .offsets import Offsets
from .parts import PartBuilder, is_native_part, whole_base64
from .signature import DIALECT, sign
from .wire import MALFORMED_CALL, error_body, write_reason, write_usage


def build(response: Response, *, strict: bool = False) -> JsonObject:
    """Every field except ``extensions`` is part of the specification."""
    if response.error is not None and not any(choice.parts for choice in response.choices):
        return error_body(response.error)
    body: JsonObject = {"candidates": [_build_candidate(choice) for choice in response.choices]}
    for extra in response.extras:
        match extra.data if extra.dialect == DIALECT else None:
            case {"candidate": dict(fields)} if body["candidates"]:
                body["candidates"][0].update(named_enums(fields))
            case {"promptFeedback": dict(feedback)}:
                body["promptFeedback"] = named_enums(feedback)
                if feedback.get("blockReason") and not any(choice.parts for choice in response.choices):
                    body["candidates"] = []
    if not body["candidates"]:
        del body["candidates"]
    usage = write_usage(response.usage, strict)
    if usage is not None:
        body["usageMetadata"] = usage
    for name, value in (("modelVersion", response.model), ("responseId", response.id)):
        if value:
            body[name] = value
    if response.extensions is not None and not strict:
        body["extensions"] = response.extensions
    if response.error is not None:
        body.update(error_body(response.error))
    return body


def _build_candidate(choice: ResponseChoice) -> JsonObject:
    malformed: list[str] = []
    with_breaks = with_step_breaks(choice)
    parts = PartBuilder(sign, malformed=malformed).build(_expressible(with_breaks))
    candidate: JsonObject = {"index": choice.index, "content": {"role": "model", "parts": parts or [{"text": ""}]}}
    finish = write_reason(choice.stop_reason, choice.raw_stop_reason) if choice.stop_reason is not None else None
    if malformed and finish != "MAX_TOKENS":
        finish = MALFORMED_CALL
        candidate["finishMessage"] = f"Malformed function call: {', '.join(malformed)}"
    if finish is not None:
        candidate["finishReason"] = finish
    text, sources, base = Offsets(), [], 0
    for part in with_breaks:
        if isinstance(part, TextPart):
            text.add(part.text)
            sources += [entry for citation in part.citations if (entry := write_citation(citation, text, base)) is not None]
            base += len(part.text)
    if sources:
        candidate["citationMetadata"] = {"citationSources": sources}
    return candidate


def _expressible(parts: list[Part]) -> list[Part]:
    """The parts without results of tools that a gateway ran, which a response of this dialect cannot express, and without media
    that no client can decode."""
    return [part for part in parts if not _is_inexpressible(part)]


def _is_inexpressible(part: Part) -> bool:
    match part:
        case ToolResultPart():
            return not is_native_part(part.native)
        case MediaPart():
            return not (part.url or (part.data and whole_base64(part.data) is not None))
    return False
