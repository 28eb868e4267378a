"""The base of all writers: one rule for each kind of event. It counts what a dialect cannot express and always writes an end.

A dialect's writer fills ``rules`` with a method for each event that its wire format supports; the others count as lost. It
appends bytes to ``self.pieces``; the events of one ``feed`` are returned as one bytes object.

Events that begin without a ``StreamStart`` get one. A delta outside its block raises ``GrammarError``, because the output would
not be a valid stream.

Clients act on "done" and "stop" markers: they run a call, or give up a retry. The end marker of an incomplete block (``complete``
is False) is therefore held back until the stream ends properly, and never written before an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, TypeAlias, TypedDict

import msgspec

from ...errors import GrammarError, UpstreamTruncated, excerpt
from ...events import (
    EVENT_KINDS,
    Choice,
    Event,
    KeepAlive,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StepEnd,
    StreamEnd,
    StreamError,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
    as_events,
    not_an_event,
)
from ...framing import sse
from ...json_types import JsonObject

encode = msgspec.json.Encoder().encode
"""Encodes any value as JSON: the one encoder of all writers."""
_DELTA_OF: Final[dict[type, type]] = {TextStart: TextDelta, ReasoningStart: ReasoningDelta, ToolCallStart: ToolCallDelta}
_START_OF: Final = {delta: start for start, delta in _DELTA_OF.items()}
_ENDS: Final = frozenset((TextEnd, ReasoningEnd, ToolCallEnd))
_BEFORE_START: Final = frozenset((KeepAlive, StreamError))
"""Events that may come before the start of a stream."""


class WriterOptions(TypedDict, total=False):
    """The arguments of all writers."""

    strict: bool
    id: str
    model: str
    created: int
    include_usage: bool
    abort: bool


class StepBreak:
    """Tells a writer that joins all text of an answer where the text of one model turn must be separated from the next."""

    __slots__ = ("_has_content", "_step_over")

    def __init__(self) -> None:
        self._has_content = False
        self._step_over = False

    def end_step(self, _event: StepEnd) -> None:
        self._step_over = self._has_content

    def due(self) -> bool:
        """Whether a text that begins now is the first of its step, after text in an earlier step."""
        due, self._step_over, self._has_content = self._step_over, False, True
        return due


Rules: TypeAlias = Mapping[type, Callable[[Any], None]]  # Any: each method takes the events of its own key


class Writer:
    """The counterpart of a reader, a box from events to bytes: ``feed(events)`` and ``close()`` give bytes.

    ``strict`` writes the fields of the dialect's specification only. ``id``, ``model`` and ``created`` are used if the events
    have none. ``include_usage`` writes the usage in dialects whose clients must ask for it; the others always write it.
    ``abort`` leaves out the marker of an end behind an error, for a stream whose connection is cut. ``lost``
    counts what this dialect cannot express, by the name of the event. ``usage`` is the sum over the steps so far.
    """

    dialect: ClassVar[str]
    folded: ClassVar[dict[str, str]] = {}
    """Events that this dialect expresses in another form, with that form, for docs/dialects.md."""
    headers: ClassVar[dict[str, str]] = {}
    """Additional headers of an HTTP response in this dialect."""

    def __init__(
        self,
        *,
        strict: bool = False,
        id: str = "",
        model: str = "",
        created: int = 0,
        include_usage: bool = False,
        abort: bool = False,
    ) -> None:
        self.abort = abort
        self.strict = strict
        self.include_usage = include_usage
        self.id = id
        self.model = model
        self.created = created
        self.usage: Usage | None = None
        self._usage_before: Usage | None = None
        self.step_break = StepBreak()
        self._start_seen = False
        self._open_delta: type | None = None
        self.lost: Counter[str] = Counter()
        self.pieces: list[bytes] = []
        self.started = False
        self.done = False
        self._ends_of_broken_blocks: list[bytes] = []
        self._rules = self._with_broken_ends_kept(self.rules())

    # --- the box

    def feed(self, events: Iterable[Event] | Event) -> bytes:
        """The bytes of these events, or of one event. Raises ``GrammarError`` for a delta outside its block, and ``TypeError``
        for what is not an event."""
        given: Iterable[Event] = events if type(events) is list else as_events(events)
        rules, delta = self._rules, self._open_delta
        write_delta = rules.get(delta, self.lose) if delta is not None else self.lose
        for event in given:
            if type(event) is delta:  # nearly all events
                write_delta(event)
                continue
            if self.done:
                break
            delta = self._check(event)
            if delta is not None:
                write_delta = rules.get(delta, self.lose)
            rules.get(type(event), self.lose)(event)
        return self._taken()

    def close(self) -> bytes:
        """The final bytes. If the events stopped without an end, an error is written instead."""
        if not self.done:
            self.feed_end(UpstreamTruncated("the events stopped before the end of the stream").as_event())
        return self._taken()

    # --- methods that a dialect implements

    def rules(self) -> Rules:
        """The method for each type of event. A dialect adds those for the events that its wire format supports to these, which all
        formats have; a comment for ``KeepAlive`` is a line of server-sent events."""
        return {
            StreamStart: self.begin,
            StepEnd: self.end_step,
            Usage: self.keep_usage,
            KeepAlive: self.write_comment,
            StreamEnd: self.feed_end,
            StreamError: self.feed_end,
        }

    def queued(self) -> JsonObject:
        """The response before its stream begins, in dialects that can answer in the background."""
        raise NotImplementedError

    def write_start(self) -> None:
        """Writes the first bytes of a stream; ``id``, ``model`` and ``created`` are known."""

    def write_end(self, event: StreamEnd) -> None:
        """Writes the end of a stream."""
        raise NotImplementedError

    def write_error(self, event: StreamError) -> None:
        """Writes an error as the end of a stream."""
        raise NotImplementedError

    # --- methods that a dialect calls

    def begin(self, event: StreamStart) -> None:
        """Begins the stream with what its first event says."""
        self.id = event.id or self.id
        self.model = event.model or self.model
        self.created = event.created or self.created
        self.ensure_started()

    def ensure_started(self) -> None:
        """Begins the stream, once."""
        if not self.started:
            self.started = True
            self.write_start()

    def feed_end(self, event: StreamEnd | StreamError) -> None:
        """Ends the stream."""
        self.done = True
        if isinstance(event, StreamEnd):
            self.ensure_started()
            self.pieces += self._ends_of_broken_blocks
            self.write_end(event)
        else:
            self.write_error(event)

    def keep_usage(self, event: Usage) -> None:
        """Adds the usage of this step to that of the steps before."""
        self.usage = event if self._usage_before is None else self._usage_before.plus(event)

    def write_summary(self, text: str) -> None:
        """Writes a summary of earlier reasoning as reasoning of its own."""
        for event in (ReasoningStart(summary=True), ReasoningDelta(text), ReasoningEnd()):
            self._rules[type(event)](event)

    def end_step(self, event: StepEnd) -> None:
        """Ends a model turn: the usage of the next one is added to the sum, and a break separates its text."""
        self._usage_before = self.usage
        self.step_break.end_step(event)

    def write_comment(self, event: KeepAlive) -> None:
        """Writes a comment, which clients skip."""
        self.pieces.append(sse.comment(event.comment or "ping"))

    def lose(self, event: Event) -> None:
        """Counts an event that the dialect cannot express."""
        name = type(event.event if isinstance(event, Choice) else event).__name__
        self.lost[name] += 1

    def _check(self, event: Event) -> type | None:
        """Tracks the blocks. Returns the delta type of the open block, which is then written without a check."""
        kind = type(event)
        if kind not in EVENT_KINDS:
            raise not_an_event(event)
        if kind in _DELTA_OF:
            self._open_delta = _DELTA_OF[kind]
        elif kind in _ENDS:
            self._open_delta = None
        elif kind in _START_OF:
            raise GrammarError(f"{excerpt(event)} is outside its block: feed {_START_OF[kind].__name__} first")
        if not self._start_seen and kind not in _BEFORE_START:
            self._start_seen = True
            if kind is not StreamStart:
                self._rules[StreamStart](StreamStart())
        return self._open_delta

    def _with_broken_ends_kept(self, rules: Rules) -> Rules:
        def end(event: TextEnd | ReasoningEnd | ToolCallEnd) -> None:
            before = len(self.pieces)
            rules[type(event)](event)
            if not event.complete:
                self._ends_of_broken_blocks += self.pieces[before:]
                del self.pieces[before:]

        kept = dict(rules)
        for kind in _ENDS:
            if kind in kept:
                kept[kind] = end
        return kept

    def write_broken_ends(self) -> None:
        """Writes the ends of incomplete blocks before an error that says that they are incomplete."""
        self.pieces += self._ends_of_broken_blocks
        self._ends_of_broken_blocks.clear()

    def _taken(self) -> bytes:
        pieces = self.pieces
        taken = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return taken
