"""The frames of a recorded answer, each with the time at which it was complete."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from ...client.capture import Capture
from ...framing.ndjson import NdJson
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
    """Returns the path of every field that occurs, with its count."""
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
