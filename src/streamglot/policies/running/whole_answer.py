"""Runs a policy that judges the whole answer: everything is held until the model has ended."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from ...errors import PolicyRefused
from ...events import (
    BareEvent,
    Extra,
    KeepAlive,
    Media,
    StreamEnd,
    StreamError,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolResult,
    Usage,
)
from ...messages import ReasoningPart, RefusalPart, TextPart, ToolCallPart, ToolResultPart
from ...stages import collect
from ...stages.stage import Question
from ..pieces import Piece
from ..verdicts import End, Forward, Refuse, Replace, Retry, Rewrite, Verdict
from .blocks import quotes_text, text_block
from .judging import Judging
from .release import ENDED, Release, Unit


class AnswerFilter:
    """The same interface as ``BlockFilter``."""

    def __init__(self, judging: Judging, may_retry: Callable[[], bool]) -> None:
        self._judging = judging
        self._may_retry = may_retry
        self._events: list[BareEvent] = []
        self._chars = 0
        self._unit: Unit | None = None
        self._since: float | None = None
        self.release = Release(may_retry, keeps=True)

    @property
    def held(self) -> str:
        return "".join(event.text for event in self._events if isinstance(event, TextDelta))

    def feed(self, events: list[BareEvent]) -> list[BareEvent]:
        release = self.release
        for event in events:
            if release.done or self._unit is not None:
                break
            if isinstance(event, (KeepAlive, StreamStart)):
                release.out.append(event)
                continue
            if self._since is None:
                self._since = self._judging.now()
            self._events.append(event)
            self._chars += _size(event)
            release.hold(self._chars)
            if release.done:
                break
            if isinstance(event, (StreamEnd, StreamError)):
                self._unit = Unit(answer_piece(self._events), self._since)
                self._judging.judge(self._unit)
                self._apply()
                self._judging.ended(event)
        return self.release.taken()

    def answer(self, question: Question, reply: object) -> list[BareEvent]:
        if self._judging.settle(question, reply) is not None:
            self._apply()
        return self.release.taken()

    def _apply(self) -> None:
        verdict = None if self._unit is None else self._unit.verdict
        release = self.release
        if verdict is None or release.done:
            return
        if isinstance(verdict, Retry):
            if self._may_retry():
                release.done, release.retry = True, verdict
                return
            verdict = Refuse(message=verdict.message, reason=verdict.reason)
        release.done = True
        release.out += answer_after(self._events, verdict)


def answer_piece(events: list[BareEvent]) -> Piece:
    """A whole answer as a piece: its text, its blocks, its stop reason."""
    last = events[-1]
    parts: list[Piece] = []
    choices = collect([StreamStart(), *events]).choices
    for part in choices[0].parts if choices else ():
        match part:
            case TextPart() | RefusalPart():
                parts.append(Piece("text", part.text))
            case ReasoningPart():
                parts.append(Piece("reasoning", part.text))
            case ToolCallPart():
                call = Piece("tool_call", part.arguments, name=part.name, call_id=part.call_id, call_kind=part.kind)
                parts.append(structs.replace(call, complete=part.complete))
            case ToolResultPart():
                parts.append(Piece("tool_result", part.text, call_id=part.call_id, is_error=part.is_error))
    text = "".join(part.text for part in parts if part.kind == "text")
    stop = last.reason if isinstance(last, StreamEnd) else None
    return Piece("answer", text, unit="answer", parts=tuple(parts), stop=stop, complete=isinstance(last, StreamEnd))


def answer_after(events: list[BareEvent], verdict: Verdict) -> list[BareEvent]:
    """The answer after this verdict. An error of the upstream stays its end."""
    *content, last = events
    if isinstance(verdict, Forward) or (isinstance(verdict, Rewrite) and verdict.text is None):
        return events
    if isinstance(verdict, End) and verdict.stop is None:
        return [*_kept(content), *text_block(verdict.text), PolicyRefused(verdict.message or ENDED).as_event()]
    stop = last if isinstance(last, StreamError) else None
    match verdict:
        case Rewrite(text=str() as text):
            return [*_with_text(content, text), last]
        case Replace(text=text):
            return [*_kept(content), *text_block(text), stop or StreamEnd("end")]
        case End(text=text):
            return [*_kept(content), *text_block(text), stop or StreamEnd(verdict.stop or "end")]
        case _:
            message = verdict.message if isinstance(verdict, Refuse) else ""
            return [*_kept(content), *text_block(message), stop or StreamEnd("content_filter")]


def _kept(events: list[BareEvent]) -> list[BareEvent]:
    """The events that are not content: usage and extras."""
    return [event for event in events if isinstance(event, Usage) or (isinstance(event, Extra) and not quotes_text(event))]


def _with_text(events: list[BareEvent], text: str) -> list[BareEvent]:
    """The answer with ``text`` as its only text, at the place of the first text."""
    given: list[BareEvent] = []
    inside = written = False
    for event in events:
        if isinstance(event, TextStart):
            inside = True
            if not written:
                written = True
                given += text_block(text)
        elif isinstance(event, TextEnd):
            inside = False
        elif not quotes_text(event) and (not inside or isinstance(event, (Usage, Extra, Media))):
            given.append(event)
    return given if written else [*given, *text_block(text)]


def _size(event: BareEvent) -> int:
    if isinstance(event, ToolCallDelta):
        return len(event.args)
    if isinstance(event, ToolResult):
        return len(event.content)
    return len(event.data) if isinstance(event, Media) else len(getattr(event, "text", ""))
