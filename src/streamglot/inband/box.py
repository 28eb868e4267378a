"""A box from events to events: TextDelta in; text, reasoning and calls out. All other events pass through in their place.

Each choice of a stream is read for itself. Blocks that the upstream names itself (native reasoning, native calls, refusals) are not
changed; where one begins, the text before it ends.

An incomplete call never ends as a success. ``bad_call`` says what to do with a call that cannot be parsed:

- ``"incomplete"``: a call that has started ends with ``complete=False``. The rest of its markup is text, and the stream ends with
  the error ``tool_call_parse_error`` instead of its own end. The same error follows a text that ends inside a call: after the
  name of a declared tool, or inside JSON. Other markup that never became a call is text, and not an error. With ``leave_out`` the
  markup of a call with this error is no text: it is left out up to its closing marker or the next call.
- ``"text"``: every call is held until it is complete, so a call that breaks is text, as the model wrote it.
- ``"error"``: the first markup that is not a call ends the stream with ``tool_call_parse_error`` at once.

A stream that reports its own truncation (``length``, ``cancelled``, ``content_filter``, or an error) keeps that end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Literal, TypeAlias, get_args

from ..errors import BadCall, ConfigError, ToolCallParseError, excerpt
from ..events import (
    EVENT_KINDS,
    BareEvent,
    Choice,
    Citation,
    Echo,
    Event,
    Extra,
    KeepAlive,
    Media,
    ReasoningDelta,
    ReasoningStart,
    StepEnd,
    StreamEnd,
    StreamError,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    Usage,
    as_events,
    not_an_event,
)
from ..json_types import JsonValue
from ..messages import ToolSpec
from ..stages.choices import PerChoice
from .emitter import DEFAULT_BUFFERING, Buffering, Emitter
from .format import Format
from .parameters import Declared
from .scan import Malformed, Markers, markers_of
from .text_parser import TextParser

Tools = Iterable[ToolSpec | Mapping[str, JsonValue]]

Begins: TypeAlias = Literal["row", "unknown", "text", "reasoning"]

MAX_UNDECIDED_CHARS = 2**20
"""Characters that wait for the first mark of an answer, or are kept in case that its reasoning was the answer. A longer text is an
unusual answer: it flows, and is not repeated."""

_LOOSE = (Usage, KeepAlive, Extra)
_ENDED = ("end", "stop_sequence", "other")
_CUT = ("length", "cancelled", "content_filter")


def _marks(format: Format) -> tuple[Markers, tuple[str, ...]]:
    """The marks that show where an answer began, and those of them that show that it began in the reasoning."""
    think = format.think
    engines = (word for engine in format.engines if not engine.weak for word in engine.openers)
    folded = (*think.openers, *think.closers) if think.any_case else ()
    return markers_of((*think.openers, *think.closers, *engines), folded), tuple(word.lower() for word in think.closers)


class _Failed(Exception):
    """A call is malformed, and the stream must end at once."""

    def __init__(self, error: ToolCallParseError) -> None:
        super().__init__(str(error))
        self.error = error


class _First:
    """The parser of choice 0 as a box of its own."""

    def __init__(self, box: InBand) -> None:
        self.feed = box.feed_one
        self.close = box.close_one


class InBand:
    """Finds the reasoning and the calls that a model wrote into its text: the box that ``inband`` makes. ``format`` is the row of the notation.
    ``tools``: if there are none, every well-formed name may be called. ``starts_in_reasoning`` and ``thinking`` say whether the answer begins inside
    the reasoning. ``bad_call`` says what to do with a call that cannot be parsed. ``calls`` and ``reasoning`` switch the detection of either
    off. ``buffering`` gives the text in larger pieces. ``call_prefix`` begins the ids of the calls. ``leave_out``: a call that cannot be
    parsed is left out.

    ``begins`` is for a row whose answers begin inside the reasoning, on a server that perhaps separates it, or for a model that
    perhaps does not think:

    - ``"row"``: they begin there.
    - ``"unknown"``: the text waits for the first mark, which shows it. Without one it is the answer.
    - ``"text"``: the text flows as the answer. If a closing mark comes after all, it is removed and counted by ``late``.
    - ``"reasoning"``: the text flows as reasoning. If the answer ends properly without a mark and without a call, it is repeated
      as text: an answer is never reasoning alone.

    ``ended`` is called at the end of each answer with whether it closed its reasoning, if that is known."""

    def __init__(
        self,
        format: Format,
        tools: Tools | None = None,
        *,
        starts_in_reasoning: bool | None = None,
        thinking: bool | None = None,
        bad_call: BadCall = "incomplete",
        calls: bool = True,
        reasoning: bool = True,
        buffering: Buffering = DEFAULT_BUFFERING,
        call_prefix: str = "call",
        leave_out: bool = False,
        begins: Begins = "row",
        ended: Callable[[bool, int], None] | None = None,
    ) -> None:
        if bad_call not in get_args(BadCall):
            raise ConfigError(f"bad_call must be one of {', '.join(get_args(BadCall))}, not {excerpt(bad_call)}")
        self.format = format
        self._declared = Declared(tools, format.any_name)
        self._emitter = Emitter(buffering, call_prefix, keep_space=format.untouched)
        self._call_prefix = call_prefix
        self._buffering = buffering
        self._choices: PerChoice | None = None
        """The parsers of all choices, once there are several."""
        self._starts = self._begins = format.think.begins(starts_in_reasoning, thinking)
        self._how: Begins = begins if self._begins and reasoning else "row"
        self._tell = ended
        self._closed = False
        """The answer had a mark that closed its reasoning."""
        self._late = 0
        self._any_text = False
        self._undecided: list[str] | None = [] if self._how == "unknown" else None
        self._undecided_size = 0
        self._thought: list[str] | None = [] if self._how == "reasoning" else None
        self._thought_size = 0
        self._marks, self._closing = _marks(format) if self._undecided is not None else (Markers(()), ())
        self._bad_call = bad_call
        self._leave_out = leave_out
        self._calls = calls
        self._reasoning = reasoning
        self._direct = buffering.text == "piece" and buffering.reasoning == "piece" and self._how == "row"
        self._parser: TextParser | None = None
        self._echo: Echo | None = None
        self._text_complete = True
        self._native = False
        self._refusal = False
        self._ended = False
        self._cut = False
        self._broken: ToolCallParseError | None = None
        """The first call that could not be parsed, if it prevents the stream from ending as a success."""

    def feed(self, events: Iterable[Event] | Event) -> list[Event]:
        """What these events, or one event, become. Raises ``TypeError`` for what is not an event."""
        if self._choices is not None:
            return self._choices.feed(events)
        if type(events) is TextDelta and not self._refusal and not self._ended:
            return self._piece(events)  # type: ignore[return-value]  # the list is the caller's alone
        out: list[Event] = []
        rest = iter(events if type(events) is list else as_events(events))
        for event in rest:
            if type(event) is TextDelta and not self._refusal and not self._ended:
                out += self._piece(event)
            elif isinstance(event, Choice):
                self._choices = PerChoice(self._copy, _First(self))
                return out + self._choices.feed(chain((event,), rest))
            else:
                out += self.feed_one(event)
        return out

    def feed_one(self, event: BareEvent) -> list[BareEvent]:
        """What one event of one choice becomes."""
        if type(event) is TextDelta and not self._refusal and not self._ended:
            return self._piece(event)
        if type(event) not in EVENT_KINDS:
            raise not_an_event(event)
        if self._ended:
            return []
        if isinstance(event, _LOOSE):
            return [event]
        if isinstance(event, (Citation, Media)):
            if self._emitter.open in ("", "text"):
                return [event]
            self._emitter.waiting.append(event)
            return []
        if self._refusal:
            self._refusal = not isinstance(event, TextEnd)
            return [event]
        if isinstance(event, TextStart):
            if event.refusal:
                self._refusal = True
                return [*self._pause(), event]
            return []
        if isinstance(event, TextEnd):
            self._echo = event.echo or self._echo
            self._text_complete = event.complete
            return []
        if isinstance(event, StreamStart):
            return [event]
        if isinstance(event, StreamError):
            before = self._end_answer(cut=True)
            self._report(proper=False)
            if self._ended:
                return before
            self._ended = True
            return [*before, event]
        if isinstance(event, StreamEnd):
            before = self._end_answer(cut=event.reason in _CUT)
            if self._ended:
                return before
            before += self._repeated(event)
            self._report(proper=event.reason not in _CUT)
            self._ended = True
            return [*before, self._end(event)]
        if isinstance(event, StepEnd):
            return self._step(event)
        self._native = self._native or isinstance(event, ReasoningStart)
        return [*self._pause(), event]

    def close(self) -> list[Event]:
        """What was held. A call in it is incomplete."""
        return [*self.close_one()] if self._choices is None else self._choices.close()

    def close_one(self) -> list[BareEvent]:
        """What was held of one choice."""
        return [] if self._ended else self._end_answer(cut=True)

    # --- internals

    def _copy(self) -> InBand:
        """The same parser for another choice."""
        made = InBand(
            self.format,
            bad_call=self._bad_call,
            calls=self._calls,
            reasoning=self._reasoning,
            buffering=self._buffering,
            call_prefix=self._call_prefix,
            leave_out=self._leave_out,
            begins=self._how,
            ended=self._tell,
        )
        made._declared = self._declared
        made._starts = made._begins = self._starts
        return made

    def _piece(self, event: TextDelta) -> list[BareEvent]:
        text = event.text
        parser = self._parser
        emitter = self._emitter
        if (
            parser is not None
            and self._direct
            and parser.idle
            and emitter.open == parser.reader.mode
            and not emitter.space
            and parser.source.at >= len(parser.source.text)
            and text
            and not text[-1].isspace()
            and parser.first.search(text) is None
        ):
            # Prose without anything that could begin a marker: the common case, and the fast one.
            parser.prose.went_by(text)
            return [event] if emitter.open == "text" else [ReasoningDelta(text)]
        return self._parsed(text) if self._how == "row" else self._unsure(text)

    def _parsed(self, text: str) -> list[BareEvent]:
        parser = self._parser
        if parser is None:
            parser = self._parser = self._begin()
        try:
            parser.push(text)
        except _Failed as failure:
            return self._fail(failure.error)
        return self._take()

    # --- answers of which nobody knows whether they begin in the reasoning

    def _unsure(self, text: str) -> list[BareEvent]:
        self._any_text = True
        if self._undecided is None:
            out = self._parsed(text)
            if self._thought is not None:
                self._keep(out)
            return out
        before = "".join(self._undecided[-self._marks.longest :])[-self._marks.longest :]
        self._undecided.append(text)
        self._undecided_size += len(text)
        if self._native:
            return self._decided(False)
        found = self._marks.pattern.search(before + text)
        if found is not None:
            return self._decided(found[0].lower() in self._closing)
        return self._decided(False) if self._undecided_size > MAX_UNDECIDED_CHARS else []

    def _decided(self, in_reasoning: bool) -> list[BareEvent]:
        """Reads what has waited."""
        text, self._undecided = "".join(self._undecided or ()), None
        self._begins = in_reasoning
        if not text:
            return []
        if in_reasoning:
            self._thought = []
        out = self._parsed(text)
        if in_reasoning:
            self._keep(out)
        return out

    def _keep(self, events: list[BareEvent]) -> None:
        """Keeps reasoning that may turn out to be the answer."""
        assert self._thought is not None
        if self._parser is not None and self._parser.closed:
            self._thought = None
            return
        for event in events:
            if type(event) is ReasoningDelta:
                self._thought.append(event.text)
                self._thought_size += len(event.text)
        if self._thought_size > MAX_UNDECIDED_CHARS:
            self._thought = None

    def _repeated(self, event: StreamEnd) -> list[BareEvent]:
        """The answer that was taken for reasoning."""
        kept, self._thought = self._thought, None
        if not kept or self._closed or self._emitter.found or self._native or event.reason in _CUT:
            return []
        return [TextStart(), TextDelta("".join(kept)), TextEnd()]

    def _report(self, proper: bool) -> None:
        if self._tell is not None and self._how != "row" and self._any_text and (proper or self._closed):
            self._tell(self._closed, self._late)

    def _begin(self) -> TextParser:
        begins = self._begins and not self._native and self._how != "text"
        self._begins = False
        return TextParser(
            self.format,
            self._declared,
            self._emitter,
            begins_in_reasoning=begins,
            calls=self._calls,
            reasoning=self._reasoning,
            whole_calls=self._bad_call == "text",
            failed=self._judge,
            late_closer=self._how == "text",
        )

    def _take(self) -> list[BareEvent]:
        out, self._emitter.out = self._emitter.out, []
        return out

    def _pause(self) -> list[BareEvent]:
        """A block of the upstream follows: the text before it ends, the answer does not."""
        return self._close_text(False, self._emitter.pause)

    def _end_answer(self, cut: bool = False) -> list[BareEvent]:
        """Ends the answer: emits everything that was held and ends the open block. ``cut``: the answer was cut off."""
        return self._close_text(cut, self._emitter.finish)

    def _close_text(self, cut: bool, finish: Callable[[Echo | None, bool], None]) -> list[BareEvent]:
        before = self._decided(False) if self._undecided else []
        if before:
            return [*before, *self._close_text(cut, finish)]
        parser, self._parser = self._parser, None
        if parser is not None:
            self._cut = cut
            try:
                parser.close(cut)
            except _Failed as failure:
                return self._fail(failure.error)
            self._cut = False
            self._closed = self._closed or parser.closed != ""
            self._late += parser.closed == "late"
            if self._thought is not None:
                self._keep(self._emitter.out)
        echo, self._echo = self._echo, None
        complete, self._text_complete = self._text_complete, True
        finish(echo, complete)
        return self._take()

    def _judge(self, reason: Malformed, trail: str, half: bool) -> bool:
        """Whether the markup is left out. Raises if the stream ends at once."""
        if self._bad_call == "text" or (self._bad_call == "incomplete" and (not half or self._cut)):
            return False
        where = f"near {excerpt(trail[:120])}" if trail.strip() else f"in the call of {self._emitter.call!r}"
        error = ToolCallParseError(
            f"Tool call parsing failed: {reason} (format {self.format.name}, {where}); "
            'set bad_call to "text" to get such calls as text'
        )
        if self._bad_call == "error":
            raise _Failed(error)
        self._broken = self._broken or error
        return self._leave_out

    def _fail(self, error: ToolCallParseError) -> list[BareEvent]:
        self._ended = True
        self._emitter.finish(complete=False)
        return [*self._take(), error.as_event()]

    def _end(self, event: StreamEnd) -> BareEvent:
        if self._broken is not None and event.reason != "cancelled":
            return self._broken.as_event()
        if self._emitter.calls and event.reason in _ENDED:
            return StreamEnd("tool_calls", event.raw_reason, event.sequence)
        return event

    def _step(self, event: StepEnd) -> list[BareEvent]:
        """Ends a model turn: the next one begins in the initial state."""
        before = self._end_answer(cut=event.reason in _CUT)
        if self._ended:
            return before
        if self._broken is not None:
            self._ended = True
            return [*before, self._broken.as_event()]
        if self._emitter.calls and event.reason in _ENDED:
            event = StepEnd(event.step, "tool_calls")
        self._emitter.calls = 0
        self._begins, self._native = self._starts, False
        return [*before, event]
