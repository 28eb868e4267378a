"""Checks response streams. Each broken rule gives a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...json_types import JsonObject
from .frames import ProbedFrame

PARTS: Final = ("content_part", "output_text", "refusal", "reasoning_text")
"""Kinds of events about one part of an item."""
CLOSED: Final = {
    "response.output_text.delta": "response.output_text.done",
    "response.function_call_arguments.delta": "response.function_call_arguments.done",
    "response.reasoning_text.delta": "response.reasoning_text.done",
    "response.reasoning_summary_text.delta": "response.reasoning_summary_text.done",
    "response.content_part.added": "response.content_part.done",
    "response.output_item.added": "response.output_item.done",
}
ENDS: Final = ("response.completed", "response.incomplete", "response.failed", "error")
IN_RESPONSE: Final = ("id", "object", "created_at", "status", "model", "output")


def deviations(frames: list[ProbedFrame], request: JsonObject) -> Iterator[str]:
    events = [frame for frame in frames if frame.data is not None]
    if not events:
        return
    yield from _numbers(events)
    names = [frame.type for frame in events]
    if names[0] != "response.created":
        yield f"the first event is {names[0]!r}, not response.created"
    if names[-1] not in ENDS:
        yield f"the last event is {names[-1]!r}, none of {', '.join(ENDS)}"
    for opened, closed in CLOSED.items():
        if opened in names and closed not in names:
            yield f"{opened} is never followed by {closed}"
    if any(frame.event and frame.event != (frame.data or {}).get("type") for frame in events):
        yield "the name of an event and the `type` in its data differ"
    first = (events[0].data or {}).get("response") or {}
    lacking = [name for name in IN_RESPONSE if name not in first]
    if lacking:
        yield f"the response in {names[0]} has no {', '.join(f'`{name}`' for name in lacking)}"
    yield from _end(events[-1], request)


def _numbers(events: list[ProbedFrame]) -> Iterator[str]:
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
    of_parts = [frame for frame in of_items if frame.type.split(".")[1] in PARTS]
    missing = sum("content_index" not in (frame.data or {}) for frame in of_parts)
    if missing:
        yield f"{_share(missing, len(of_parts), 'events about content parts')} without a `content_index`"
    missing = sum("item_id" not in (frame.data or {}) for frame in of_items if not frame.type.startswith("response.output_item"))
    if missing:
        yield "events about items have no `item_id`"


def _share(some: int, every: int, what: str) -> str:
    """Returns a share in words. If it is all of them, the words do not contain the number, so equal findings can be merged."""
    return f"all {what} are" if some == every else f"{some} of {every} {what} are"


def _speaks_of_an_item(name: str) -> bool:
    return name.startswith("response.") and name.count(".") >= 2


def _end(last: ProbedFrame, request: JsonObject) -> Iterator[str]:
    response = (last.data or {}).get("response") or {}
    usage = response.get("usage")
    if last.type in ("response.completed", "response.incomplete") and not usage:
        yield "the last event has no usage"
    max_tokens = request.get("max_output_tokens")
    used = (usage or {}).get("output_tokens")
    if last.type == "response.completed" and isinstance(max_tokens, int) and isinstance(used, int) and used >= max_tokens:
        yield f"the answer was cut at max_output_tokens ({max_tokens}) and is reported as completed instead of incomplete"
    beyond = sorted(set(last.data or {}) - {"type", "response", "sequence_number"})
    if beyond and last.type in ENDS[:3]:
        yield f"the last event has fields that the dialect does not know: {', '.join(f'`{name}`' for name in beyond)}"
