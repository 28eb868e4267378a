"""The output side of one policy: events leave in order, and wait for every earlier piece that has no verdict yet.

Everything that the policy's filter takes in is put here in the order of the stream: events as they are, free text, and units
that a policy judges. While nothing waits, each is released at once. A unit whose verdict is awaited holds everything after it,
so several units can be judged at the same time and still leave in order.

Blocks become pieces for the policy, and the verdict becomes the events of a block again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from msgspec import structs

from ...errors import LimitExceeded, PolicyRefused
from ...events import (
    BareEvent,
    Citation,
    Extra,
    Media,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StepEnd,
    StreamEnd,
    StreamError,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
)
from ...grammar import BlockStart, OpenBlocks
from ...json_types import JsonObject
from ...patterns.scanner import PatternMatch
from ..pieces import Kind, Piece
from ..verdicts import End as EndVerdict
from ..verdicts import Forward, Refuse, Replace, Retry, Rewrite, Verdict
from .sentences import Segmenter

MAX_HELD_CHARS: Final = 8 * 2**20
"""Characters that wait behind an awaited verdict, for one policy and choice: more than a model writes while a person decides."""
ENDED: Final = "a policy ended the answer"
_FOLLOWED: Final = frozenset((TextStart, ReasoningStart, ToolCallStart, TextEnd, ReasoningEnd, ToolCallEnd, StepEnd))
End: TypeAlias = TextEnd | ReasoningEnd | ToolCallEnd
Whole: TypeAlias = ToolResult | Citation | Media

KIND_OF: Final[dict[type, Kind]] = {
    TextStart: "text",
    ReasoningStart: "reasoning",
    ToolCallStart: "tool_call",
    ToolResult: "tool_result",
    Citation: "citation",
    Media: "media",
}


class Release:
    """``may_retry`` is asked before the upstream is asked again. ``keeps``: the released text is kept, because a retry repeats
    it."""

    def __init__(self, may_retry: Callable[[], bool], *, keeps: bool) -> None:
        self._may_retry = may_retry
        self._released_texts: list[str] | None = [] if keeps else None
        self._queue: deque[tuple[Callable[..., None], tuple[Any, ...], int]] = deque()  # Any: the arguments of the method
        self._held_chars = 0
        self._blocks = OpenBlocks()  # of the output
        self._any = False  # content was released
        self._calls = self._refused_calls = 0
        self._refused_ids: set[str] = set()
        self._text_refused = False
        self.out: list[BareEvent] = []
        self.done = False
        self.retry: Retry | None = None

    # --- what the filter puts

    @property
    def waiting(self) -> bool:
        return bool(self._queue)

    @property
    def released_text(self) -> str:
        """The text that was released."""
        return "".join(self._released_texts or ())

    def events(self, events: Sequence[BareEvent], block: WatchedBlock | None = None) -> None:
        """Events as they are; inside a block that was refused, only those that are not its content."""
        if self._queue or self.done:
            self._put(self._render_events, (events, block), _chars(events))
        else:
            self._render_events(events, block)

    def free(self, block: WatchedBlock, deltas: list[BareEvent]) -> None:
        """Deltas of the open block that leave as they are. Nothing waits."""
        if not deltas:
            return
        if not block.opened:
            self._open(block)
        if self._released_texts is not None and block.kind == "text":
            self._released_texts += texts_of(deltas)
        self.out += deltas

    def text(self, block: WatchedBlock, text: str) -> None:
        self._put(self._render_text, (block, text), len(text))

    def unit(self, unit: Unit) -> None:
        self._put(self._render_unit, (unit,), len(unit.piece.text))

    def close(self, block: WatchedBlock, end: End) -> None:
        self._put(self._render_close, (block, end), 0)

    def finish(self, event: StreamEnd | StreamError) -> None:
        self._put(self._render_finish, (event,), 0)

    def drain(self) -> None:
        """Releases what no longer waits, after a verdict came in."""
        queue = self._queue
        while queue and not self.done:
            render, arguments, chars = queue[0]
            if render == self._render_unit and arguments[0].verdict is None:
                return
            queue.popleft()
            self._held_chars -= chars
            render(*arguments)

    def hold(self, chars: int) -> None:
        """Counts characters that the filter itself holds; more than the limit end the stream."""
        if self._held_chars + chars > MAX_HELD_CHARS and not self.done:
            error = LimitExceeded(
                f"more than {MAX_HELD_CHARS} characters wait for the verdict of a policy; judge smaller pieces, or faster",
                code="limit_policy_held_chars",
            )
            self.end(structs.replace(error.as_event(), origin="policy"))

    def taken(self) -> list[BareEvent]:
        """The events that were released since the last call."""
        out, self.out = self.out, []
        return out

    # --- rendering

    def _put(self, render: Callable[..., None], arguments: tuple[Any, ...], chars: int) -> None:  # Any: as in ``_queue``
        if self.done:
            return
        if not self._queue and (render != self._render_unit or arguments[0].verdict is not None):
            render(*arguments)
            return
        self._queue.append((render, arguments, chars))
        self._held_chars += chars
        self.hold(0)

    def _render_events(self, events: Sequence[BareEvent], block: WatchedBlock | None) -> None:
        """The events are all of one type."""
        kind = type(events[0])
        if kind is TextDelta:
            if self._released_texts is not None:
                self._released_texts += [event.text for event in events if isinstance(event, TextDelta)]
        elif kind in _FOLLOWED:
            for event in events:
                self._follow(event)
        if block is None or kind is not Citation:
            self.out += events
        elif not block.refused:
            self._open(block)
            self.out += [without_offsets(event) for event in events if isinstance(event, Citation)] if block.changed else events

    def _follow(self, event: BareEvent) -> None:
        """Tracks the open block and counts calls, when a start or an end is released."""
        kind = type(event)
        if kind is StepEnd:
            self._calls = self._refused_calls = 0
            return
        self._blocks.follow(event)
        self._any = True
        if isinstance(event, ToolCallStart):
            self._calls += event.kind != "server"

    def _open(self, block: WatchedBlock) -> None:
        if not block.opened:
            block.opened = True
            self._follow(block.start)
            self.out.append(block.start)

    def _render_text(self, block: WatchedBlock, text: str) -> None:
        if block.refused or not text:
            return
        self._open(block)
        if self._released_texts is not None and block.kind == "text":
            self._released_texts.append(text)
        self.out.append(delta_of(block.kind, text))

    def _render_close(self, block: WatchedBlock, end: End) -> None:
        if block.opened:
            self._blocks.follow(end)
            self.out.append(without_echo(end) if block.changed else end)
        elif not block.refused and not block.changed:  # an empty block passes unchanged
            self._open(block)
            self._follow(end)
            self.out.append(end)

    def _render_unit(self, unit: Unit) -> None:
        verdict = unit.verdict
        assert verdict is not None
        if unit.block is not None and unit.block.refused:
            return
        if isinstance(verdict, Retry):
            if self._may_retry() and not self._calls and (self._released_texts is not None or not self._any):
                self.stop()
                self.retry = verdict
                return
            verdict = Refuse(message=verdict.message, reason=verdict.reason)
        if isinstance(verdict, EndVerdict):
            self._render_end(unit, verdict)
        elif unit.found is not None and unit.block is not None:
            self._render_found(unit.block, unit.found, verdict)
        elif unit.events is not None and unit.block is not None:
            self._render_block(unit.block, unit.piece, unit.events, verdict)
            if unit.notice is not None:
                self.out.append(unit.notice)
        elif unit.event is not None:
            self._render_whole(unit.event, verdict, unit.block)

    def _render_found(self, block: WatchedBlock, found: PatternMatch, verdict: Verdict) -> None:
        match verdict:
            case Rewrite(text=str() as text) | Replace(text=text):
                block.changed = True
                self._render_text(block, found.written(text))
            case Refuse():
                if block.kind == "tool_call" and block.opened:  # a call that was begun cannot be taken back
                    self.end(PolicyRefused(verdict.message or ENDED).as_event())
                    return
                block.changed = True
                if block.kind == "tool_call":
                    self._refuse_call(block.piece)
                    self.out += text_block(verdict.message)
                else:
                    self._text_refused = self._text_refused or block.kind == "text"
                    self._render_text(block, verdict.message)
                block.refused = True
            case _:
                self._render_text(block, found.raw)

    def _render_block(self, block: WatchedBlock, piece: Piece, events: list[BareEvent], verdict: Verdict) -> None:
        self._any = True
        if isinstance(verdict, (Refuse, Replace)):
            block.refused = True
            if piece.kind == "tool_call":
                self._refuse_call(piece)
            elif isinstance(verdict, Refuse) and piece.kind == "text":
                self._text_refused = True
        elif piece.kind == "tool_call":
            self._calls += piece.call_kind != "server"
        after = block_after(events, verdict)
        if self._released_texts is not None:
            self._released_texts += [event.text for event in after if isinstance(event, TextDelta)]
        self.out += after

    def _refuse_call(self, piece: Piece) -> None:
        self._refused_ids.add(piece.call_id)
        self._refused_calls += piece.call_kind != "server"

    def _render_whole(self, event: Whole, verdict: Verdict, block: WatchedBlock | None) -> None:
        if isinstance(event, ToolResult) and event.call_id in self._refused_ids:
            return  # the result of a call that the client has not seen
        after = whole_after(event, verdict)
        if after:
            self._render_events(after, block if block is not None and block.segmenter is not None else None)

    def _render_finish(self, event: StreamEnd | StreamError) -> None:
        self.done = True
        self.out.append(self._corrected(event) if isinstance(event, StreamEnd) else event)

    def _corrected(self, event: StreamEnd) -> StreamEnd:
        """The end with the stop reason that fits what was released."""
        if event.reason == "tool_calls" and self._refused_calls and not self._calls:
            return StreamEnd("content_filter" if self._text_refused else "end")
        if self._text_refused and event.reason != "tool_calls":
            return StreamEnd("content_filter")
        return event

    # --- early ends

    def _render_end(self, unit: Unit, verdict: EndVerdict) -> None:
        if verdict.text:
            block = unit.block
            if block is not None and unit.found is not None:
                block.changed = True
                self._render_text(block, unit.found.written(verdict.text))
            elif unit.piece.kind == "text" and unit.events is not None:
                self.out += text_block(verdict.text)
        if verdict.stop is not None:
            self.end(StreamEnd(verdict.stop))
        else:
            self.end(PolicyRefused(verdict.message or ENDED).as_event())

    def end(self, event: StreamEnd | StreamError) -> None:
        """Closes the open block and ends the stream here."""
        self.stop()
        self.out.append(event)

    def stop(self) -> None:
        """Closes what is open in the output. Nothing is released any more."""
        self.out += self._blocks.close(broken=False)  # type: ignore[arg-type]  # one choice alone
        self.done = True
        self._queue.clear()
        self._held_chars = 0


class WatchedBlock:
    """A block that a policy looks at. ``opened``: its start was released. ``refused``: the rest of it is withheld."""

    __slots__ = ("after", "changed", "events", "held_chars", "kind", "opened", "piece", "refused", "segmenter", "start")

    def __init__(self, kind: Kind, start: BlockStart, segmenter: Segmenter | None, piece: Piece) -> None:
        self.kind = kind
        self.start = start
        self.segmenter = segmenter  # a Scanner, JsonScanner, Sentences or Deltas; None where the block is held whole
        self.piece = piece
        self.events: list[BareEvent] = [start]
        self.after: list[Unit] = []  # what was judged inside a block that is held whole
        self.held_chars = 0
        self.opened = False
        self.changed = False
        self.refused = False


class Unit:
    """Something to be judged: a piece of a streaming block (``found``), a whole block (``events``), or an event that is a whole
    block (``event``)."""

    __slots__ = ("block", "event", "events", "found", "notice", "piece", "since", "verdict")

    def __init__(
        self,
        piece: Piece,
        since: float,
        *,
        block: WatchedBlock | None = None,
        found: PatternMatch | None = None,
        events: list[BareEvent] | None = None,
        event: Whole | None = None,
    ) -> None:
        self.piece = piece
        self.since = since
        self.block = block
        self.found = found
        self.events = events
        self.event = event
        self.verdict: Verdict | None = None
        self.notice: Extra | None = None  # sent to the client in place of the piece


def _chars(events: Sequence[BareEvent]) -> int:
    return sum(
        len(event.args if isinstance(event, ToolCallDelta) else event.text)
        for event in events
        if isinstance(event, (TextDelta, ReasoningDelta, ToolCallDelta))
    )


def texts_of(deltas: Sequence[BareEvent]) -> list[str]:
    """The texts of deltas that are all of one type."""
    if type(deltas[0]) is ToolCallDelta:
        return [delta.args for delta in deltas]  # type: ignore[union-attr]  # all of one type
    return [delta.text for delta in deltas]  # type: ignore[union-attr]  # text or reasoning


def delta_of(kind: Kind, text: str) -> BareEvent:
    if kind == "text":
        return TextDelta(text)
    return ReasoningDelta(text) if kind == "reasoning" else ToolCallDelta(text)


def without_echo(end: End) -> End:
    """The end of a block whose content was changed: the provider's signature is dropped, because it is no longer valid."""
    return structs.replace(end, echo=None)


def text_block(text: str) -> list[BareEvent]:
    return [TextStart(), TextDelta(text), TextEnd()] if text else []


def trimmed(run: list[BareEvent], texts: list[str], before: str, cut: int, kind: Kind) -> list[BareEvent]:
    """The deltas of a run for ``before`` and their own texts without the last ``cut`` characters. Deltas that are not cut stay
    as they are."""
    last = len(run) - 1
    while last >= 0 and cut and cut >= len(texts[last]):
        cut -= len(texts[last])
        last -= 1
    if last < 0:
        return [delta_of(kind, before[: len(before) - cut])] if cut < len(before) else []
    kept = run[: last + 1] if last + 1 < len(run) else run
    if not before and not cut:
        return kept
    kept = list(kept)
    if before:
        text = before + texts[0]
        kept[0] = delta_of(kind, text[: len(text) - cut] if last == 0 else text)
    if cut and (last or not before):
        kept[-1] = delta_of(kind, texts[last][: len(texts[last]) - cut])
    return kept


def piece_of_block(events: Sequence[BareEvent]) -> Piece:
    """A whole block as a piece."""
    start, end = events[0], events[-1]
    text = "".join(
        event.args if isinstance(event, ToolCallDelta) else event.text
        for event in events
        if isinstance(event, (TextDelta, ReasoningDelta, ToolCallDelta))
    )
    if isinstance(start, ToolCallStart):
        complete = not isinstance(end, ToolCallEnd) or end.complete
        return Piece("tool_call", text, name=start.name, call_id=start.call_id, call_kind=start.kind, complete=complete)
    return Piece("reasoning" if isinstance(start, ReasoningStart) else "text", text)


def piece_of_whole(event: Whole, names: dict[str, str]) -> Piece:
    """An event that is a whole block, as a piece. ``names`` are the tools of the calls so far, by call id."""
    match event:
        case ToolResult():
            name = names.get(event.call_id, "")
            return Piece("tool_result", event.content, name=name, call_id=event.call_id, is_error=event.is_error)
        case Citation():
            return Piece("citation", event.cited_text, data={"url": event.url, "title": event.title})
        case Media():
            return Piece("media", event.transcript, data={"mime": event.mime, "url": event.url})


def block_after(events: list[BareEvent], verdict: Verdict) -> list[BareEvent]:
    """The events of a whole block after this verdict. Events inside it that are not its text stay, except for citations."""
    start, end = events[0], events[-1]
    kind = KIND_OF[type(start)]
    beside: list[BareEvent] = [
        event
        for event in events[1:-1]
        if not isinstance(event, (TextDelta, ReasoningDelta, ToolCallDelta, Citation)) and not quotes_text(event)
    ]
    match verdict:
        case Rewrite() if verdict.text is not None or verdict.name is not None:
            if isinstance(start, ToolCallStart):
                start = structs.replace(start, name=verdict.name or start.name, native=None)
            text = piece_of_block(events).text if verdict.text is None else verdict.text
        case Replace(text=text) | Refuse(message=text):
            if kind == "tool_call":
                return [*beside, *text_block(text)]
        case _:
            return events
    if not text and kind != "tool_call":
        return beside
    return [start, *([delta_of(kind, text)] if text else []), *beside, without_echo(end)]  # type: ignore[arg-type]  # the end


def whole_after(event: Whole, verdict: Verdict) -> list[BareEvent]:
    """An event that is a whole block, after this verdict."""
    match verdict:
        case Forward():
            return [event]
        case Rewrite(text=None):
            return [event]
        case Rewrite(text=str() as text) | Replace(text=text) | Refuse(message=text):
            if isinstance(event, ToolResult):
                refused = isinstance(verdict, Refuse)
                return [structs.replace(event, content=text, is_error=event.is_error or refused, native=None)]
            if isinstance(event, Citation) and isinstance(verdict, Rewrite):
                return [structs.replace(event, cited_text=text, native=None)]
    return []


def without_offsets(citation: Citation) -> Citation:
    """A citation without offsets: its text was changed, so they are no longer valid."""
    return structs.replace(citation, start=None, end=None, native=None)


def quotes_text(event: BareEvent) -> bool:
    """Whether this is an Extra that repeats the text token by token, as log probabilities do."""
    return isinstance(event, Extra) and _has_log_probabilities(event.data)


def _has_log_probabilities(data: JsonObject) -> bool:
    return any(
        "logprob" in name.lower() or (isinstance(value, dict) and _has_log_probabilities(value)) for name, value in data.items()
    )
