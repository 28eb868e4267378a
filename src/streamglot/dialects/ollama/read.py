"""Reads lines of /api/chat and /api/generate."""

from __future__ import annotations

import re
from typing import Final, Unpack

import msgspec

from ...errors import UpstreamProtocolError, UpstreamTruncated, excerpt
from ...events import Echo, Extra, KeepAlive, Media, StopReason
from ...framing import Frame, Framing, JsonArray, NdJson
from ...json_types import JsonObject
from ..common import upstream_errors
from ..common.blocks import Blocks
from ..common.conversation import image_type
from ..common.lenient import fit
from ..common.reader import Reader, ReaderOptions
from .wire import COUNTERS, REASONS, Call, Line, line_decoder, read_arguments, read_time, read_usage

_EXTRAS: Final = (("remote_model", "remote_model"), ("remote_host", "remote_host"), ("debug", "_debug_info"))
"""Fields that lines may repeat; they are emitted again only when they change."""
_NO_DIGIT: Final = re.compile("[^0-9]")


class OllamaReader(Reader):
    dialect = "ollama"
    framing = NdJson

    def __init__(self, **more: Unpack[ReaderOptions]) -> None:
        super().__init__(**more)
        self._emitted: JsonObject = {}

    def framing_for(self, first: bytes) -> Framing | None:
        return JsonArray(self.limits) if first == b"[" else NdJson(self.limits)

    def read(self, frame: Frame) -> None:
        self._read_line(self.decode(line_decoder, frame.data))

    def whole(self, body: JsonObject) -> None:
        line: Line = fit(Line, body)
        if line.message is None and line.response is None:
            raise UpstreamProtocolError(f"the upstream sent a JSON body without a message or a response: {excerpt(body)}")
        if line.done is False:
            raise UpstreamTruncated(f"the upstream's answer is marked as not done: {excerpt(body)}")
        line.done = True
        self._read_line(line)

    # --- one line

    def _read_line(self, line: Line) -> None:
        if upstream_errors.is_error(line.error):
            raise upstream_errors.refusal(line.error, line.status_code)
        self._start(line)
        blocks = self.blocks()
        before = len(self._out)
        self._read_extras(line)
        message = line.message
        if message is not None:
            self._read_pieces(blocks, message.thinking, message.content, message.tool_calls)
            for image in message.images or ():
                blocks.put(Media(image_type(image, "image/png"), image))
        self._read_pieces(blocks, line.thinking, line.response, line.tool_calls)
        if line.image:
            blocks.put(Media(image_type(line.image, "image/png"), line.image))
        if line.done:
            self._finish(line, blocks)
        elif len(self._out) == before:
            self.emit(KeepAlive())

    def _start(self, line: Line) -> None:
        if self.started:
            return
        self.start("", line.model or "", read_time(line.created_at))
        # Answers have no ids here, and calls often have none: the time separates the calls of two turns.
        self.name_calls(_NO_DIGIT.sub("", line.created_at or "")[:23])

    def _read_pieces(self, blocks: Blocks, thinking: str | None, text: str | None, calls: list[Call] | None) -> None:
        if thinking:
            block = blocks.reasoning(thinking)
            block.echo = block.echo or Echo(self.provider, {"field": "thinking"})
        if text:
            blocks.text(text)
        for call in calls or ():
            self._read_call(blocks, call)

    def _read_call(self, blocks: Blocks, call: Call) -> None:
        """Calls arrive complete, so each is its own block."""
        function = call.function
        if function is None or not function.name:
            raise UpstreamProtocolError(
                f"a tool call has no name: {excerpt(msgspec.json.encode(call))}", code="tool_call_without_name"
            )
        blocks.finish()
        block = blocks.open_call(call.id or "", function.name)
        blocks.add(block, read_arguments(function.arguments))
        blocks.end(block)

    def _read_extras(self, line: Line) -> None:
        for field, name in _EXTRAS:
            value = getattr(line, field)
            if value and self._emitted.get(name) != value:
                self._emitted[name] = value
                self.emit(Extra(self.dialect, {name: value}))
        if line.logprobs:
            self.emit(Extra(self.dialect, {"logprobs": line.logprobs}))
        if line.completed is not None or line.total is not None:
            self.emit(Extra(self.dialect, {"completed": line.completed or 0, "total": line.total or 0}))

    # --- the last line

    def _finish(self, line: Line, blocks: Blocks) -> None:
        blocks.finish()
        usage = read_usage(line)
        if usage is not None:
            self.emit(usage)
        more = {name: value for name in COUNTERS if "duration" in name and (value := getattr(line, name)) is not None}
        if line.context:
            more["context"] = line.context
        if more:
            self.emit(Extra(self.dialect, more))
        self.end(self._reason(line, blocks), line.done_reason)

    def _reason(self, line: Line, blocks: Blocks) -> StopReason:
        """The reason is ``stop`` after tool calls too; old servers send no reason."""
        reason: StopReason = "end" if line.done_reason is None else REASONS.get(line.done_reason.lower(), "other")
        return "tool_calls" if blocks.calls and reason in ("end", "other") else reason
