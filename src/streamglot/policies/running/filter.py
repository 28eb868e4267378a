"""The input side of one policy on one choice: takes events, has the policy judge them, and passes them to the release.

``BlockFilter`` cuts blocks into the units that the policy asked for. ``AnswerFilter`` is for a policy that judges the whole
answer: it holds everything until the model has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, Final

from msgspec import structs

from ...errors import PolicyRefused
from ...events import (
    BareEvent,
    Citation,
    Extra,
    KeepAlive,
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
from ...grammar import BlockStart
from ...json_types import JsonObject
from ...messages import ReasoningPart, RefusalPart, TextPart, ToolCallPart, ToolResultPart
from ...patterns.scanner import Overflow, PatternMatch, PatternSet, Segment
from ...stages import collect
from ...stages.stage import Question
from ..needs import Need
from ..pieces import Piece
from ..verdicts import End, Forward, Refuse, Replace, Retry, Rewrite, Verdict
from .judging import Judging, judge_matches, match_piece, overflow_verdict, rewritten_strings, scanner_for
from .release import (
    ENDED,
    KIND_OF,
    Release,
    Unit,
    WatchedBlock,
    Whole,
    piece_of_block,
    piece_of_whole,
    quotes_text,
    text_block,
    texts_of,
    trimmed,
)
from .sentences import Deltas, Segmenter, Sentences

_DELTAS: Final = frozenset((TextDelta, ReasoningDelta, ToolCallDelta))
_NOTHING: Final = PatternMatch("", "", "", "")


class BlockFilter:
    """``feed`` takes events and gives those that may leave. Questions go to ``judging``, their replies come to ``answer``."""

    def __init__(self, judging: Judging, may_retry: Callable[[], bool]) -> None:
        self._judging = judging
        self._needs = judging.member.needs.answer
        text = self._needs.get("text")
        self._drops_log_probabilities = text is not None and text.unit in ("pattern", "sentence")
        self._text_patterns = None if text is None else text.patterns
        self._block: WatchedBlock | None = None
        self._names: dict[str, str] = {}
        keeps = any(need.unit not in ("delta", "pattern") for need in self._needs.values())
        self.release = Release(may_retry, keeps=keeps)

    def feed(self, events: list[BareEvent]) -> list[BareEvent]:
        release = self.release
        if type(events[0]) in _DELTAS and len(set(map(type, events))) == 1:  # the usual case: a read of a long text
            if not release.done:
                self._deltas(events)
            return release.taken()
        for kind, same in groupby(events, type):
            if release.done:
                break
            run = list(same)
            if kind in _DELTAS:
                self._deltas(run)
            elif kind is KeepAlive:
                release.out += run
            else:
                rule = _RULES.get(kind, BlockFilter._loose)
                for event in run:
                    rule(self, event)  # after the end, the release ignores events
        return self.release.taken()

    def answer(self, question: Question, reply: object) -> list[BareEvent]:
        unit = self._judging.settle(question, reply)
        if unit is not None and unit.verdict is not None:
            self.release.drain()
        return self.release.taken()

    @property
    def held(self) -> str:
        """The text that waits in the open block, for displays."""
        block = self._block
        if block is None:
            return ""
        return piece_of_block(block.events).text if block.segmenter is None else str(block.segmenter.held)

    # --- blocks

    def _start(self, event: BlockStart) -> None:
        kind = KIND_OF[type(event)]
        need = self._needs.get(kind)
        unit = "block" if need is None else need.unit
        piece = Piece(kind, "", unit)
        if isinstance(event, ToolCallStart):
            self._names[event.call_id] = event.name
            piece = Piece(kind, "", unit, name=event.name, call_id=event.call_id, call_kind=event.kind)
        if need is None or not self._judging.member.sees(piece):
            self._block = None
            self.release.events([event])
            return
        # The provider's own form repeats the arguments, and writers pass it on: a match in it would leave beside the scanner.
        # No text in it can be rewritten safely, so it is dropped as a whole.
        if isinstance(event, ToolCallStart) and event.native is not None and need.patterns is not None:
            event = event if self._clean(need.patterns, event.native.data, piece) else structs.replace(event, native=None)
        block = self._block = WatchedBlock(kind, event, _segmenter(need, piece), piece)
        if kind == "tool_call" and need.unit == "delta":
            self._segments(block, [_NOTHING])  # the policy can judge the call by its name, before its start is released

    def _deltas(self, run: list[BareEvent]) -> None:
        block, release = self._block, self.release
        if block is None:
            release.events(run)
            return
        if block.refused:
            return
        texts = texts_of(run)
        segmenter = block.segmenter
        if segmenter is None:
            # Nobody has judged this block, so it does not yet wait in the release, and its characters are counted here.
            block.events += run
            block.held_chars += sum(map(len, texts))
            release.hold(block.held_chars)
            return
        if type(segmenter) is Deltas:
            self._each_delta(block, run, texts)
            return
        before = segmenter.held
        text = "".join(texts) if len(texts) > 1 else texts[0]
        segments = segmenter.feed(text)
        if not segments:
            return
        if len(segments) == 1 and not release.waiting and type(segments[0]) is str:  # the usual case: no match
            # The scanner returned what it held before and the new text, except for the end that may still become a match. The
            # deltas of the upstream leave as they are, so that a policy which finds nothing does not change how text arrives;
            # only the first gets the held text in front of it, and the last ones lose what is held now. They go past the queue of
            # the release, which is why nothing may wait in it.
            cut = len(before) + len(text) - len(segments[0])
            release.free(block, trimmed(run, texts, before, cut, block.kind))
            return
        self._segments(block, segments)

    def _each_delta(self, block: WatchedBlock, run: list[BareEvent], texts: list[str]) -> None:
        for event, text in zip(run, texts, strict=True):
            if not text:  # has no content to judge; a piece of a call without text means that the call begins
                continue
            unit = Unit(
                structs.replace(block.piece, text=text), self._judging.now(), block=block, found=PatternMatch(text, "", "", text)
            )
            self._judging.judge(unit)
            if type(unit.verdict) is Forward and not self.release.waiting:  # the event itself leaves, not a copy of its text
                self.release.free(block, [event])
                continue
            self.release.unit(unit)
            if block.refused or self.release.done:
                return

    def _segments(self, block: WatchedBlock, segments: list[Segment]) -> None:
        for segment in segments:
            if isinstance(segment, str):
                self.release.text(block, segment)
                continue
            now = self._judging.now()
            if isinstance(segment, Overflow):
                unit = Unit(block.piece, now, block=block, found=_NOTHING)
                self._judging.accept(unit, overflow_verdict(segment))
            else:
                # A delta or a sentence has no name.
                piece = match_piece(block.piece, segment) if segment.name else structs.replace(block.piece, text=segment.text)
                unit = Unit(piece, now, block=block, found=segment)
                self._judging.judge(unit)
            self.release.unit(unit)
            if block.refused or self.release.done:
                return

    def _end(self, event: TextEnd | ReasoningEnd | ToolCallEnd) -> None:
        block, self._block = self._block, None
        if block is None:
            self.release.events([event])
        elif block.segmenter is not None:
            self._segments(block, block.segmenter.close())
            self.release.close(block, event)
        else:
            block.events.append(event)
            unit = Unit(piece_of_block(block.events), self._judging.now(), block=block, events=block.events)
            self._judging.judge(unit)
            # What was judged inside the block comes after it. It could not leave before the block's own start, and the block
            # itself is judged only now.
            for each in (unit, *block.after):
                self.release.unit(each)

    # --- what comes whole

    def _whole(self, event: Whole) -> None:
        need = self._needs.get(KIND_OF[type(event)])
        piece = piece_of_whole(event, self._names)
        block = self._block
        if need is None or not self._judging.member.sees(piece):
            self._loose(event)
            return
        if need.patterns is not None:
            event = self._clean_fields(event, need.patterns, piece)
        unit = Unit(piece, self._judging.now(), block=block, event=event)
        if need.patterns is None:
            self._judging.judge(unit)
        else:
            # ``judge_matches`` has recorded each match; one more record for the whole would count them twice.
            verdict = judge_matches(self._judging.verdict, need.patterns, piece, self._judging.note)
            self._judging.accept(unit, verdict, recorded=True)
        if block is not None and block.segmenter is None:
            block.after.append(unit)
        else:
            self.release.unit(unit)

    def _loose(self, event: BareEvent) -> None:
        """Keeps the place of the event in a block that is held whole. In any other block the event does not wait."""
        if self._block is not None and self._block.segmenter is None:
            self._block.events.append(event)
        else:
            self.release.events([event], self._block)

    def _extra(self, event: Extra) -> None:
        # Log probabilities spell out the text token by token. They come beside it, so a policy that holds text back until it is
        # judged cannot let them pass.
        if self._drops_log_probabilities and quotes_text(event):
            return
        if self._text_patterns is not None:
            data = self._strings(self._text_patterns, event.data, Piece("text"))
            event = event if data is event.data else Extra(event.dialect, data)
        self._loose(event)

    def _finish(self, event: StreamEnd | StreamError) -> None:
        self.release.finish(event)
        self._judging.ended(event)

    # --- patterns in strings beside the text

    def _strings(self, patterns: PatternSet, data: JsonObject, piece: Piece) -> JsonObject:
        changed: JsonObject = rewritten_strings(self._judging.verdict, patterns, data, piece, self._judging.note)
        return changed

    def _clean(self, patterns: PatternSet, data: JsonObject, piece: Piece) -> bool:
        """Whether the provider's own form of a block has no match."""
        return self._strings(patterns, data, structs.replace(piece, kind="text")) is data

    def _clean_fields(self, event: Whole, patterns: PatternSet, piece: Piece) -> Whole:
        """The event without matches in its other fields: the title of a citation, the provider's own form."""
        if isinstance(event, Citation):
            beside = {"url": event.url, "title": event.title}
            cleaned = self._strings(patterns, beside, piece)
            if cleaned is not beside:
                event = structs.replace(event, url=cleaned["url"] or "", title=cleaned["title"] or "", native=None)
        if isinstance(event, Media) or event.native is None or self._clean(patterns, event.native.data, piece):
            return event
        return structs.replace(event, native=None)


_RULES: Final[dict[type, Callable[[BlockFilter, Any], None]]] = {  # Any: each method takes the events of its key
    TextStart: BlockFilter._start,
    ReasoningStart: BlockFilter._start,
    ToolCallStart: BlockFilter._start,
    TextEnd: BlockFilter._end,
    ReasoningEnd: BlockFilter._end,
    ToolCallEnd: BlockFilter._end,
    ToolResult: BlockFilter._whole,
    Citation: BlockFilter._whole,
    Media: BlockFilter._whole,
    Extra: BlockFilter._extra,
    StreamEnd: BlockFilter._finish,
    StreamError: BlockFilter._finish,
}


def _segmenter(need: Need, piece: Piece) -> Segmenter | None:
    """The object that cuts the block into units; None for a block that is held whole."""
    if need.unit == "pattern" and need.patterns is not None:
        return scanner_for(need.patterns, piece.kind, piece.call_kind)
    if need.unit == "delta":
        return Deltas()
    return Sentences() if need.unit == "sentence" else None


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
