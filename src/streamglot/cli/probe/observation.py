"""The observation of one answer: order, pieces, times, ending and deviations from the dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median
from typing import Final

from msgspec import Struct, field

from ...client.capture import Capture
from ...dialects import dialect
from ...errors import excerpt
from ...events import (
    Choice,
    Event,
    KeepAlive,
    ReasoningDelta,
    StreamEnd,
    StreamError,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from ...json_types import JsonObject, JsonValue
from . import chat_rules, messages_rules, responses_rules
from .frames import ProbedFrame, field_names, frames
from .plan import WEATHER, Case

Rules = Callable[[list[ProbedFrame], JsonObject], Iterator[str]]
RULES: Final[dict[str, Rules]] = {
    "openai_chat": chat_rules.deviations,
    "openai_responses": responses_rules.deviations,
    "anthropic": messages_rules.deviations,
}


FINAL_CHARS: Final = 300
"""Characters of a chunk at the end of an answer that the report shows: a whole one, without a long id or signature."""
FINAL_FRAMES: Final = 4
"""Chunks at the end of an answer that the report shows: the finish reason, usage and the end of the stream, and one more."""


class Observation(Struct, kw_only=True):
    """Times are in seconds. ``final`` describes the chunk that ends the answer, and what follows it. ``arguments``: the sizes of the pieces in which a call's arguments came."""

    case: str
    status: int
    refusal: str = ""
    broken: str = ""
    order: list[str] = field(default_factory=list)
    fields: dict[str, int] = field(default_factory=dict)
    arguments: list[int] = field(default_factory=list)
    tools_called: list[str] = field(default_factory=list)
    final: str = ""
    finish: str = ""
    raw_finish: str | None = None
    error: str = ""
    usage: JsonObject | None = None
    keep_alives: int = 0
    frames: int = 0
    pieces: int = 0
    bytes: int = 0
    first_byte: float | None = None
    first_word: float | None = None
    last_byte: float | None = None
    longest_gap: float = 0.0
    median_gap: float = 0.0
    deviations: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    recording: str = ""

    @property
    def supported(self) -> bool:
        """Does the server support this dialect?"""
        return self.status not in (0, 404, 405, 501)


def observe(case: Case, captured: Capture) -> Observation:
    seen = Observation(case=case.name, status=captured.status, broken=captured.broken, dropped=captured.dropped)
    seen.pieces, seen.bytes = len(captured.pieces), sum(len(piece) for _, piece in captured.pieces)
    if not 200 <= captured.status < 300:
        seen.refusal = excerpt(captured.data)
        return seen
    _times(seen, [when for when, _ in captured.pieces])
    _events(seen, captured)
    probed = frames(captured)
    seen.frames, seen.fields = len(probed), field_names(probed)
    seen.keep_alives += sum(frame.kind == "comment" for frame in probed)
    seen.final = _final(captured.dialect, probed)
    seen.deviations = list(_deviations(case, captured, seen, probed))
    return seen


def _final(dialect: str, probed: list[ProbedFrame]) -> str:
    """The last chunk with content as it was sent, and the kinds of those after it."""
    last = chat_rules.last_chunks(probed) if dialect == "openai_chat" else []
    last = last or [frame for frame in probed if frame.data is not None][-1:]
    if not last:
        return ""
    after = ["a chunk with usage" if (frame.data or {}).get("usage") else frame.text.strip() for frame in last[1:]]
    shown = [last[0].text.strip(), *filter(None, after)]
    return ", then ".join(text if len(text) <= FINAL_CHARS else f"{text[:FINAL_CHARS]}…" for text in shown[:FINAL_FRAMES])


def _times(seen: Observation, times: list[float]) -> None:
    if times:
        seen.first_byte, seen.last_byte = round(times[0], 4), round(times[-1], 4)
    gaps = [after - before for before, after in pairwise(times)]
    if gaps:
        seen.longest_gap, seen.median_gap = round(max(gaps), 4), round(median(gaps), 4)


def _events(seen: Observation, captured: Capture) -> None:
    """Adds the events that our reader gives for the answer."""
    box = dialect(captured.dialect).reader(provider=captured.upstream)
    runs: list[list[JsonValue]] = []

    def take(event: Event, when: float) -> None:
        bare = event.event if isinstance(event, Choice) else event
        name = _named(bare)
        if name in ("text", "reasoning", "call") and seen.first_word is None:
            seen.first_word = round(when, 4)
        match bare:
            case ToolCallStart():
                seen.tools_called.append(bare.name)
            case ToolCallDelta():
                seen.arguments.append(len(bare.args))
            case KeepAlive():
                seen.keep_alives += not bare.comment
            case Usage():
                seen.usage = bare.raw
            case StreamEnd():
                seen.finish, seen.raw_finish = bare.reason, bare.raw_reason
            case StreamError():
                seen.error = bare.message
        if name and runs and runs[-1][0] == name:
            runs[-1][1] += 1
        elif name:
            runs.append([name, 1])

    last = 0.0
    for when, piece in captured.pieces:
        last = when
        for event in box.feed(piece):
            take(event, when)
    for event in box.close():
        take(event, last)
    seen.order = [f"{name} ×{count}" if count > 1 else name for name, count in runs]


def _named(event: Event) -> str:
    match event:
        case TextDelta():
            return "text"
        case ReasoningDelta():
            return "reasoning"
        case ToolCallStart() | ToolCallDelta():
            return "call"
        case Usage():
            return "usage"
        case StreamEnd():
            return f"end ({event.reason})"
        case StreamError():
            return f"error ({event.code})"
    return ""


def _deviations(case: Case, captured: Capture, seen: Observation, probed: list[ProbedFrame]) -> Iterator[str]:
    media = captured.headers.get("content-type", "").split(";", 1)[0].strip()
    expected = dialect(captured.dialect).media_type
    if media != expected:
        yield f"the content type is {media or 'missing'!r}, not {expected!r}"
    if captured.broken:
        yield f"the connection broke: {captured.broken}"
    if captured.dialect in RULES:
        yield from RULES[captured.dialect](probed, captured.body)
    strays = [frame for frame in probed if frame.kind == "stray"]
    if strays:
        yield f"{len(strays)} lines belong to no event, such as {excerpt(strays[0].text)}"
    if seen.error:
        yield f"it does not end as the dialect requires: {seen.error}"
    if not case.tools and seen.tools_called:
        yield f"calls came although no tools were offered: {', '.join(dict.fromkeys(seen.tools_called))}"
    others = [name for name in dict.fromkeys(seen.tools_called) if name != WEATHER.name]
    if case.tools and others:
        yield f"calls came of tools that were not offered: {', '.join(others)}"
    if case.tools and not seen.tools_called:
        yield "the request asked for a tool call, but none came (the cause may be the model or its template)"
    if case.reasoning and "reasoning" not in captured.dropped and not any(name.startswith("reasoning") for name in seen.order):
        yield "reasoning was requested, but none came"
    if not case.reasoning and any(name.startswith("reasoning") for name in seen.order):
        yield "reasoning came although it was not requested"
    if seen.usage is None and not seen.error:
        yield "no usage was reported"
