"""Writes the chunks of one candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...events import (
    Citation,
    Echo,
    Extra,
    Media,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StepEnd,
    StreamEnd,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
)
from ...json_types import JsonObject
from ...messages import MediaPart
from ...stages.steps import STEP_BREAK
from ..echo import is_native
from ..writer import Rules, StepBreak, encode
from .citations import write_citation
from .enums import named_enums
from .offsets import Offsets
from .parts import arguments_line, build_media, is_native_part, whole_base64
from .signature import FIELD, own_place, sign
from .wire import MALFORMED_CALL, write_reason

if TYPE_CHECKING:
    from .writer import GeminiWriter

_GROWING: Final = ("citationMetadata", "logprobsResult")
"""Metadata that grows with every chunk: its lists are joined."""


class CandidateWriter:
    """Calls are held until they are complete, because this wire format has arguments as objects. A call that was truncated, or
    whose arguments are not an object, is not written: the finish reason says that it was malformed, so that no client runs it."""

    def __init__(self, writer: GeminiWriter, index: int) -> None:
        self.index = index
        self.has_content = False
        self._writer = writer
        self._head = b'"candidates":[{"index":%d,"content":{"role":"model","parts":[' % index
        self._text_head = self._head + b'{"text":'
        self._ended = False
        self._text = Offsets()
        self._chars = 0
        self._base = 0
        self._call: ToolCallStart | None = None
        self._arguments: list[str] = []
        self._malformed: list[str] = []
        self._fields: JsonObject = {}
        self._citations: list[JsonObject] = []
        self._media_rest: dict[str, tuple[str, str]] = {}
        self._next: str | None = None
        self._latest = ""
        self._thought_chars = 0
        self.step_break = StepBreak() if index else writer.step_break
        self.rules: Rules = {
            TextDelta: self.text,
            ReasoningDelta: self.reasoning,
            ToolCallDelta: self.arguments,
            TextStart: self.text_start,
            TextEnd: self.text_end,
            ReasoningStart: self.reasoning_start,
            ReasoningEnd: self.reasoning_end,
            ToolCallStart: self.call_start,
            ToolCallEnd: self.call_end,
            ToolResult: self.result,
            Citation: self.citation,
            Media: self.media,
            StepEnd: self.step_break.end_step,
            Extra: lambda event: writer.extra(event, self),
            StreamEnd: self.end,
        }

    def part(self, part: bytes) -> None:
        self.has_content = True
        self._writer.write_chunk(self._head + part + b"]}}]")

    def end(self, event: StreamEnd | None, more: bytes = b"") -> None:
        """Writes the last chunk with everything that waited for it. ``more`` are fields of the whole answer."""
        if self._ended:
            return
        self._ended = True
        self._end_media()
        finish = write_reason(event.reason, event.raw_reason) if event is not None else "OTHER"
        fields = self._fields
        if self._malformed and finish != "MAX_TOKENS":
            finish = MALFORMED_CALL
            fields["finishMessage"] = f"Malformed function call: {', '.join(self._malformed)}"
        if self._citations:
            _join(fields, {"citationMetadata": {"citationSources": self._citations}})
        last = {"finishReason": finish, **fields}
        self._writer.write_chunk(self._head + b'{"text":""}]},' + encode(last)[1:] + b"]" + more)

    def end_malformed(self, message: str) -> None:
        """Writes the last chunk of an answer with an invalid call."""
        last = {"finishReason": MALFORMED_CALL, **self._fields, "finishMessage": message}
        self._writer.write_chunk(self._head + b'{"text":""}]},' + encode(last)[1:] + b"]")

    def keep(self, fields: JsonObject) -> None:
        _join(self._fields, named_enums(fields))

    # --- text

    def text_start(self, _event: TextStart) -> None:
        if self.step_break.due():
            self.text(TextDelta(STEP_BREAK))
        self._base = self._chars

    def text(self, event: TextDelta) -> None:
        self.has_content = True
        self._latest = event.text
        self._text.add(event.text)
        self._chars += len(event.text)
        self._writer.write_chunk(self._text_head + encode(event.text) + b"}]}}]")

    def text_end(self, event: TextEnd) -> None:
        if event.echo is not None and event.complete:
            self._sign(event.echo, False, self._chars - self._base)

    def reasoning_start(self, _event: ReasoningStart) -> None:
        self._thought_chars = 0

    def reasoning(self, event: ReasoningDelta) -> None:
        self.has_content = True
        self._latest = event.text
        self._thought_chars += len(event.text)
        self._writer.write_chunk(self._text_head + encode(event.text) + b',"thought":true}]}}]')

    def reasoning_end(self, event: ReasoningEnd) -> None:
        if event.echo is not None and event.complete:
            self._sign(event.echo, True, self._thought_chars)
        elif event.redacted:
            self._writer.lose(event)

    def _sign(self, echo: Echo, thought: bool, size: int) -> None:
        """Writes the signature of a block with ``size`` characters."""
        place = own_place(echo)
        if place.get("next"):
            self._next = sign(echo)
            return
        mark = b',"thought":true' if place.get("thought", thought) is True else b""
        signature = b',"%b":%b' % (FIELD.encode(), encode(sign(echo)))
        if FIELD in echo.data and "thought" not in place and place.get("offset", 0) == size - len(self._latest):
            # The signed part was written a moment ago, if it came in this read: clients return signatures where they got them.
            written = self._text_head + encode(self._latest) + mark
            if self._latest and self._writer.replace_chunk(written + b"}]}}]", written + signature + b"}]}}]"):
                return
        self.part(b'{"text":""%b%b}' % (mark, signature))

    # --- calls

    def call_start(self, event: ToolCallStart) -> None:
        self._call = event
        self._arguments.clear()
        if event.kind == "server":
            self._call = None
            if event.native is not None and is_native_part(event.native):
                self.part(encode(event.native.data))
            else:
                self._writer.lose(event)

    def arguments(self, event: ToolCallDelta) -> None:
        if self._call is not None:
            self._arguments.append(event.args)

    def call_end(self, event: ToolCallEnd) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        text = "".join(self._arguments)
        arguments = encode({"input": text}) if call.kind == "custom" else arguments_line(text)
        if arguments is None or not event.complete:
            self._malformed.append(call.name)
            self._writer.lose(call)
            return
        signature = b',"%b":%b' % (FIELD.encode(), encode(sign(event.echo))) if event.echo is not None else b""
        head = encode({"id": call.call_id, "name": call.name})[:-1]
        self.part(b'{"functionCall":%b,"args":%b}%b}' % (head, arguments, signature))

    def result(self, event: ToolResult) -> None:
        if event.native is not None and is_native_part(event.native):
            self.part(encode(event.native.data))
        else:
            self._writer.lose(event)

    # --- media and other parts

    def citation(self, event: Citation) -> None:
        entry = write_citation(event, self._text, self._base)
        if entry is not None:
            self._citations.append(entry)
        elif not is_native(event.native, self._writer.dialect):
            self._writer.lose(event)

    def media(self, event: Media) -> None:
        """Pieces of one medium are split where its base64 may be split; the remainder waits for the next piece."""
        data = event.data
        if event.id and data:
            data = self._media_rest.pop(event.id, ("", ""))[1] + data
            whole = len(data) // 4 * 4
            self._media_rest[event.id] = (event.mime, data[whole:])
            data = data[:whole]
        if (event.data and not data) or ((data or event.url) and self._media(event.mime, data, event.url)):
            return
        self._writer.lose(event)

    def _media(self, mime: str, data: str, url: str = "") -> bool:
        """Whether the data was written. Data that is not base64 is not: the client would discard the whole answer."""
        decodable = whole_base64(data)
        if decodable is None:
            return False
        part = build_media(MediaPart(mime, decodable, url))
        if self._next is not None:
            part[FIELD], self._next = self._next, None
        self.part(encode(part))
        return True

    def _end_media(self) -> None:
        for mime, rest in self._media_rest.values():
            if rest:
                self._media(mime, rest)


def _join(kept: JsonObject, fields: JsonObject) -> None:
    """Merges the metadata of a candidate: the last value wins, except for lists that grow."""
    for name, value in fields.items():
        before = kept.get(name)
        if name not in _GROWING or not isinstance(value, dict):
            kept[name] = value
            continue
        if not isinstance(before, dict):
            before = kept[name] = {}
        for key, inner in value.items():
            if isinstance(inner, list) and isinstance(before.get(key), list):
                before[key].extend(inner)
            else:
                before[key] = list(inner) if isinstance(inner, list) else inner
