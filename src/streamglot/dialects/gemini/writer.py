"""Writes GenerateContentResponse chunks, as server-sent events or as a streamed JSON array.

The official Python client fails on a comment, on ``data:`` without a space, and on U+2028, U+2029 or U+0085 inside a line: none
of them is ever written. Its chat sessions discard an answer with a chunk without parts, so an empty chunk has an empty text.
"""

from __future__ import annotations

from typing import Final, Unpack

from ...errors import ToolCallParseError
from ...events import (
    Choice,
    Extra,
    KeepAlive,
    StreamEnd,
    StreamError,
)
from ...json_types import JsonObject
from ..writer import Rules, Writer, WriterOptions, encode
from .candidate import CandidateWriter
from .enums import named_enums
from .wire import error_body, write_usage

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
