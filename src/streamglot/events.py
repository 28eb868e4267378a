"""The event vocabulary: everything that a stream can contain.

A stream is ``StreamStart (block | loose)* (StreamEnd | StreamError)``. A block is a start, deltas and an end. One block is open
at a time, so events carry no index: their order is enough. ``grammar.py`` has this rule as a table.

An answer of several model turns (a tool loop) has a ``StepEnd`` after each turn except the last. A call that the loop itself runs
has the kind "server", so that no client runs it again, and its ``ToolResult`` follows it.

Every event is a frozen struct tagged by ``type``; ``encode`` and ``decode`` convert one to a line of JSON and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from .json_types import JsonObject

StopReason: TypeAlias = Literal[
    "end", "stop_sequence", "length", "tool_calls", "content_filter", "refusal", "pause", "cancelled", "other"
]
CallKind: TypeAlias = Literal["function", "custom", "server"]
ErrorOrigin: TypeAlias = Literal["upstream", "gateway", "client", "policy"]


class Echo(Struct, frozen=True, omit_defaults=True):
    """Opaque state of a provider (a signature, encrypted reasoning, a native block) in ``data``, which is returned to this ``provider``, and to no
    other."""

    provider: str
    data: JsonObject


class _Event(Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """The base of all events; only its subclasses are events."""


class StreamStart(_Event, frozen=True, tag="stream_start"):
    """The first event. ``id``, ``model`` and ``created`` (seconds since 1970) are those of the provider; empty or 0 if it sent none."""

    id: str = ""
    model: str = ""
    created: int = 0


class TextStart(_Event, frozen=True, tag="text_start"):
    """Visible text; ``refusal`` if the provider marks it as a refusal rather than an answer."""

    refusal: bool = False


class TextDelta(_Event, frozen=True, gc=False, tag="text_delta"):
    """A piece of the visible ``text``."""

    text: str


class TextEnd(_Event, frozen=True, tag="text_end"):
    """``complete`` is False if the stream broke off inside the text. ``echo`` is state of the block for its provider."""

    echo: Echo | None = None
    complete: bool = True


class ReasoningStart(_Event, frozen=True, tag="reasoning_start"):
    """The model's reasoning; ``summary`` if the provider only shows a summary."""

    summary: bool = False


class ReasoningDelta(_Event, frozen=True, gc=False, tag="reasoning_delta"):
    """A piece of the ``text`` of the reasoning."""

    text: str


class ReasoningEnd(_Event, frozen=True, tag="reasoning_end"):
    """``redacted`` if the provider hid the text and sent opaque state instead. ``complete`` is False if the stream broke off inside the
    reasoning. ``echo`` is that state, such as a signature."""

    echo: Echo | None = None
    redacted: bool = False
    complete: bool = True


class ToolCallStart(_Event, frozen=True, tag="tool_call_start"):
    """A call of the tool ``name``. ``call_id`` is what its result refers to. The provider or our own tool loop runs a call of the ``kind``
    "server", never the client. ``native`` is the form of the call in the provider's own dialect, for the writer of that dialect."""

    call_id: str
    name: str
    kind: CallKind = "function"
    native: Echo | None = None


class ToolCallDelta(_Event, frozen=True, gc=False, tag="tool_call_delta"):
    """A piece of the arguments: ``args`` is JSON text, or free text for a custom tool."""

    args: str


class ToolCallEnd(_Event, frozen=True, tag="tool_call_end"):
    """``complete`` is False if the stream broke off inside the arguments, or they are not JSON: such a call is never run. ``echo`` is state
    of the call for its provider."""

    echo: Echo | None = None
    complete: bool = True


class ToolResult(_Event, frozen=True, tag="tool_result"):
    """The result of a tool that our loop, or the provider itself, ran: ``content`` for the call ``call_id``. ``is_error`` if the tool failed.
    ``native`` is the form of the result in the provider's own dialect."""

    call_id: str
    content: str
    is_error: bool = False
    native: Echo | None = None


class Citation(_Event, frozen=True, tag="citation"):
    """A source for the text of the open block: its ``url`` and ``title``, and the ``cited_text`` in it. ``start`` and ``end`` are offsets into
    the text of the block, if known. ``native`` is the form of the citation in the provider's own dialect."""

    url: str = ""
    title: str = ""
    cited_text: str = ""
    start: int | None = None
    end: int | None = None
    native: Echo | None = None


class Media(_Event, frozen=True, tag="media"):
    """An image, audio or file of the answer, of the type ``mime``, as ``data`` or at a ``url``. Pieces of one medium share an ``id``, and their
    base64 ``data`` is joined, like the ``transcript`` of audio."""

    mime: str
    data: str = ""
    url: str = ""
    id: str = ""
    transcript: str = ""


class StepEnd(_Event, frozen=True, gc=False, tag="step_end"):
    """The end of one model turn of a tool loop: ``step`` counts from 1, ``reason`` says why it ended. The results of its calls precede or
    directly follow it."""

    step: int
    reason: StopReason = "tool_calls"


class Usage(_Event, frozen=True, tag="usage"):
    """Running totals of one model turn: the last event before its ``StepEnd`` counts, and the turns of an answer are added.
    ``input_tokens`` include ``cached_tokens`` and ``cache_write_tokens``, ``output_tokens`` include ``reasoning_tokens``. None is unknown.
    ``raw`` is the provider's own object."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None
    raw: JsonObject | None = None

    def plus(self, other: Usage) -> Usage:
        """The usage of two model turns together. ``raw`` is None, because it describes one of them only."""
        if self == _NO_USAGE:
            return other
        if other == _NO_USAGE:
            return self
        return Usage(
            _sum(self.input_tokens, other.input_tokens),
            _sum(self.output_tokens, other.output_tokens),
            _sum(self.cached_tokens, other.cached_tokens),
            _sum(self.cache_write_tokens, other.cache_write_tokens),
            _sum(self.reasoning_tokens, other.reasoning_tokens),
        )


_NO_USAGE: Final = Usage()


def _sum(first: int | None, second: int | None) -> int | None:
    """The sum of two counts; None is an unknown count."""
    return second if first is None else first if second is None else first + second


class KeepAlive(_Event, frozen=True, gc=False, tag="keep_alive"):
    """A sign of life without content. ``comment`` is its text."""

    comment: str = ""


class Extra(_Event, frozen=True, tag="extra"):
    """A piece that only one ``dialect`` can express, as its ``data``. Its own writer writes it, the others count it as lost.
    ``provider`` is set for state of the conversation that this provider keeps: it becomes the ``echo`` of the answer's message."""

    dialect: str
    data: JsonObject
    provider: str = ""


class StreamEnd(_Event, frozen=True, tag="stream_end"):
    """The provider ended the answer. ``reason`` is the same word for all providers, ``raw_reason`` its own, None if it sent none.
    ``sequence`` is the stop sequence that ended the answer."""

    reason: StopReason = "end"
    raw_reason: str | None = None
    sequence: str | None = None


class StreamError(_Event, frozen=True, tag="stream_error"):
    """The stream broke, or the provider reported an error: everything before it is a partial answer. ``code`` and ``message`` say what
    happened, ``origin`` where, ``status`` is the HTTP status for it, and ``retryable`` whether the same request may succeed later. ``detail`` is
    the provider's own error object. ``Response.raise_for_error()`` raises it as an exception."""

    code: str
    message: str
    origin: ErrorOrigin = "upstream"
    retryable: bool = False
    status: int = 502
    detail: JsonObject | None = None


BareEvent: TypeAlias = (
    StreamStart
    | TextStart
    | TextDelta
    | TextEnd
    | ReasoningStart
    | ReasoningDelta
    | ReasoningEnd
    | ToolCallStart
    | ToolCallDelta
    | ToolCallEnd
    | ToolResult
    | Citation
    | Media
    | StepEnd
    | Usage
    | KeepAlive
    | Extra
    | StreamEnd
    | StreamError
)


class Choice(_Event, frozen=True, tag="choice"):
    """An ``event`` of choice ``index`` > 0, if the client requested several answers. Choice 0 is not wrapped, and its StreamEnd, the
    last event of all, ends the stream; the StreamEnd of another choice ends that choice only."""

    index: int
    event: BareEvent


Event: TypeAlias = BareEvent | Choice

EVENT_TYPES: tuple[type[_Event], ...] = (
    StreamStart,
    TextStart,
    TextDelta,
    TextEnd,
    ReasoningStart,
    ReasoningDelta,
    ReasoningEnd,
    ToolCallStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolResult,
    Citation,
    Media,
    StepEnd,
    Usage,
    KeepAlive,
    Extra,
    StreamEnd,
    StreamError,
    Choice,
)

EVENT_KINDS: Final = frozenset(EVENT_TYPES)


def as_events(given: Iterable[Event] | Event) -> Iterable[Event]:
    """What a box was fed, as an iterable: the events that the box before it gave, or one event. Raises ``TypeError`` for anything
    else. A box checks the events themselves where it looks at them anyway, by ``not_an_event``."""
    if isinstance(given, _Event):
        return (given,)
    if isinstance(given, (str, bytes, bytearray, memoryview, Mapping)) or not isinstance(given, Iterable):
        raise not_an_event(given)
    return given


def as_list(given: Iterable[Event] | Event) -> list[Event]:
    """The same as a list, with the kinds of the events checked."""
    events = given if type(given) is list else list(as_events(given))
    if not EVENT_KINDS.issuperset(map(type, events)):
        raise not_an_event(next(event for event in events if type(event) not in EVENT_KINDS))
    return events


def not_an_event(given: object) -> TypeError:
    """The error about something that is not an event."""
    what = type(given).__name__
    if isinstance(given, (bytes, bytearray, memoryview)):
        hint = "give bytes to a reader first: box.feed(reader.feed(data))"
    elif isinstance(given, (list, tuple)):
        hint = "feed the list that the box before gave as it is, not inside another list"
    elif isinstance(given, str):
        hint = "text becomes an event as TextDelta(text), between TextStart() and TextEnd()"
    else:
        hint = "feed what the box before gave, or one event"
    return TypeError(f"a box takes events, not {what}; {hint}")


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """One event as one line of JSON, without the line break."""
    return _encoder.encode(event)


def decode(line: bytes | str) -> Event:
    """The event of one line of JSON."""
    return _decoder.decode(line)
