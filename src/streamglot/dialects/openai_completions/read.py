"""Reads chunks of text completions of every compatible server."""

from __future__ import annotations

from typing import Final

from ...errors import UpstreamRefused, UpstreamTruncated
from ...events import Extra, StopReason, StreamEnd
from ..common.reader import ChoicesReader
from .wire import REASONS, USAGE, Chunk, ChunkChoice, chunk_decoder

_EXTRA_OF_CHUNK: Final = ("system_fingerprint", "provider", "timings", "prompt_filter_results")
_EXTRA_OF_CHOICE: Final = ("logprobs", "content_filter_results")


class CompletionsReader(ChoicesReader):
    dialect = "openai_completions"
    decoder = chunk_decoder

    def read_chunk(self, chunk: Chunk) -> None:
        choices = chunk.choices
        if not self.started and (choices or chunk.id or chunk.usage):
            self.start(chunk.id or "", chunk.model or "", int(chunk.created or 0))
        if choices:
            for choice in choices:
                self._read_choice(choice)
        raw = chunk.usage
        if raw and (self._usage is None or raw != self._usage.raw):
            self._usage = USAGE.read(raw, self._usage)
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

    def finish_stream(self) -> None:
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
