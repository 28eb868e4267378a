"""A stream of events to the Response that it adds up to. What came before an error is kept beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from ..events import (
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

    def feed(self, event: Event) -> list[Response]:
        self.feed_all((event,))
        return []

    def feed_all(self, events: Iterable[Event]) -> None:
        """The events of one read."""
        response, first = self.response, self._choices.get(0)
        for event in events:
            if type(event) is TextDelta and first is not None:  # as nearly all are
                first.pieces.append(event.text)
                continue
            rule = _OF_CHOICE.get(type(event))
            if rule is not None:
                if first is None:
                    first = self._choice(0)
                rule(first, event)
            elif type(event) is Choice:
                rule = _OF_ANOTHER.get(type(event.event))
                if rule is not None:
                    rule(self._choice(event.index), event.event)
            elif type(event) in _OF_ALL:
                _OF_ALL[type(event)](response, event)

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
        self.pieces: list[str] = []
        self._open: TextStart | ReasoningStart | ToolCallStart | None = None
        self._citations: list[Citation] = []
        self._media: dict[str, tuple[MediaPart, list[str], list[str]]] = {}

    def close(self) -> None:
        if self._open is not None:
            self._end(None, complete=False)
        for part, data, transcript in self._media.values():
            part.data, part.transcript = "".join(data), "".join(transcript)

    def text(self, event: TextDelta) -> None:
        self.pieces.append(event.text)

    def start(self, event: TextStart | ReasoningStart | ToolCallStart) -> None:
        self._open = event
        self._note("start", event)

    def reasoning(self, event: ReasoningDelta) -> None:
        self.pieces.append(event.text)
        if self._response.extensions is not None:
            self._response.extensions["reasoning_chunks"].append(event.text)

    def arguments(self, event: ToolCallDelta) -> None:
        self.pieces.append(event.args)
        self._note("args", self._open, event.args)

    def end_text(self, event: TextEnd) -> None:
        self._end(event.echo)

    def end_reasoning(self, event: ReasoningEnd) -> None:
        self._end(event.echo, redacted=event.redacted)

    def end_call(self, event: ToolCallEnd) -> None:
        self._end(event.echo, complete=event.complete)

    def _end(self, echo: Echo | None, redacted: bool = False, complete: bool = True) -> None:
        text = "".join(self.pieces)
        self.pieces.clear()
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

    def result(self, event: ToolResult) -> None:
        self.choice.parts.append(ToolResultPart(event.call_id, [TextPart(event.content)], event.is_error, native=event.native))

    def cite(self, event: Citation) -> None:
        if type(self._open) is TextStart:
            self._citations.append(event)
            return
        for part in reversed(self.choice.parts):
            if isinstance(part, TextPart):
                part.citations = [*part.citations, event]
                return
        self.choice.parts.append(TextPart("", [event]))

    def medium(self, event: Media) -> None:
        key = event.id or f"#{len(self._media)}"
        if key not in self._media:
            part = MediaPart(event.mime, url=event.url, id=event.id)
            self._media[key] = (part, [], [])
            self.choice.parts.append(part)
        _, data, transcript = self._media[key]
        data.append(event.data)
        transcript.append(event.transcript)

    def stop(self, event: StreamEnd) -> None:
        choice = self.choice
        choice.stop_reason, choice.raw_stop_reason, choice.stop_sequence = event.reason, event.raw_reason, event.sequence

    def extra(self, event: Extra) -> None:
        self.choice.extras.append(event)

    def _note(self, step: str, start: object, delta: str | None = None) -> None:
        if self._response.extensions is None or not isinstance(start, ToolCallStart):
            return
        chunk: dict[str, Any] = {"type": step, "tool_call_id": start.call_id}
        if step == "start":
            chunk["tool_name"] = start.name
        if delta is not None:
            chunk["delta"] = delta
        self._response.extensions["tool_call_chunks"].append(chunk)


_OF_CHOICE: Final[dict[type, Callable[[_ChoiceParts, Any], None]]] = {
    TextDelta: _ChoiceParts.text,
    ReasoningDelta: _ChoiceParts.reasoning,
    ToolCallDelta: _ChoiceParts.arguments,
    TextStart: _ChoiceParts.start,
    ReasoningStart: _ChoiceParts.start,
    ToolCallStart: _ChoiceParts.start,
    TextEnd: _ChoiceParts.end_text,
    ReasoningEnd: _ChoiceParts.end_reasoning,
    ToolCallEnd: _ChoiceParts.end_call,
    ToolResult: _ChoiceParts.result,
    Citation: _ChoiceParts.cite,
    Media: _ChoiceParts.medium,
    StreamEnd: _ChoiceParts.stop,
}
_OF_ANOTHER: Final[dict[type, Callable[[_ChoiceParts, Any], None]]] = {**_OF_CHOICE, Extra: _ChoiceParts.extra}


def _start(response: Response, event: StreamStart) -> None:
    response.id, response.model, response.created = event.id, event.model, event.created


def _usage(response: Response, event: Usage) -> None:
    response.usage = TokenCounts(
        event.input_tokens,
        event.output_tokens,
        event.cached_tokens,
        event.cache_write_tokens,
        event.reasoning_tokens,
        event.raw,
    )


def _extra(response: Response, event: Extra) -> None:
    response.extras.append(event)


def _error(response: Response, event: StreamError) -> None:
    response.error = event


_OF_ALL: Final[dict[type, Callable[[Response, Any], None]]] = {
    StreamStart: _start,
    Usage: _usage,
    Extra: _extra,
    StreamError: _error,
}


def collect(events: Iterable[Event], *, extensions: bool = False) -> Response:
    """The Response that these events add up to."""
    box = Collect(extensions=extensions)
    box.feed_all(events)
    return box.close()[0]
