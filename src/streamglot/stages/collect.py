"""A stream of events to the Response that it adds up to. What came before an error is kept beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..events import (
    BareEvent,
    Choice,
    Citation,
    Echo,
    Event,
    Extra,
    Media,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StreamEnd,
    StreamError,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    Usage,
)
from ..messages import (
    MediaPart,
    Part,
    ReasoningPart,
    RefusalPart,
    Response,
    ResponseChoice,
    TextPart,
    TokenCounts,
    ToolCallPart,
    ToolResultPart,
)


class Collect:
    """``extensions``: also note every piece of reasoning and of tool calls as it came."""

    def __init__(self, *, extensions: bool = False) -> None:
        self.response = Response(extensions={"reasoning_chunks": [], "tool_call_chunks": []} if extensions else None)
        self._choices: dict[int, _ChoiceParts] = {}
        self._first: dict[type, Callable[[Any], None]] = {}
        """The rules of the first choice, once there is one: most events are its deltas."""

    def feed(self, event: Event) -> list[Response]:
        rule = self._first.get(type(event))
        if rule is not None:
            rule(event)
            return []
        if isinstance(event, Choice):
            self._choice(event.index).feed(event.event)
            return []
        response = self.response
        match event:
            case StreamStart():
                response.id, response.model, response.created = event.id, event.model, event.created
            case Usage():
                response.usage = TokenCounts(
                    event.input_tokens,
                    event.output_tokens,
                    event.cached_tokens,
                    event.cache_write_tokens,
                    event.reasoning_tokens,
                    event.raw,
                )
            case Extra():
                response.extras.append(event)
            case StreamError():
                response.error = event
            case _:
                first = self._choice(0)
                first.feed(event)
                self._first = first.rules
        return []

    def close(self) -> list[Response]:
        for choice in self._choices.values():
            choice.close()
        self.response.choices = [self._choices[index].choice for index in sorted(self._choices)]
        return [self.response]

    def _choice(self, index: int) -> _ChoiceParts:
        if index not in self._choices:
            self._choices[index] = _ChoiceParts(index, self.response)
        return self._choices[index]


class _ChoiceParts:
    """The parts of one choice. Pieces are joined when their block ends, so that a long block costs its length."""

    def __init__(self, index: int, response: Response) -> None:
        self.choice = ResponseChoice(index)
        self._response = response
        self._pieces: list[str] = []
        self._open: TextStart | ReasoningStart | ToolCallStart | None = None
        self._citations: list[Citation] = []
        self._media: dict[str, tuple[MediaPart, list[str], list[str]]] = {}
        self.rules: dict[type, Callable[[Any], None]] = {
            TextDelta: lambda event: self._pieces.append(event.text),
            ReasoningDelta: self._reasoning,
            ToolCallDelta: self._arguments,
            TextStart: self._start,
            ReasoningStart: self._start,
            ToolCallStart: self._start,
            TextEnd: lambda event: self._end(event.echo),
            ReasoningEnd: lambda event: self._end(event.echo, redacted=event.redacted),
            ToolCallEnd: lambda event: self._end(event.echo, complete=event.complete),
            ToolResult: self._result,
            Citation: self._cite,
            Media: self._medium,
            StreamEnd: self._stop,
        }

    def feed(self, event: BareEvent) -> None:
        rule = self.rules.get(type(event))
        if rule is not None:
            rule(event)

    def close(self) -> None:
        if self._open is not None:
            self._end(None, complete=False)
        for part, data, transcript in self._media.values():
            part.data, part.transcript = "".join(data), "".join(transcript)

    def _start(self, event: TextStart | ReasoningStart | ToolCallStart) -> None:
        self._open = event
        self._note("start", event)

    def _reasoning(self, event: ReasoningDelta) -> None:
        self._pieces.append(event.text)
        if self._response.extensions is not None:
            self._response.extensions["reasoning_chunks"].append(event.text)

    def _arguments(self, event: ToolCallDelta) -> None:
        self._pieces.append(event.args)
        self._note("args", self._open, event.args)

    def _end(self, echo: Echo | None, redacted: bool = False, complete: bool = True) -> None:
        text = "".join(self._pieces)
        self._pieces.clear()
        start, self._open = self._open, None
        part: Part
        match start:
            case ToolCallStart():
                part = ToolCallPart(start.call_id, start.name, text, start.kind, complete, echo, start.native)
                self._note("end", start)
            case ReasoningStart():
                part = ReasoningPart(text, start.summary, redacted, echo)
            case TextStart(refusal=True):
                part = RefusalPart(text)
            case _:
                part = TextPart(text, self._citations, echo)
                self._citations = []
        self.choice.parts.append(part)

    def _result(self, event: ToolResult) -> None:
        self.choice.parts.append(ToolResultPart(event.call_id, [TextPart(event.content)], event.is_error, native=event.native))

    def _cite(self, event: Citation) -> None:
        if type(self._open) is TextStart:
            self._citations.append(event)
            return
        for part in reversed(self.choice.parts):
            if isinstance(part, TextPart):
                part.citations = [*part.citations, event]
                return
        self.choice.parts.append(TextPart("", [event]))

    def _medium(self, event: Media) -> None:
        key = event.id or f"#{len(self._media)}"
        if key not in self._media:
            part = MediaPart(event.mime, url=event.url, id=event.id)
            self._media[key] = (part, [], [])
            self.choice.parts.append(part)
        _, data, transcript = self._media[key]
        data.append(event.data)
        transcript.append(event.transcript)

    def _stop(self, event: StreamEnd) -> None:
        choice = self.choice
        choice.stop_reason, choice.raw_stop_reason, choice.stop_sequence = event.reason, event.raw_reason, event.sequence

    def _note(self, step: str, start: object, delta: str | None = None) -> None:
        if self._response.extensions is None or not isinstance(start, ToolCallStart):
            return
        chunk: dict[str, Any] = {"type": step, "tool_call_id": start.call_id}
        if step == "start":
            chunk["tool_name"] = start.name
        if delta is not None:
            chunk["delta"] = delta
        self._response.extensions["tool_call_chunks"].append(chunk)


def collect(events: Iterable[Event], *, extensions: bool = False) -> Response:
    """The Response that these events add up to."""
    box = Collect(extensions=extensions)
    for event in events:
        box.feed(event)
    return box.close()[0]
