"""Writes GenerateContentResponse chunks, as server-sent events or as a streamed JSON array, and the whole response object.

The official Python client fails on a comment, on ``data:`` without a space, and on U+2028, U+2029 or U+0085 inside a line: none
of them is ever written. Its chat sessions discard an answer with a chunk without parts, so an empty chunk has an empty text.
"""

from __future__ import annotations

from typing import Final, Unpack

from ...errors import ToolCallParseError
from ...events import (
    Choice,
    Citation,
    Echo,
    Extra,
    KeepAlive,
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
from ...json_types import JsonObject
from ...messages import MediaPart, Part, Response, ResponseChoice, TextPart, ToolResultPart
from ...stages.steps import STEP_BREAK, with_step_breaks
from ..common.state import is_native
from ..common.writer import Rules, StepBreak, Writer, WriterOptions, encode
from .parts import (
    DIALECT,
    SIGNATURE,
    Offsets,
    PartBuilder,
    arguments_line,
    build_media,
    is_native_part,
    own_place,
    sign,
    whole_base64,
    write_citation,
)
from .wire import MALFORMED_CALL, error_body, named_enums, write_reason, write_usage

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
        signature = b',"%b":%b' % (SIGNATURE.encode(), encode(sign(echo)))
        if SIGNATURE in echo.data and "thought" not in place and place.get("offset", 0) == size - len(self._latest):
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
        signature = b',"%b":%b' % (SIGNATURE.encode(), encode(sign(event.echo))) if event.echo is not None else b""
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
            part[SIGNATURE], self._next = self._next, None
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


# --- the stream

_LINE_ENDS: Final = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


class GeminiWriter(Writer):
    """``array``: write the JSON array for clients that do not request server-sent events."""

    dialect = "gemini"
    folded = {
        "TextStart": "not written: the first part starts it; a refusal is text, and its end SAFETY",
        "TextEnd": "its echo is the thoughtSignature of an empty part",
        "ReasoningStart": "not written: the first part starts it",
        "ReasoningEnd": "its echo is the thoughtSignature of an empty part",
        "ToolCallStart": "held until the call is complete",
        "ToolCallDelta": "held until the call is complete",
        "Citation": "citationSources in the last chunk",
        "KeepAlive": "a part with an empty text",
        "StepEnd": "an empty line between the texts of two steps",
        "Usage": "usageMetadata in the last chunk",
    }

    def __init__(self, *, array: bool = False, **more: Unpack[WriterOptions]) -> None:
        self._array = array
        self._candidates: dict[int, CandidateWriter] = {}
        self._feedback: JsonObject | None = None
        self._before = b"[{" if array else b"data: {"
        self._after = b"}" if array else b"}\n\n"
        super().__init__(**more)

    def rules(self) -> Rules:
        first = self._candidates[0] = CandidateWriter(self, 0)
        return {
            **first.rules,
            **super().rules(),
            Choice: self._choice,
            KeepAlive: self._keep_alive,
        }

    def write_start(self) -> None:
        about = {name: value for name, value in (("modelVersion", self.model), ("responseId", self.id)) if value}
        self._after = (b"," if about else b"") + encode(about)[1:] + self._after[1:]

    def write_chunk(self, inside: bytes) -> None:
        """Writes one chunk; ``inside`` are the fields before the model and the id."""
        self.pieces.append(self._before)
        self.pieces.append(self._chunk(inside))
        if self._array:
            self._before = b",\r\n{"

    def replace_chunk(self, inside: bytes, other: bytes) -> bool:
        """Replaces the latest chunk, if it is this one and has not left yet."""
        if not self.pieces or self.pieces[-1] != self._chunk(inside):
            return False
        self.pieces[-1] = self._chunk(other)
        return True

    def _chunk(self, inside: bytes) -> bytes:
        data = inside + self._after
        if b"\xe2\x80" in data or b"\xc2\x85" in data:
            for raw, escaped in _LINE_ENDS:
                data = data.replace(raw, escaped)
        return data

    def write_end(self, event: StreamEnd) -> None:
        for index, candidate in self._candidates.items():
            if index:
                candidate.end(None)
        fields = b""
        first = self._candidates[0]
        if self._feedback is not None:
            fields = b',"promptFeedback":' + encode(self._feedback)
        usage = write_usage(self.usage, self.strict)
        if usage is not None:
            fields += b',"usageMetadata":' + encode(usage)
        if self._feedback is not None and self._feedback.get("blockReason") and not first.has_content:
            self.write_chunk(fields[1:])
        else:
            first.end(event, fields)
        self._close_array()

    def write_error(self, event: StreamError) -> None:
        """This dialect has its own value for an invalid call; clients repeat the request when they get it."""
        if event.code == ToolCallParseError.code and self.started:
            self._candidates[0].end_malformed(event.message)
            if not self.abort:
                self._close_array()
            return
        self._after = b"}" if self._array else b"}\n\n"
        self.write_chunk(encode(error_body(event))[1:-1])
        if not self.abort:
            self._close_array()

    def _close_array(self) -> None:
        if self._array:
            self.pieces.append(b"]")

    def _keep_alive(self, _event: KeepAlive) -> None:
        if self.started:
            self._candidates[0].part(b'{"text":""}')

    def _choice(self, event: Choice) -> None:
        self.ensure_started()
        candidate = self._candidates.get(event.index)
        if candidate is None:
            candidate = self._candidates[event.index] = CandidateWriter(self, event.index)
        candidate.rules.get(type(event.event), self.lose)(event.event)

    def extra(self, event: Extra, candidate: CandidateWriter) -> None:
        match event.data if event.dialect == self.dialect else None:
            case {"candidate": dict(fields)}:
                candidate.keep(fields)
            case {"part": dict(part)}:
                candidate.part(encode(part))
            case {"promptFeedback": dict(feedback)}:
                self._feedback = named_enums(feedback)
            case _:
                self.lose(event)


# --- the whole response


def build(response: Response, *, strict: bool = False) -> JsonObject:
    """Every field except ``extensions`` is part of the specification."""
    if response.error is not None and not any(choice.parts for choice in response.choices):
        return error_body(response.error)
    body: JsonObject = {"candidates": [_build_candidate(choice) for choice in response.choices]}
    for extra in response.extras:
        match extra.data if extra.dialect == DIALECT else None:
            case {"candidate": dict(fields)} if body["candidates"]:
                body["candidates"][0].update(named_enums(fields))
            case {"promptFeedback": dict(feedback)}:
                body["promptFeedback"] = named_enums(feedback)
                if feedback.get("blockReason") and not any(choice.parts for choice in response.choices):
                    body["candidates"] = []
    if not body["candidates"]:
        del body["candidates"]
    usage = write_usage(response.usage, strict)
    if usage is not None:
        body["usageMetadata"] = usage
    for name, value in (("modelVersion", response.model), ("responseId", response.id)):
        if value:
            body[name] = value
    if response.extensions is not None and not strict:
        body["extensions"] = response.extensions
    if response.error is not None:
        body.update(error_body(response.error))
    return body


def _build_candidate(choice: ResponseChoice) -> JsonObject:
    malformed: list[str] = []
    with_breaks = with_step_breaks(choice)
    parts = PartBuilder(sign, malformed=malformed).build(_expressible(with_breaks))
    candidate: JsonObject = {"index": choice.index, "content": {"role": "model", "parts": parts or [{"text": ""}]}}
    finish = write_reason(choice.stop_reason, choice.raw_stop_reason) if choice.stop_reason is not None else None
    if malformed and finish != "MAX_TOKENS":
        finish = MALFORMED_CALL
        candidate["finishMessage"] = f"Malformed function call: {', '.join(malformed)}"
    if finish is not None:
        candidate["finishReason"] = finish
    text, sources, base = Offsets(), [], 0
    for part in with_breaks:
        if isinstance(part, TextPart):
            text.add(part.text)
            sources += [entry for citation in part.citations if (entry := write_citation(citation, text, base)) is not None]
            base += len(part.text)
    if sources:
        candidate["citationMetadata"] = {"citationSources": sources}
    return candidate


def _expressible(parts: list[Part]) -> list[Part]:
    """The parts without results of tools that a gateway ran, which a response of this dialect cannot express, and without media
    that no client can decode."""
    return [part for part in parts if not _is_inexpressible(part)]


def _is_inexpressible(part: Part) -> bool:
    match part:
        case ToolResultPart():
            return not is_native_part(part.native)
        case MediaPart():
            return not (part.url or (part.data and whole_base64(part.data) is not None))
    return False
