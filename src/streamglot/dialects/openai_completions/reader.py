"""Reads chunks of text completions of every compatible server."""

from __future__ import annotations

from typing import Any, Final

from ...errors import UpstreamProtocolError, UpstreamRefused, UpstreamTruncated, excerpt
from ...events import Extra, StopReason, StreamEnd, Usage
from ...framing import Frame
from .. import faults
from ..lenient import fit, loads
from ..reader import Reader
from .wire import REASONS, Chunk, ChunkChoice, chunk_decoder, read_usage

_EXTRA_OF_CHUNK: Final = ("system_fingerprint", "provider", "timings", "prompt_filter_results")
_EXTRA_OF_CHOICE: Final = ("logprobs", "content_filter_results")


class CompletionsReader(Reader):
    dialect = "openai_completions"

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self._finish: dict[int, str] = {}
        self._sequences: dict[int, str] = {}
        self._usage: Usage | None = None
        self._emitted: dict[str, Any] = {}

    def read(self, frame: Frame) -> None:
        data = frame.data
        if data[:1] != b"{" and data.strip(b' \t"') == b"[DONE]":
            self._finish_stream()
            return
        chunk = self.decode(chunk_decoder, data)
        self._read_chunk(chunk)
        if faults.is_error(chunk.error):
            raise faults.refusal(chunk.error)
        if chunk.object == "error" or frame.event == "error":
            raise faults.refusal(loads(data)[0])

    def eof(self) -> None:
        if self._finish and all(index in self._finish for index in self._blocks):
            self._finish_stream()

    def whole(self, body: dict[str, Any]) -> None:
        chunk: Chunk = fit(Chunk, body)
        if not chunk.choices:
            raise UpstreamProtocolError(f"the upstream sent a JSON body without choices instead of a stream: {excerpt(body)}")
        self._read_chunk(chunk)
        self._finish_stream()

    # --- one chunk

    def _read_chunk(self, chunk: Chunk) -> None:
        choices = chunk.choices
        if not self.started and (choices or chunk.id or chunk.usage):
            self.start(chunk.id or "", chunk.model or "", int(chunk.created or 0))
        if choices:
            for choice in choices:
                self._read_choice(choice)
        raw = chunk.usage
        if raw and (self._usage is None or raw != self._usage.raw):
            self._usage = read_usage(raw, self._usage)
            self.emit(self._usage)
        if self.started:
            for name in _EXTRA_OF_CHUNK:
                value = getattr(chunk, name)
                if value and self._emitted.get(name) != value:
                    self._emitted[name] = value
                    self.emit(Extra(self.dialect, {name: value}))

    def _read_choice(self, choice: ChunkChoice) -> None:
        index = max(choice.index or 0, 0)
        blocks = self.blocks(index)
        if choice.reasoning:
            blocks.reasoning(choice.reasoning)
        if choice.text:
            blocks.text(choice.text)
        if choice.logprobs or choice.content_filter_results:
            for name in _EXTRA_OF_CHOICE:
                value = getattr(choice, name)
                if value:
                    self.emit(Extra(self.dialect, {"choice": {name: value}}), index)
        if choice.finish_reason:
            self._finish[index] = choice.finish_reason
            for sequence in (choice.stop_reason, choice.matched_stop):
                if isinstance(sequence, str) and sequence:
                    self._sequences[index] = sequence

    # --- the end

    def _finish_stream(self) -> None:
        """Ends the stream after [DONE], which is an end even without a finish reason, or after the end of all choices."""
        if not self._finish and not any(blocks.count for blocks in self._blocks.values()):
            raise UpstreamTruncated("the stream ended without an answer and without a finish reason", code="upstream_empty")
        for index, blocks in sorted(self._blocks.items(), reverse=True):
            blocks.finish()
            if index:
                self.emit(StreamEnd(*self._reason(index)), index)
        self.end(*self._reason(0))

    def _reason(self, index: int) -> tuple[StopReason, str | None, str | None]:
        raw = self._finish.get(index)
        if raw and raw.lower() == "error":
            raise UpstreamRefused("the upstream ended its stream with the finish reason 'error' and no explanation")
        reason = REASONS.get(raw.lower(), "other") if raw else "other"
        sequence = self._sequences.get(index)
        return ("stop_sequence" if sequence and reason == "end" else reason), raw, sequence
