"""The base of all readers: bytes to frames, the detection of bodies that are not streams, and errors as the last event.

A dialect's reader interprets a frame (``read``), the end of the input (``eof``) and a complete JSON body (``whole``). It emits
events through ``self.emit`` and opens blocks through ``self.blocks``. ``ChoicesReader`` is the base for frames that are chunks
with a list of choices, in streams that end with [DONE].
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar, Final, TypedDict, TypeVar, Unpack

import msgspec
from msgspec import structs

from ...errors import StreamglotError, ToolCallParseError, UpstreamProtocolError, UpstreamTruncated, excerpt
from ...events import BareEvent, Choice, Event, Extra, KeepAlive, Media, StopReason, StreamEnd, StreamStart, ToolResult, Usage
from ...framing import Frame, Framing, JsonArray, Sse
from ...json_types import JsonObject, JsonValue
from ...limits import DEFAULT_LIMITS, Limits
from . import upstream_errors
from .blocks import Blocks, Tally
from .lenient import clean, fit, loads
from .state import maker

T = TypeVar("T")
_SPACE = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_NO_ID = re.compile(r"[^A-Za-z0-9_-]")
_STOPPED: Final[frozenset[StopReason]] = frozenset(("length", "content_filter", "refusal", "cancelled"))
"""Stop reasons after which the last call may be incomplete."""
_COUNTED: Final = frozenset((Extra, ToolResult, Media))


class ReaderOptions(TypedDict, total=False):
    """The arguments of all readers."""

    provider: str | None
    limits: Limits
    call_prefix: str


class Reader:
    """A box from bytes to events: ``feed(bytes)`` and ``close()`` give lists of events. ``limits`` are those of the stream.
    ``provider`` says who answers, so that opaque state returns to its maker. ``call_prefix`` begins the
    ids of calls that have none from the upstream; it must be unique in the conversation. Without it the prefix comes from the id
    of the answer, which some upstreams repeat."""

    dialect: ClassVar[str]
    framing: ClassVar[type[Framing]] = Sse
    started = False
    _framing: Framing | None = None
    _whole_body = False
    _skipped = False
    _bytes = 0
    _done = False
    _closing = False
    _lone_surrogates = False
    unread: Counter[str] | None = None
    """How often a field with text came that the dialect does not know. No event has this text."""
    _stray: bytes | None = None

    def __init__(self, *, provider: str | None = None, limits: Limits = DEFAULT_LIMITS, call_prefix: str = "") -> None:
        self.provider = maker(self.dialect, provider)
        self.limits = limits
        self.comments = True
        """Whether keep-alives have the text of the comment that they come from."""
        self.tally = Tally(limits)
        self._given_prefix = call_prefix
        self._out: list[Event] = []
        self._blocks: dict[int, Blocks] = {}
        self._body: list[bytes] = []
        self._call_prefix = call_prefix or "call"

    # --- the box

    @property
    def call_prefix(self) -> str:
        """The beginning of the ids of calls that have none, as far as it is known."""
        return self._call_prefix

    def feed(self, chunk: bytes) -> list[Event]:
        """The events of these bytes. They may be cut anywhere. Raises ``TypeError`` for anything but bytes."""
        if type(chunk) is not bytes:
            chunk = as_bytes(chunk)
        if self._done:
            return []
        try:
            room = self.limits.response_bytes - self._bytes
            size = len(chunk)
            self._bytes += size
            if size > room:
                chunk = chunk[:room]
            framing = self._framing
            if framing is None:
                self._sniff(chunk)
            else:
                self._read_all(framing.feed(chunk))
            if size > room and not self._done:
                raise self.limits.exceeded("response_bytes")
        except StreamglotError as error:
            self._fail(error)
        out, self._out = self._out, []
        return out

    def close(self) -> list[Event]:
        """The last events. A stream that has not reached its own end ends with a ``StreamError``."""
        if self._done:
            return []
        self._closing = True
        try:
            if self._framing is not None:
                self._read_all(self._framing.close())
            elif self._whole_body:
                self._read_body(b"".join(self._body).rstrip(_SPACE))
            if not self._done:
                self._eof()
        except StreamglotError as error:
            self._fail(error)
        out, self._out = self._out, []
        return out

    def stop(self) -> list[Event]:
        """Ends the stream early: open blocks are closed as they are, and the stream ends as cancelled."""
        if self._done:
            return []
        self.start()
        for blocks in self._blocks.values():
            blocks.abort()
        for index in sorted(self._blocks, reverse=True):
            if index:
                self.emit(StreamEnd("cancelled"), index)
        self.end("cancelled")
        out, self._out = self._out, []
        return out

    def feed_frames(self, frames: list[Frame]) -> list[Event]:
        """The events of frames that were decoded elsewhere: a stream of this dialect inside another one."""
        if self._done:
            return []
        try:
            self._bytes += sum(len(frame.data) for frame in frames)
            self._read_all(frames)
        except StreamglotError as error:
            self._fail(error)
        out, self._out = self._out, []
        return out

    def read_whole(self, body: JsonObject) -> list[Event]:
        """The events of a complete, decoded response object."""
        try:
            self._read_value(body)
        except StreamglotError as error:
            self._fail(error)
        out, self._out = self._out, []
        return out

    # --- methods that a dialect implements

    def read(self, frame: Frame) -> None:
        """Interprets a frame."""
        raise NotImplementedError

    def eof(self) -> None:
        """Interprets the end of the input: calls ``end`` if the dialect's own end has arrived, or returns, which means
        truncation."""

    def whole(self, body: JsonObject) -> None:
        """Interprets a complete response object instead of a stream."""
        raise UpstreamProtocolError(f"the upstream sent a JSON body instead of a stream: {excerpt(msgspec.json.encode(body))}")

    def whole_at_once(self, body: bytes) -> bool:  # noqa: ARG002  # for subclasses
        """The same from bytes, with the decoder of the dialect's types. Returns False if the body does not fit them."""
        return False

    def is_chunk(self, value: JsonObject) -> bool:  # noqa: ARG002  # for subclasses
        """Whether this is an object of a stream, and not a complete response. Saved streams are arrays or lines of such objects."""
        return False

    def framing_for(self, first: bytes) -> Framing | None:
        """The framing of a body that begins with this byte; None for a single JSON value."""
        return None if first in (b"{", b"[") else self.framing(self.limits)

    # --- methods that a dialect calls

    @property
    def is_whole(self) -> bool:
        """Whether this is a whole response, and no stream."""
        return self._framing is None

    def start(self, id: str = "", model: str = "", created: int = 0) -> None:
        """Starts the stream, once."""
        if not self.started:
            self.started = True
            self.name_calls(_NO_ID.sub("", id)[-24:])
            self.emit(StreamStart(id, model, created))

    def name_calls(self, answer: str) -> None:
        """Sets a prefix for the call ids of this answer, unless ``call_prefix`` was given."""
        if answer and not self._given_prefix:
            self._call_prefix = f"call_{answer}"

    def emit(self, event: BareEvent, choice: int = 0, media: int = 0) -> None:
        """Emits an event that does not belong to a block. ``media``: so many of its characters are a medium."""
        if type(event) in _COUNTED:
            self.tally.count(event, media)
        self.emit_counted(event, choice)

    def emit_counted(self, event: BareEvent, choice: int = 0) -> None:
        """The same for an event whose size was counted before: events of blocks, and those that had to wait."""
        if self._lone_surrogates:
            event = clean_event(event)
        self._out.append(Choice(choice, event) if choice else event)

    def blocks(self, choice: int = 0) -> Blocks:
        """The blocks of this choice. Calling it starts the stream."""
        blocks = self._blocks.get(choice)
        if blocks is None:
            if choice >= self.limits.choices:
                raise self.limits.exceeded("choices")
            self.start()
            if choice == 0:
                blocks = Blocks(self.emit_counted, self.limits, self._call_prefix, self.tally)
            else:
                prefix = f"{self._call_prefix}_{choice}"
                blocks = Blocks(lambda event: self.emit_counted(event, choice), self.limits, prefix, self.tally)
            blocks.lone_surrogates = self._lone_surrogates
            self._blocks[choice] = blocks
        return blocks

    def decode(self, decoder: msgspec.json.Decoder[T], data: bytes) -> T:
        """The payload as the decoder's type, without what violates that type."""
        try:
            return decoder.decode(data)
        except (ValueError, RecursionError):
            pass
        return self._decode_other(decoder, data)

    def _decode_other(self, decoder: msgspec.json.Decoder[T], data: bytes) -> T:
        """The same for a payload that this decoder refused."""
        try:
            value, lone = loads(data)
        except UpstreamProtocolError:
            if self._closing:
                raise UpstreamTruncated(f"the stream ended inside a frame: {excerpt(data)}") from None
            raise
        if lone and not self._lone_surrogates:
            self._lone_surrogates = True
            for blocks in self._blocks.values():
                blocks.lone_surrogates = True
        fitted: T = fit(decoder.type, value)
        if fitted is None:
            raise UpstreamProtocolError(f"a frame is not an object of the dialect {self.dialect}: {excerpt(data)}")
        return fitted

    def end(self, reason: StopReason, raw_reason: str | None = None, sequence: str | None = None) -> None:
        """Ends the stream properly. If nothing stopped the model, a call with invalid arguments is an error: the stop reason
        alone would present it as one to run."""
        unreadable = [name for blocks in self._blocks.values() for name in blocks.unreadable]
        if unreadable and reason not in _STOPPED:
            raise ToolCallParseError(
                f"the arguments of the tool call {excerpt(unreadable[0])} are not valid JSON, so the call was not passed on as one "
                "to run. Ask the model again"
            )
        self._done = True
        self.emit(StreamEnd(reason, raw_reason, sequence))
        self._blocks = {}  # they refer back to the reader: a cycle that only the garbage collector could free

    def need_reason(self, body: JsonObject, name: str) -> None:
        """Ends a whole answer with an error if its reason for the end is null. A missing one is a habit of some servers."""
        if body.get(name, "") is None:
            raise UpstreamTruncated(f"the {name} of the answer is null: the model had not finished")

    # --- internals

    def _sniff(self, chunk: bytes) -> None:
        """Finds the framing by the first byte that is not white space. Some servers send white space while the model works, for
        minutes, so it is not stored."""
        if self._whole_body:
            self._body.append(chunk)
            return
        held = b"".join((*self._body, chunk))
        self._body.clear()
        if not self._skipped and _BOM.startswith(held):
            self._body.append(held)
            return
        rest = (held if self._skipped else held.removeprefix(_BOM)).lstrip(_SPACE)
        self._skipped = True
        if not rest:
            return
        self._framing = self.framing_for(rest[:1])
        if self._framing is None:
            self._whole_body = True
            self._body.append(rest)
        else:
            self._read_all(self._framing.feed(rest))

    def _read_all(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.kind == "data":
                if frame.data.strip():
                    self.read(frame)
                    if self._done:
                        return
            elif frame.kind == "comment":
                self.emit(KeepAlive(frame.data.decode("utf-8", "replace") if self.comments else ""))
            elif frame.kind == "exception":
                raise exception(frame)
            else:
                self._read_stray(frame.data)
        if self._framing is not None and self._framing.error is not None:
            raise self._framing.error

    def _read_stray(self, line: bytes) -> None:
        brace = line.find(b"{")
        if brace >= 0:
            try:
                value, _ = loads(line[brace:])
            except UpstreamProtocolError:
                value = None
            if isinstance(value, dict) and (line[:brace].strip() == b"error:" or upstream_errors.is_error(value.get("error"))):
                raise upstream_errors.refusal(value)
        self._stray = self._stray or line

    def _read_body(self, body: bytes) -> None:
        if self.whole_at_once(body):
            return
        try:
            value, lone = loads(body)
        except UpstreamProtocolError:
            if self._read_saved(body):
                return
            raise UpstreamTruncated(f"the upstream sent an incomplete JSON body: {excerpt(body)}") from None
        if not (isinstance(value, list) and self._read_saved(body)):
            self._read_value(clean(value) if lone else value)

    def _read_saved(self, body: bytes) -> bool:
        """Reads a saved stream: a JSON array of chunks, or one chunk after another. Returns False if the body is something else."""
        elements = JsonArray(self.limits)
        frames = elements.feed(body) + elements.close()
        try:
            first = loads(frames[0].data)[0] if frames else None
        except UpstreamProtocolError:
            return False
        if not isinstance(first, dict) or upstream_errors.is_error(first.get("error")) or not self.is_chunk(first):
            return False
        self._framing = elements
        self._read_all(frames)
        return True

    def _read_value(self, value: object) -> None:
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, dict) and upstream_errors.is_error(value.get("error")):
            raise upstream_errors.refusal(value)
        if not isinstance(value, dict):
            raise UpstreamProtocolError(f"the upstream sent a JSON body instead of a stream: {excerpt(value)}")
        self.whole(value)

    def _eof(self) -> None:
        if not self._bytes:
            raise UpstreamTruncated("the upstream sent a success status and an empty body", code="upstream_empty")
        self.eof()
        if not self._done:
            sent = f"; it sent {excerpt(self._stray)}" if self._stray else ""
            raise UpstreamTruncated(f"the stream ended without the end that the dialect {self.dialect} requires{sent}")

    def _fail(self, error: StreamglotError) -> None:
        self._done = True
        for blocks in self._blocks.values():
            blocks.abort()
        self._blocks = {}
        event = error.as_event()
        try:
            self._out.append(clean_event(event))
        except UpstreamProtocolError:  # its detail is nested too deep
            self._out.append(clean_event(structs.replace(event, detail=None)))


def as_bytes(given: object) -> bytes:
    """The bytes that a reader was fed."""
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    if isinstance(given, str):
        hint = "pass the body as it came, undecoded, or text.encode()"
    elif isinstance(given, Iterable):
        hint = "feed the chunks one by one, or pass them to streamglot.read"
    else:
        hint = "pass the bytes of one network read"
    raise TypeError(f"a reader takes bytes, not {type(given).__name__}; {hint}")


def exception(frame: Frame) -> StreamglotError:
    """The error in a frame of the kind "exception"; its name determines the status."""
    try:
        body, _ = loads(frame.data)
    except UpstreamProtocolError:
        body = frame.data.decode("utf-8", "replace")
    fields = body if isinstance(body, dict) else {"message": str(body or frame.event)}
    return upstream_errors.refusal({"type": frame.event, **fields})


def clean_event(event: BareEvent) -> BareEvent:
    """The event without lone surrogates, which cannot be encoded."""
    kind = type(event)
    return kind(**{name: _clean_field(getattr(event, name)) for name in kind.__struct_fields__})


def _clean_field(value: object) -> JsonValue:
    if isinstance(value, msgspec.Struct):
        return type(value)(**{name: clean(getattr(value, name)) for name in value.__struct_fields__})
    return clean(value)


class ChoicesReader(Reader):
    """``decoder`` is the decoder of a chunk. A subclass implements ``read_chunk`` and ``finish_stream``."""

    decoder: msgspec.json.Decoder[Any]  # Any: each dialect has its own type of chunk

    def __init__(self, **more: Unpack[ReaderOptions]) -> None:
        super().__init__(**more)
        self._finish: dict[int, str] = {}
        self._sequences: dict[int, str] = {}
        self._usage: Usage | None = None
        self._emitted: JsonObject = {}

    def read_chunk(self, chunk: Any) -> None:  # Any: as for ``decoder``
        """Interprets one chunk."""

    def look_again(self, data: bytes) -> None:
        """Counts the texts in a chunk that the decoder skipped. It decodes the chunk again."""

    def finish_stream(self) -> None:
        """Ends the stream after [DONE], which is an end even without a finish reason, or after the end of all choices."""

    def read(self, frame: Frame) -> None:
        data = frame.data
        if data[:1] != b"{" and data.strip(b' \t"') == b"[DONE]":
            self.finish_stream()
            return
        chunk = self.decode(self.decoder, data)
        self.read_chunk(chunk)
        if chunk.error is not None and upstream_errors.is_error(chunk.error):
            raise upstream_errors.refusal(chunk.error)
        if chunk.object == "error" or frame.event == "error":
            raise upstream_errors.refusal(loads(data)[0])

    def is_chunk(self, value: JsonObject) -> bool:
        kind, choices = value.get("object"), value.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        if isinstance(kind, str) and kind.endswith(".chunk"):
            return True
        return isinstance(first, dict) and "message" not in first and ("delta" in first or not first.get("finish_reason"))

    def eof(self) -> None:
        if self._finish and all(index in self._finish for index in self._blocks):
            self.finish_stream()

    def whole(self, body: JsonObject) -> None:
        chunk = fit(type(self).decoder.type, body)
        if not chunk.choices:
            raise UpstreamProtocolError(f"the upstream sent a JSON body without choices instead of a stream: {excerpt(body)}")
        self.read_chunk(chunk)
        self.look_again(msgspec.json.encode(body))
        for choice in body["choices"]:
            if isinstance(choice, dict):
                self.need_reason(choice, "finish_reason")
        self.finish_stream()
