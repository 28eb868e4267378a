"""The common part of readers whose frames are chunks with a list of choices, and whose streams end with [DONE]."""

from __future__ import annotations

from typing import Any, Unpack

import msgspec

from ..errors import UpstreamProtocolError, excerpt
from ..events import Usage
from ..framing import Frame
from ..json_types import JsonObject
from . import faults
from .lenient import fit, loads
from .reader import Reader, ReaderOptions


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
        if chunk.error is not None and faults.is_error(chunk.error):
            raise faults.refusal(chunk.error)
        if chunk.object == "error" or frame.event == "error":
            raise faults.refusal(loads(data)[0])

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
