"""Checks message streams. Each broken rule gives a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ...json_types import JsonObject, JsonValue
from .frames import ProbedFrame

DELTAS: Final = {
    "text_delta": ("text",),
    "input_json_delta": ("tool_use", "server_tool_use", "mcp_tool_use"),
    "thinking_delta": ("thinking",),
    "signature_delta": ("thinking",),
    "citations_delta": ("text",),
}
KNOWN: Final = frozenset(
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


def deviations(frames: list[ProbedFrame], request: JsonObject) -> Iterator[str]:
    events = [frame for frame in frames if frame.data is not None]
    if not events:
        return
    names = [frame.type for frame in events]
    if names[0] != "message_start":
        yield f"the first event is {names[0]!r}, not message_start"
    if names[-1] not in ("message_stop", "error"):
        yield f"the last event is {names[-1]!r}, not message_stop"
    unknown = sorted(set(names) - KNOWN)
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
    yield from dict.fromkeys(_blocks(events))
    yield from _end(events, request)


def _blocks(events: list[ProbedFrame]) -> Iterator[str]:
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
                elif kind in DELTAS and open_blocks[index] not in DELTAS[kind]:
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


def _end(events: list[ProbedFrame], request: JsonObject) -> Iterator[str]:
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
