"""The result of reading a text with a given split: the text, the reasoning and the calls, joined again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

from streamglot.events import BareEvent
from streamglot.grammar import check
from streamglot.inband import InBand, parse_text
from vocabulary import *

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
READ = {
    "type": "function",
    "function": {"name": "read", "parameters": {"type": "object", "properties": {"filePath": {"type": "string"}}}},
}
PYTHON = {"name": "python", "parameters": {"type": "object", "properties": {"code": {"type": "string"}}}}


def put_together(events: Iterable[Event]) -> dict[str, Any]:
    found: dict[str, Any] = {"text": "", "reasoning": "", "calls": [], "complete": [], "ids": [], "end": ""}
    for event in events:
        match event:
            case TextDelta():
                found["text"] += event.text
            case ReasoningDelta():
                found["reasoning"] += event.text
            case ToolCallStart():
                found["calls"].append([event.name, ""])
                found["ids"].append(event.call_id)
            case ToolCallDelta():
                found["calls"][-1][1] += event.args
            case ToolCallEnd():
                found["complete"].append(event.complete)
            case StreamEnd():
                found["end"] = event.reason
            case StreamError():
                found["end"] = event.code
    return found


def read(pieces: str | list[str], format: Any, tools: Any = (WEATHER,), **more: Any) -> dict[str, Any]:
    events = parse_text(pieces, format, tools, **more)
    check(events)
    return put_together(events)


def cut(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    pieces = []
    while text:
        size = chance.randint(1, 9)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def read_all_ways(text: str, format: Any, tools: Any = (WEATHER,), **more: Any) -> dict[str, Any]:
    """The reading, which must be the same whole, character by character and in random splits."""
    whole = read(text, format, tools, **more)
    for pieces in (list(text), cut(text, 1), cut(text, 2)):
        assert read(pieces, format, tools, **more) == whole
    return whole


def at_every_place(text: str, format: Any, tools: Any = (WEATHER,)) -> dict[str, Any]:
    """The reading, which must be the same wherever the text is cut in two, and character by character."""
    whole = read_all_ways(text, format, tools)
    for place in range(1, len(text)):
        assert read([text[:place], text[place:]], format, tools) == whole, place
    return whole


def arguments(found: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, json.loads(text)) for name, text in found["calls"]]


def outcome(text: str, format: str, tools: Any = (WEATHER,), **more: Any) -> tuple[str, list[Any], list[bool]]:
    """The remaining text, the calls as they were written, and which of them are complete; the same for every split."""
    found = read_all_ways(text, format, tools, **{"starts_in_reasoning": False, **more})
    return found["text"], [tuple(call) for call in found["calls"]], found["complete"]


def run(box: InBand, events: Sequence[Event]) -> list[Event]:
    out: list[Event] = []
    for event in events:
        out += box.feed(event)
    return out + box.close()


def stream(*texts: str, end: BareEvent | None = None) -> list[BareEvent]:
    return [StreamStart(), TextStart(), *map(TextDelta, texts), TextEnd(), end or StreamEnd("end", "stop")]
