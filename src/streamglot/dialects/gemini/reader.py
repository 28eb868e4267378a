"""Reads GenerateContentResponse chunks: server-sent events, a streamed JSON array, or one JSON body.

The wire format has no end marker. The stream is complete when every candidate has a finish reason, or the prompt was blocked, and
the input has ended; an input that ends before that was truncated.
"""

from __future__ import annotations

import json
from typing import Unpack

from ...errors import ToolCallParseError, UpstreamProtocolError, excerpt
from ...events import Extra, StopReason, StreamEnd, Usage
from ...framing import Frame, Framing, JsonArray, JsonDepth
from ...json_types import JsonObject, JsonValue
from .. import faults
from ..lenient import loads
from ..reader import Reader, ReaderOptions
from .answer import CandidateReader
from .wire import (
    MALFORMED_CALL,
    UNSPECIFIED,
    Candidate,
    Chunk,
    camel_case,
    camel_keys,
    chunk_decoder,
    merge_usage,
    read_reason,
    read_time,
    read_usage,
)


class GeminiReader(Reader):
    dialect = "gemini"

    def __init__(self, **more: Unpack[ReaderOptions]) -> None:
        super().__init__(**more)
        self._answers: dict[int, CandidateReader] = {}
        self._raw_usage: JsonObject = {}
        self._usage: Usage | None = None
        self._feedback: JsonObject | None = None
        self._blocked: str | None = None
        self._objects = False
        self._frames = 0
        self._bare: list[bytes] = []
        self._bare_size = 0
        self._bare_depth = JsonDepth()

    def framing_for(self, first: bytes) -> Framing | None:
        """``[`` begins the streamed array. ``{`` begins one complete response, or consecutive objects."""
        if first in (b"[", b"{"):
            self._objects = first == b"{"
            return JsonArray(self.limits)
        return super().framing_for(first)

    def read(self, frame: Frame) -> None:
        data = frame.data
        self._frames += 1
        if data[:1] != b"{" and data.strip()[:1] != b"{":
            self._read_other(data)
            return
        data = camel_case(data)
        chunk = self.decode(chunk_decoder, data)
        self._read_chunk(chunk, data)
        if faults.is_error(chunk.error):
            raise faults.refusal(chunk.error)

    def eof(self) -> None:
        if self._bare:
            return
        declared = self._objects and self._frames == 1
        if self._blocked or (self._answers and (declared or all(answer.finish for answer in self._answers.values()))):
            self._finish()

    def whole(self, body: JsonObject) -> None:
        """A complete response is a stream of one chunk; it counts as complete even without a finish reason."""
        try:
            data = json.dumps(camel_keys(body)).encode()
        except RecursionError:
            raise UpstreamProtocolError("the answer is nested too deeply") from None
        self._read_chunk(self.decode(chunk_decoder, data), data)
        if not self._answers and not self._blocked:
            raise UpstreamProtocolError(f"the answer has no candidates: {excerpt(body)}")
        self._finish()

    # --- one chunk

    def _read_chunk(self, chunk: Chunk, data: bytes) -> None:
        candidates = chunk.candidates
        if not self.started and (candidates or chunk.prompt_feedback or chunk.usage_metadata or chunk.response_id):
            self.start(chunk.response_id or "", chunk.model_version or "", read_time(chunk.create_time))
        if candidates:
            if len(candidates) == 1:
                self._read_candidate(candidates[0], candidates[0].index or 0, 0, data)
            else:
                for position, index in enumerate(_indexes(candidates)):
                    self._read_candidate(candidates[position], index, position, data)
        if chunk.prompt_feedback:
            self._read_feedback(chunk.prompt_feedback)
        if chunk.usage_metadata:
            self._read_usage(chunk.usage_metadata)

    def _read_candidate(self, candidate: Candidate, index: int, position: int, data: bytes) -> None:
        answer = self._answers.get(index)
        if answer is None:
            if not 0 <= index < self.limits.held_blocks:
                raise UpstreamProtocolError(f"a candidate has the index {index}", code="bad_candidate_index")
            prefix = f"{self._call_prefix}_{index}" if index else self._call_prefix
            answer = CandidateReader(index, self.blocks(index), self.emit, self.provider, prefix, self.limits)
            self._answers[index] = answer
        answer.read(candidate, lambda part: _raw_part(data, position, part))
        if candidate.finish_reason is not None and str(candidate.finish_reason) not in UNSPECIFIED:
            answer.finish = str(candidate.finish_reason)

    def _read_feedback(self, feedback: JsonObject) -> None:
        if feedback == self._feedback:
            return
        self._feedback = feedback
        self.emit(Extra(self.dialect, {"promptFeedback": feedback}))
        reason = feedback.get("blockReason")
        if isinstance(reason, (str, int)) and str(reason) not in UNSPECIFIED:
            self._blocked = str(reason)

    def _read_usage(self, raw: JsonObject) -> None:
        merged = merge_usage(self._raw_usage, raw)
        if merged != self._raw_usage:
            self._raw_usage = merged
            self._usage = read_usage(merged)
            if self._usage is not None:
                self.emit(self._usage)

    # --- frames that are not chunks

    def _read_other(self, data: bytes) -> None:
        """Reads a relay's [DONE], which this format lacks, or a list of chunks."""
        if data.strip(b' \t"') == b"[DONE]":
            return
        value = loads(data)[0]
        if not isinstance(value, list):
            raise UpstreamProtocolError(f"a frame is not an object of the dialect {self.dialect}: {excerpt(data)}")
        for element in value:
            if not isinstance(element, dict):
                raise UpstreamProtocolError(f"a frame is not an object of the dialect {self.dialect}: {excerpt(data)}")
            self.read(Frame(json.dumps(element).encode()))

    def _read_stray(self, line: bytes) -> None:
        """An error may follow the events as bare JSON over many lines, as clients of this format expect."""
        if not self._bare and line.lstrip()[:1] != b"{":
            super()._read_stray(line)
            return
        self._stray = self._stray or line
        self._bare.append(line)
        self._bare_size += len(line)
        if self._bare_size > self.limits.event_bytes:
            raise self.limits.exceeded("event_bytes")
        if self._bare_depth.feed(line.decode("utf-8", "replace")) >= 0:
            data = b"\n".join(self._bare)
            self._bare, self._bare_size, self._bare_depth = [], 0, JsonDepth()
            self.read(Frame(data))

    # --- the end

    def _finish(self) -> None:
        for index in sorted(self._answers, reverse=True):
            self._answers[index].close()
            self._blocks[index].finish()
            if (self._answers[index].finish or "").upper() == MALFORMED_CALL:
                raise ToolCallParseError(f"the provider could not read the model's tool call ({MALFORMED_CALL})")
            if index:
                self.emit(StreamEnd(*self._reason(index)), index)
        self.end(*self._reason(0))

    def _reason(self, index: int) -> tuple[StopReason, str | None]:
        answer = self._answers.get(index)
        raw = answer.finish if answer is not None else None
        if raw is None and self._blocked:
            return "content_filter", self._blocked
        return read_reason(raw or "", answer.blocks.calls if answer is not None else 0), raw


def _indexes(candidates: list[Candidate]) -> list[int]:
    """The wire omits an index of 0. If several are missing, the position in the list counts."""
    known = {candidate.index for candidate in candidates}
    missing = [position for position, candidate in enumerate(candidates) if candidate.index is None]
    if len(missing) == 1 and 0 not in known:
        return [candidate.index or 0 for candidate in candidates]
    return [position if candidate.index is None else candidate.index for position, candidate in enumerate(candidates)]


def _raw_part(data: bytes, candidate: int, part: int) -> JsonValue:
    """A part with all its fields, for the rare part that the struct does not describe."""
    try:
        return loads(data)[0]["candidates"][candidate]["content"]["parts"][part]
    except (KeyError, IndexError, TypeError):
        return None
