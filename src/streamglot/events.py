"""The event vocabulary: everything that a stream can contain.

A stream is ``StreamStart (block | loose)* (StreamEnd | StreamError)``. A block is a start, deltas and an end. One block is open
at a time, so events carry no index: their order is enough. ``grammar.py`` has this rule as a table.

An answer of several model turns (a tool loop) has a ``StepEnd`` after each turn except the last. A call that the loop itself runs
has the kind "server", so that no client runs it again, and its ``ToolResult`` follows it.

Every event is a frozen struct tagged by ``type``; ``encode`` and ``decode`` convert one to a line of JSON and back.
"""

from __future__ import annotations

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
    """Opaque state of a provider (a signature, encrypted reasoning, a native block) that is returned to it, and to no other."""

    provider: str
    data: JsonObject


class _Event(Struct, frozen=True, omit_defaults=True, tag_field="type"):
    """The base of all events; only its subclasses are events."""


class StreamStart(_Event, frozen=True, tag="stream_start"):
    id: str = ""
    model: str = ""
    created: int = 0


class TextStart(_Event, frozen=True, tag="text_start"):
    """Visible text; ``refusal`` if the provider marks it as a refusal rather than an answer."""

    refusal: bool = False


class TextDelta(_Event, frozen=True, gc=False, tag="text_delta"):
    text: str


class TextEnd(_Event, frozen=True, tag="text_end"):
    """``complete`` is False if the stream broke off inside the text."""

    echo: Echo | None = None
    complete: bool = True


class ReasoningStart(_Event, frozen=True, tag="reasoning_start"):
    """The model's reasoning; ``summary`` if the provider only shows a summary."""

    summary: bool = False


class ReasoningDelta(_Event, frozen=True, gc=False, tag="reasoning_delta"):
    text: str


class ReasoningEnd(_Event, frozen=True, tag="reasoning_end"):
    """``redacted`` if the provider hid the text and sent opaque state instead. ``complete`` is False if the stream broke off
    inside the reasoning."""

    echo: Echo | None = None
    redacted: bool = False
    complete: bool = True


class ToolCallStart(_Event, frozen=True, tag="tool_call_start"):
    """A tool call. The provider or our own tool loop runs a call of the kind "server", never the client. ``native`` is the form
    of the call in the provider's own dialect, for the writer of that dialect."""

    call_id: str
    name: str
    kind: CallKind = "function"
    native: Echo | None = None


class ToolCallDelta(_Event, frozen=True, gc=False, tag="tool_call_delta"):
    """A piece of the arguments: JSON text, or free text for a custom tool."""

    args: str


class ToolCallEnd(_Event, frozen=True, tag="tool_call_end"):
    """``complete`` is False if the stream broke off inside the arguments, or they are not JSON: such a call is never run."""

    echo: Echo | None = None
    complete: bool = True


class ToolResult(_Event, frozen=True, tag="tool_result"):
    """The result of a tool that our loop, or the provider itself, ran."""

    call_id: str
    content: str
    is_error: bool = False
    native: Echo | None = None


class Citation(_Event, frozen=True, tag="citation"):
    """A source for the text of the open block. ``start`` and ``end`` are offsets into that text, if known."""

    url: str = ""
    title: str = ""
    cited_text: str = ""
    start: int | None = None
    end: int | None = None
    native: Echo | None = None


class Media(_Event, frozen=True, tag="media"):
    """An image, audio or file of the answer. Pieces of one medium share an ``id``, and their base64 ``data`` is joined."""

    mime: str
    data: str = ""
    url: str = ""
    id: str = ""
    transcript: str = ""


class StepEnd(_Event, frozen=True, gc=False, tag="step_end"):
    """The end of one model turn of a tool loop. The results of its calls precede or directly follow it."""

    step: int
    reason: StopReason = "tool_calls"


class Usage(_Event, frozen=True, tag="usage"):
    """Running totals of one model turn: the last event before its ``StepEnd`` counts, and the turns of an answer are added.
    Input includes cached tokens, output includes reasoning."""

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
    comment: str = ""


class Extra(_Event, frozen=True, tag="extra"):
    """A piece that only one dialect can express. Its own writer writes it, the others count it as lost. ``provider`` is set for
    state of the conversation that this provider keeps: it becomes the ``echo`` of the answer's message."""

    dialect: str
    data: JsonObject
    provider: str = ""


class StreamEnd(_Event, frozen=True, tag="stream_end"):
    """The provider ended the answer. ``raw_reason`` is its own word, None if it sent none."""

    reason: StopReason = "end"
    raw_reason: str | None = None
    sequence: str | None = None


class StreamError(_Event, frozen=True, tag="stream_error"):
    """The stream broke, or the provider reported an error: everything before it is a partial answer."""

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
    """An event of choice ``index`` > 0, if the client requested several answers. Choice 0 is not wrapped, and its StreamEnd, the
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

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """One event as one line of JSON, without the line break."""
    return _encoder.encode(event)


def decode(line: bytes | str) -> Event:
    """The event of one line of JSON."""
    return _decoder.decode(line)
