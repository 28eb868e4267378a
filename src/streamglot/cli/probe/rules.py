"""The frames of a recorded answer, and the rules of three dialects. Each broken rule gives a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec import Struct

from ...client.capture import Capture
from ...framing.lines import NdJson
from ...framing.sse import Sse
from ...json_types import JSON_ERRORS, JsonObject, JsonValue

JSON_LINES: Final = ("ollama",)
SSE: Final = (
    "openai_chat",
    "openai_responses",
    "openai_completions",
    "anthropic",
    "gemini",
    "cohere",
    "qwen_web",
)
"""The dialects whose frames are checked. For the others only events and times are reported."""
DONE: Final = "[DONE]"


class ProbedFrame(Struct):
    """One frame. ``data`` is its JSON object, or None if it is not one; ``text`` is its text."""

    when: float
    event: str
    kind: str
    text: str
    data: JsonObject | None = None

    @property
    def type(self) -> str:
        """The type of the frame; empty if it has none."""
        return str((self.data or {}).get("type", "")) or self.event


def frames(captured: Capture) -> list[ProbedFrame]:
    if captured.dialect not in (*JSON_LINES, *SSE):
        return []
    box = NdJson() if captured.dialect in JSON_LINES else Sse()
    probed: list[ProbedFrame] = []
    last = 0.0
    for when, piece in captured.pieces:
        last = when
        probed += [_probed_frame(when, frame) for frame in box.feed(piece)]
    return probed + [_probed_frame(last, frame) for frame in box.close()]


def _probed_frame(when: float, frame: JsonValue) -> ProbedFrame:
    text = frame.data.decode("utf-8", "replace")
    try:
        data = msgspec.json.decode(frame.data)
    except JSON_ERRORS:
        data = None
    return ProbedFrame(when, frame.event, frame.kind, text, data if isinstance(data, dict) else None)


def field_names(probed: list[ProbedFrame]) -> dict[str, int]:
    """The path of every field that occurs, with its count."""
    counts: dict[str, int] = {}

    def walk(value: object, path: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(inner, f"{path}.{name}" if path else name)
        elif isinstance(value, list):
            for inner in value[:16]:
                walk(inner, f"{path}[]")
            if not value:
                counts[f"{path}[]"] = counts.get(f"{path}[]", 0) + 1
        else:
            counts[path] = counts.get(path, 0) + 1

    for frame in probed:
        if frame.data is not None:
            walk(frame.data, "")
    return dict(sorted(counts.items()))


# --- chat completions

CHAT_FIELDS: Final = frozenset(
    ("id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "obfuscation")
)
DELTA_FIELDS: Final = frozenset(
    ("role", "content", "refusal", "tool_calls", "function_call", "audio", "annotations", "reasoning", "reasoning_details")
)
"""The fields of the dialect, and those of routers for reasoning, for which the dialect has none."""


def chat_deviations(frames: list[ProbedFrame], request: JsonObject) -> Iterator[str]:
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
    beyond = {name for chunk in chunks for name in chunk} - CHAT_FIELDS
    if beyond:
        yield f"chunks have fields that the dialect does not know: {_listed(beyond)}"
    yield from _chat_choices(chunks)
    yield from _chat_usage(chunks, request)


def _chat_choices(chunks: list[JsonObject]) -> Iterator[str]:
    choices = [choice for chunk in chunks for choice in chunk.get("choices") or [] if isinstance(choice, dict)]
    deltas = [choice["delta"] for choice in choices if isinstance(choice.get("delta"), dict)]
    if any("index" not in choice for choice in choices):
        yield "choices have no `index`"
    if deltas and deltas[0].get("role") != "assistant":
        yield "the first delta does not say `role: assistant`"
    if sum("role" in delta for delta in deltas) > 1:
        yield "`role` is repeated in later deltas"
    beyond = {name for delta in deltas for name in delta} - DELTA_FIELDS
    if beyond:
        yield f"deltas have fields that the dialect does not know: {_listed(beyond)}"
    reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    if not reasons:
        yield "no chunk has a `finish_reason`"
    elif len(reasons) > 1:
        yield f"`finish_reason` comes {len(reasons)} times: {', '.join(map(str, reasons))}"
    calls = [call for delta in deltas for call in delta.get("tool_calls") or [] if isinstance(call, dict)]
    if calls:
        yield from _chat_calls(calls, reasons)


def _chat_calls(calls: list[JsonObject], reasons: list[JsonValue]) -> Iterator[str]:
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


def _chat_usage(chunks: list[JsonObject], request: JsonObject) -> Iterator[str]:
    requested = bool((request.get("stream_options") or {}).get("include_usage"))
    counted = [number for number, chunk in enumerate(chunks) if chunk.get("usage")]
    if requested and not counted:
        yield "usage was requested, but none came"
    if counted and not requested:
        yield "usage came although it was not requested"
    if any(chunks[number].get("choices") for number in counted):
        yield "usage comes in a chunk with choices, not in one of its own"
    if len(counted) > 1:
        yield f"usage comes {len(counted)} times"


def last_chat_chunks(frames: list[ProbedFrame]) -> list[ProbedFrame]:
    """The chunk that ends the answer, and all after it."""
    for place in range(len(frames) - 1, -1, -1):
        choices = (frames[place].data or {}).get("choices")
        found = choices if isinstance(choices, list) else []
        if any(isinstance(choice, dict) and choice.get("finish_reason") for choice in found):
            return frames[place:]
    return []


def _listed(names: set[JsonValue]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(map(str, names)))


# --- messages

BLOCKS_OF_DELTAS: Final = {
    "text_delta": ("text",),
    "input_json_delta": ("tool_use", "server_tool_use", "mcp_tool_use"),
    "thinking_delta": ("thinking",),
    "signature_delta": ("thinking",),
    "citations_delta": ("text",),
}
MESSAGE_EVENTS: Final = frozenset(
    (
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "error",
    )
)
STARTS_WITH: Final = {"text": "text", "thinking": "thinking", "tool_use": "input"}


def message_deviations(frames: list[ProbedFrame], request: JsonObject) -> Iterator[str]:
    events = [frame for frame in frames if frame.data is not None]
    if not events:
        return
    names = [frame.type for frame in events]
    if names[0] != "message_start":
        yield f"the first event is {names[0]!r}, not message_start"
    if names[-1] not in ("message_stop", "error"):
        yield f"the last event is {names[-1]!r}, not message_stop"
    unknown = sorted(set(names) - MESSAGE_EVENTS)
    if unknown:
        yield f"there are events that the dialect does not know: {', '.join(unknown)}"
    if any(not frame.event for frame in events):
        yield "events have no `event:` line: clients that depend on it see nothing"
    message = (events[0].data or {}).get("message") or {}
    if not str(message.get("id", "")).startswith("msg_"):
        prefix = re.split(r"[-_]", str(message.get("id", "")))[0][:12]
        yield f"the id of the message begins with {prefix!r}, not with 'msg_'"
    if "usage" not in message:
        yield "message_start has no usage"
    yield from dict.fromkeys(_message_blocks(events))
    yield from _message_end(events, request)


def _message_blocks(events: list[ProbedFrame]) -> Iterator[str]:
    open_blocks: dict[JsonValue, str] = {}
    last = -1
    signed: set[JsonValue] = set()
    for frame in events:
        body = frame.data or {}
        index = body.get("index")
        match frame.type:
            case "content_block_start":
                block = body.get("content_block") or {}
                kind = str(block.get("type"))
                if open_blocks:
                    others = ", ".join(f"{number} ({name})" for number, name in open_blocks.items())
                    yield f"blocks overlap: block {index} ({kind}) begins while {others} is open"
                if index != last + 1:
                    yield f"block {index} begins, but {last + 1} would be next"
                last = index if isinstance(index, int) else last + 1
                if kind in STARTS_WITH and STARTS_WITH[kind] not in block:
                    yield f"a {kind} block begins without `{STARTS_WITH[kind]}`"
                open_blocks[index] = kind
            case "content_block_delta":
                kind = str((body.get("delta") or {}).get("type"))
                if index not in open_blocks:
                    yield f"a delta belongs to block {index}, which is not open"
                elif kind in BLOCKS_OF_DELTAS and open_blocks[index] not in BLOCKS_OF_DELTAS[kind]:
                    yield f"a {kind} occurs in a {open_blocks[index]} block"
                if kind == "signature_delta" and (body.get("delta") or {}).get("signature"):
                    signed.add(index)
            case "content_block_stop":
                kind = open_blocks.pop(index, "")
                if not kind:
                    yield f"block {index} ends without having begun"
                elif kind == "thinking" and index not in signed:
                    yield "a thinking block ends without a signature: it cannot be sent back"
            case "message_delta" if open_blocks:
                yield f"the message ends while block {', '.join(map(str, open_blocks))} is open"


def _message_end(events: list[ProbedFrame], request: JsonObject) -> Iterator[str]:
    deltas = [frame.data or {} for frame in events if frame.type == "message_delta"]
    reasons = [(body.get("delta") or {}).get("stop_reason") for body in deltas]
    if not any(reasons):
        yield "no message_delta gives a stop_reason"
    if not any("output_tokens" in (body.get("usage") or {}) for body in deltas):
        yield "no message_delta counts the output tokens"
    kinds = [
        ((frame.data or {}).get("content_block") or {}).get("type") for frame in events if frame.type == "content_block_start"
    ]
    if "tool_use" in kinds and "tool_use" not in reasons:
        yield f"the answer calls a tool, but its stop_reason is {reasons[-1] if reasons else None!r}"
    thinking = request.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") in ("enabled", "adaptive") and "thinking" not in kinds:
        yield "thinking was requested, but no thinking block came"


# --- responses

RESPONSE_PARTS: Final = ("content_part", "output_text", "refusal", "reasoning_text")
"""Kinds of events about one part of an item."""
CLOSED_BY: Final = {
    "response.output_text.delta": "response.output_text.done",
    "response.function_call_arguments.delta": "response.function_call_arguments.done",
    "response.reasoning_text.delta": "response.reasoning_text.done",
    "response.reasoning_summary_text.delta": "response.reasoning_summary_text.done",
    "response.content_part.added": "response.content_part.done",
    "response.output_item.added": "response.output_item.done",
}
RESPONSE_ENDS: Final = ("response.completed", "response.incomplete", "response.failed", "error")
IN_RESPONSE: Final = ("id", "object", "created_at", "status", "model", "output")


def response_deviations(frames: list[ProbedFrame], request: JsonObject) -> Iterator[str]:
    events = [frame for frame in frames if frame.data is not None]
    if not events:
        return
    yield from _response_numbers(events)
    names = [frame.type for frame in events]
    if names[0] != "response.created":
        yield f"the first event is {names[0]!r}, not response.created"
    if names[-1] not in RESPONSE_ENDS:
        yield f"the last event is {names[-1]!r}, none of {', '.join(RESPONSE_ENDS)}"
    for opened, closed in CLOSED_BY.items():
        if opened in names and closed not in names:
            yield f"{opened} is never followed by {closed}"
    if any(frame.event and frame.event != (frame.data or {}).get("type") for frame in events):
        yield "the name of an event and the `type` in its data differ"
    first = (events[0].data or {}).get("response") or {}
    lacking = [name for name in IN_RESPONSE if name not in first]
    if lacking:
        yield f"the response in {names[0]} has no {', '.join(f'`{name}`' for name in lacking)}"
    yield from _response_end(events[-1], request)


def _response_numbers(events: list[ProbedFrame]) -> Iterator[str]:
    bodies = [frame.data or {} for frame in events]
    numbers = [body.get("sequence_number") for body in bodies]
    without = sum(number is None for number in numbers)
    if without:
        yield f"{_share(without, len(bodies), 'events')} without a `sequence_number`"
    elif numbers != sorted(numbers, key=lambda number: number or 0):
        yield "the sequence numbers are not in order"
    of_items = [frame for frame in events if _speaks_of_an_item(frame.type)]
    missing = sum("output_index" not in (frame.data or {}) for frame in of_items)
    if missing:
        share = _share(missing, len(of_items), "events about items")
        yield f"{share} without an `output_index`: clients that depend on it lose the pieces"
    of_parts = [frame for frame in of_items if frame.type.split(".")[1] in RESPONSE_PARTS]
    missing = sum("content_index" not in (frame.data or {}) for frame in of_parts)
    if missing:
        yield f"{_share(missing, len(of_parts), 'events about content parts')} without a `content_index`"
    missing = sum("item_id" not in (frame.data or {}) for frame in of_items if not frame.type.startswith("response.output_item"))
    if missing:
        yield "events about items have no `item_id`"


def _share(some: int, every: int, what: str) -> str:
    """A share in words. If it is all of them, the words do not contain the number, so equal findings can be merged."""
    return f"all {what} are" if some == every else f"{some} of {every} {what} are"


def _speaks_of_an_item(name: str) -> bool:
    return name.startswith("response.") and name.count(".") >= 2


def _response_end(last: ProbedFrame, request: JsonObject) -> Iterator[str]:
    response = (last.data or {}).get("response") or {}
    usage = response.get("usage")
    if last.type in ("response.completed", "response.incomplete") and not usage:
        yield "the last event has no usage"
    max_tokens = request.get("max_output_tokens")
    used = (usage or {}).get("output_tokens")
    if last.type == "response.completed" and isinstance(max_tokens, int) and isinstance(used, int) and used >= max_tokens:
        yield f"the answer was cut at max_output_tokens ({max_tokens}) and is reported as completed instead of incomplete"
    beyond = sorted(set(last.data or {}) - {"type", "response", "sequence_number"})
    if beyond and last.type in RESPONSE_ENDS[:3]:
        yield f"the last event has fields that the dialect does not know: {', '.join(f'`{name}`' for name in beyond)}"


# --- all of them

Rules = Callable[[list[ProbedFrame], JsonObject], Iterator[str]]
RULES: Final[dict[str, Rules]] = {
    "openai_chat": chat_deviations,
    "openai_responses": response_deviations,
    "anthropic": message_deviations,
}
