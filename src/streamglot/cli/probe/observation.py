"""One answer of a probe: its request, what was observed (order, pieces, times, ending, departures), and that as text."""

from __future__ import annotations

from collections.abc import Iterator
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
from ...messages import Message, Reasoning, Request, TextPart, ToolSpec
from .rules import RULES, ProbedFrame, field_names, frames, last_chat_chunks

WEATHER: Final = ToolSpec(
    "weather",
    "The weather in a city",
    {"type": "object", "properties": {"city": {"type": "string", "description": "The name of the city"}}, "required": ["city"]},
)


class Case(Struct, frozen=True):
    name: str
    title: str
    question: str
    reasoning: bool = False
    tools: bool = False

    def request(self, model: str, max_tokens: int) -> Request:
        return Request(
            model=model,
            messages=[Message("user", [TextPart(self.question)])],
            stream=True,
            max_tokens=max_tokens,
            temperature=0.0,
            tools=[WEATHER] if self.tools else [],
            reasoning=Reasoning(effort="low") if self.reasoning else None,
        )


CASES: Final = (
    Case("plain", "plain", "Say hello in five words."),
    Case("reasoning", "with reasoning", "What is 2 + 3? Think first.", reasoning=True),
    Case("tools", "with tools", "What is the weather in Paris? Use a tool.", tools=True),
    Case("tools_reasoning", "with tools and reasoning", "What is the weather in Rome? Use a tool.", reasoning=True, tools=True),
)


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
    last = last_chat_chunks(probed) if dialect == "openai_chat" else []
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


# --- as text


class Probed(Struct):
    """One dialect of one upstream."""

    dialect: str
    url: str
    model: str
    observations: list[Observation] = field(default_factory=list)

    @property
    def supported(self) -> bool:
        return any(observation.supported for observation in self.observations)


def report_lines(probed: list[Probed]) -> Iterator[str]:
    for one in probed:
        if not one.supported:
            first = one.observations[0]
            why = first.broken or f"status {first.status}"
            yield f"{one.dialect} at {one.url}: not supported ({why})"
            continue
        yield f"{one.dialect} at {one.url}, model {one.model!r}"
        for case in CASES:
            for observation in one.observations:
                if observation.case == case.name:
                    yield from _case_lines(case.title, observation)
        yield from _shared_lines(one.observations)
        yield ""


def _case_lines(title: str, seen: Observation) -> Iterator[str]:
    if seen.refusal or not seen.status:
        yield f"  {title}: status {seen.status}, {seen.broken or seen.refusal}"
        return
    yield f"  {title}: {seen.frames} frames in {seen.pieces} reads, {_times_line(seen)}"
    yield f"    order: {' → '.join(seen.order) or 'nothing'}"
    if seen.arguments:
        sizes = f"{len(seen.arguments)} pieces of {min(seen.arguments)} to {max(seen.arguments)} characters"
        yield f"    arguments of {', '.join(seen.tools_called)}: {sizes}"
    yield f"    finish: {seen.raw_finish!r}{'' if seen.usage is None else f', usage: {_usage_words(seen.usage)}'}"
    if seen.final:
        yield f"    final chunk: {seen.final}"
    if seen.keep_alives:
        yield f"    keep-alives: {seen.keep_alives}"
    if seen.dropped:
        left_out = ", ".join(seen.dropped)
        yield f"    left out of the request: {left_out} (the dialect cannot express it, or needs more --max-tokens)"
    if seen.recording:
        yield f"    recording: {seen.recording}"


def _times_line(seen: Observation) -> str:
    if seen.first_byte is None:
        return "no bytes at all"
    word = f", first word after {seen.first_word:.3f} s" if seen.first_word is not None else ""
    return f"first byte after {seen.first_byte:.3f} s{word}, longest gap {seen.longest_gap:.3f} s, median {seen.median_gap:.3f} s"


def _shared_lines(observations: list[Observation]) -> Iterator[str]:
    """Each deviation from the dialect once, with the cases in which it occurred."""
    found: dict[str, list[str]] = {}
    titles = {case.name: case.title for case in CASES}
    for observation in observations:
        for sentence in observation.deviations:
            found.setdefault(sentence, []).append(titles[observation.case])
    yield "  departs from the dialect:" if found else "  nothing departs from the dialect"
    for sentence, cases in found.items():
        where = "" if len(cases) == len(observations) else f" ({', '.join(cases)})"
        yield f"    - {sentence}{where}"
    names = sorted({name for observation in observations for name in observation.fields})
    yield f"  fields used: {', '.join(names)}"


def _usage_words(usage: JsonObject) -> str:
    return ", ".join(f"{name} {value}" for name, value in usage.items() if isinstance(value, int))
