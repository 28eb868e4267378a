"""Checks chat completion streams. Each broken rule gives a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...json_types import JsonObject, JsonValue
from .frames import DONE, ProbedFrame

KNOWN: Final = frozenset(
    ("id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "obfuscation")
)
KNOWN_DELTA: Final = frozenset(
    ("role", "content", "refusal", "tool_calls", "function_call", "audio", "annotations", "reasoning", "reasoning_details")
)
"""The fields of the dialect, and those of routers for reasoning, for which the dialect has none."""


def deviations(frames: list[ProbedFrame], request: JsonObject) -> Iterator[str]:
    chunks = [frame.data for frame in frames if frame.data is not None]
    if not chunks:
        return
    if frames[-1].text.strip() != DONE:
        yield "the stream does not end with `data: [DONE]`"
    for name in ("id", "model", "object", "created"):
        without = sum(name not in chunk for chunk in chunks)
        if without:
            yield f"{without} of {len(chunks)} chunks have no `{name}`"
    if len({chunk.get("id") for chunk in chunks if chunk.get("id")}) > 1:
        yield "`id` changes inside one stream"
    kinds = {chunk.get("object") for chunk in chunks} - {"chat.completion.chunk", None}
    if kinds:
        yield f"`object` is {_listed(kinds)}, not chat.completion.chunk"
    beyond = {name for chunk in chunks for name in chunk} - KNOWN
    if beyond:
        yield f"chunks have fields that the dialect does not know: {_listed(beyond)}"
    yield from _choices(chunks)
    yield from _usage(chunks, request)


def _choices(chunks: list[JsonObject]) -> Iterator[str]:
    choices = [choice for chunk in chunks for choice in chunk.get("choices") or [] if isinstance(choice, dict)]
    deltas = [choice["delta"] for choice in choices if isinstance(choice.get("delta"), dict)]
    if any("index" not in choice for choice in choices):
        yield "choices have no `index`"
    if deltas and deltas[0].get("role") != "assistant":
        yield "the first delta does not say `role: assistant`"
    if sum("role" in delta for delta in deltas) > 1:
        yield "`role` is repeated in later deltas"
    beyond = {name for delta in deltas for name in delta} - KNOWN_DELTA
    if beyond:
        yield f"deltas have fields that the dialect does not know: {_listed(beyond)}"
    reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    if not reasons:
        yield "no chunk has a `finish_reason`"
    elif len(reasons) > 1:
        yield f"`finish_reason` comes {len(reasons)} times: {', '.join(map(str, reasons))}"
    calls = [call for delta in deltas for call in delta.get("tool_calls") or [] if isinstance(call, dict)]
    if calls:
        yield from _calls(calls, reasons)


def _calls(calls: list[JsonObject], reasons: list[JsonValue]) -> Iterator[str]:
    if any("index" not in call for call in calls):
        yield "fragments of tool calls have no `index`: parallel calls cannot be told apart by it"
    seen: dict[JsonValue, str] = {}
    for call in calls:
        function = call.get("function") or {}
        index = call.get("index")
        if index not in seen and not call.get("id"):
            yield f"tool call {index} begins without an `id`"
        elif index in seen and call.get("id") and call["id"] != seen[index]:
            yield f"the index {index} is used for two calls"
        if not isinstance(function.get("arguments", ""), str):
            yield "`arguments` is a JSON value, not a string"
            return
        if index not in seen and "type" not in call:
            yield f"tool call {index} begins without a `type`"
        seen.setdefault(index, str(call.get("id") or ""))
    if reasons and "tool_calls" not in reasons:
        yield f"the answer has tool calls, but its `finish_reason` is {reasons[-1]!r}"


def _usage(chunks: list[JsonObject], request: JsonObject) -> Iterator[str]:
    asked = bool((request.get("stream_options") or {}).get("include_usage"))
    counted = [number for number, chunk in enumerate(chunks) if chunk.get("usage")]
    if asked and not counted:
        yield "usage was requested, but none came"
    if counted and not asked:
        yield "usage came although it was not requested"
    if any(chunks[number].get("choices") for number in counted):
        yield "usage comes in a chunk with choices, not in one of its own"
    if len(counted) > 1:
        yield f"usage comes {len(counted)} times"


def last_chunks(frames: list[ProbedFrame]) -> list[ProbedFrame]:
    """The chunk that ends the answer, and all after it."""
    for place in range(len(frames) - 1, -1, -1):
        choices = (frames[place].data or {}).get("choices")
        found = choices if isinstance(choices, list) else []
        if any(isinstance(choice, dict) and choice.get("finish_reason") for choice in found):
            return frames[place:]
    return []


def _listed(names: set[JsonValue]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(map(str, names)))
