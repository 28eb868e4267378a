"""Reads message events of every compatible server, in any order of its blocks."""

from __future__ import annotations

from typing import Final, Unpack

import msgspec

from ...errors import UpstreamProtocolError, UpstreamTruncated, excerpt
from ...events import BareEvent, Echo, Extra, KeepAlive, ReasoningStart, StopReason, TextStart, ToolResult
from ...framing import Frame
from ...json_types import JsonObject
from ..common import upstream_errors
from ..common.blocks import Block
from ..common.lenient import clean, fit, loads, objects_in, string_in
from ..common.reader import Reader, ReaderOptions
from .wire import REASONS, USAGE, WireDelta, WireEvent, WireMessage, event_decoder, is_failure, read_citation, result_text

_TEXT, _THINKING, _INPUT = "text_delta", "thinking_delta", "input_json_delta"
_SHOWN: Final = frozenset(("type", "id", "name", "input"))


class _Live:
    """A block between its start and its stop. ``takes`` is the type of delta that carries its pieces."""

    __slots__ = ("block", "body", "takes")

    def __init__(self, block: Block | None, takes: str, body: JsonObject) -> None:
        self.block = block
        self.takes = takes
        self.body = body


class AnthropicReader(Reader):
    dialect = "anthropic"

    def __init__(self, **more: Unpack[ReaderOptions]) -> None:
        super().__init__(**more)
        self._live: dict[int, _Live] = {}
        self._latest = -1
        self._opened = 0
        self._waiting: list[BareEvent] = []
        self._usage: JsonObject = {}
        self._id = ""
        self._stop: str | None = None
        self._sequence: str | None = None

    def read(self, frame: Frame) -> None:
        if frame.data[:1] != b"{" and frame.data.strip() == b"[DONE]":
            if self._stop is not None:
                self._finish()
            return
        event = self.decode(event_decoder, frame.data)
        kind = event.type or frame.event
        if kind == "content_block_delta":
            if event.delta is not None:
                self._read_delta(self._latest if event.index is None else event.index, event.delta, frame.data)
        elif kind == "error" or upstream_errors.is_error(event.error):
            raise upstream_errors.refusal(loads(frame.data)[0])
        elif kind == "ping":
            self.emit(KeepAlive())
        elif kind == "content_block_start":
            if event.content_block is not None:
                self._open(self._latest + 1 if event.index is None else event.index, event.content_block)
        elif kind == "content_block_stop":
            self._close(self._latest if event.index is None else event.index)
        elif kind == "message_start":
            self._read_message(event.message or WireMessage())
        elif kind == "message_delta":
            self._read_ending(event)
        elif kind == "message_stop":
            self._finish()

    def is_chunk(self, value: JsonObject) -> bool:
        return str(value.get("type", "")).startswith(("message_start", "content_block_", "message_delta", "message_stop", "ping"))

    def whole(self, body: JsonObject) -> None:
        message: WireMessage = fit(WireMessage, body)
        if message.content is None:
            raise UpstreamProtocolError(f"the upstream sent a JSON body without content instead of a stream: {excerpt(body)}")
        self._read_message(message)
        self.need_reason(body, "stop_reason")
        self._finish()

    # --- the message

    def _read_message(self, message: WireMessage) -> None:
        if self._opened and message.id != self._id:
            raise UpstreamProtocolError(
                f"a second message ({excerpt(message.id)}) began inside the first ({excerpt(self._id)}): the upstream or a "
                "proxy repeated the request after the answer had begun",
                code="second_message",
            )
        self._id = message.id or ""
        self.start(self._id, message.model or "")
        self._read_usage(message.usage)
        for block in message.content or ():
            self._open(self._latest + 1, block)
            self._close(self._latest)
        self._read_extras(message)
        self._stop = message.stop_reason or self._stop
        self._sequence = message.stop_sequence or self._sequence

    def _read_ending(self, event: WireEvent) -> None:
        self._read_usage(event.usage)
        delta = event.delta or WireDelta()
        self._stop = delta.stop_reason or self._stop
        self._sequence = delta.stop_sequence or self._sequence
        self._read_extras(delta)
        if event.context_management:
            self._extra({"context_management": event.context_management})

    def _read_extras(self, source: WireDelta | WireMessage) -> None:
        if source.stop_details:
            self._extra({"stop_details": source.stop_details})
        if source.container:
            self._extra({"container": source.container})
        if isinstance(source, WireMessage) and source.context_management:
            self._extra({"context_management": source.context_management})

    def _extra(self, data: JsonObject) -> None:
        self.start()
        self.emit(Extra(self.dialect, data))

    def _read_usage(self, usage: JsonObject | None) -> None:
        """Counts are totals: values that a later event lacks stay as they were."""
        counts = {name: value for name, value in (usage or {}).items() if value is not None}
        if counts and counts != self._usage:
            self.start()
            self._usage = {**self._usage, **counts}
            self.emit(USAGE.read(self._usage))

    # --- blocks

    def _open(self, index: int, body: JsonObject) -> None:
        if index in self._live:
            self._close(index)
        if self._lone_surrogates:
            body = clean(body)
        self._latest = index
        self._opened += 1
        blocks = self.blocks()
        kind = body.get("type")
        if not isinstance(kind, str):
            kind = ""
        if kind == "text":
            block = blocks.open(TextStart())
            self._live[index] = _Live(block, _TEXT, body)
            for citation in objects_in(body.get("citations")):
                blocks.put(read_citation(citation))
            blocks.add(block, string_in(body, "text"))
        elif kind in ("thinking", "redacted_thinking"):
            block = blocks.open(ReasoningStart())
            block.redacted = kind == "redacted_thinking"
            self._live[index] = _Live(block, _THINKING, body)
            blocks.add(block, string_in(body, "thinking"))
        elif kind.endswith("tool_use"):
            self._live[index] = _Live(self._open_call(kind, body), _INPUT, body)
        elif kind.endswith("_tool_result"):
            native = Echo(self.provider, body)
            result = ToolResult(string_in(body, "tool_use_id"), result_text(body.get("content")), is_failure(body), native)
            self.tally.count(result)
            self._loose(result)
            self._live[index] = _Live(None, "", {})
        else:
            self.tally.extra(body)
            self._live[index] = _Live(None, "", body)

    def _open_call(self, kind: str, body: JsonObject) -> Block:
        call_id, name = string_in(body, "id"), string_in(body, "name")
        more = {field: value for field, value in body.items() if field not in _SHOWN}
        if kind != "tool_use":
            return self.blocks().open_call(call_id, name or kind, "server", Echo(self.provider, {"type": kind, **more}))
        if not name:
            raise UpstreamProtocolError(f"a tool call has no name (id {excerpt(call_id)})", code="tool_call_without_name")
        return self.blocks().open_call(call_id, name, native=Echo(self.provider, more) if more else None)

    def _read_delta(self, index: int, delta: WireDelta, data: bytes) -> None:
        kind = delta.type
        if kind == _TEXT:
            piece = delta.text
        elif kind == _INPUT:
            piece = delta.partial_json
        elif kind == _THINKING:
            piece = delta.thinking
        else:
            self._read_state(index, delta, data)
            return
        if not piece:
            return
        live = self._live.get(index)
        if live is None and kind != _INPUT:
            self._open(index, {"type": "text" if kind == _TEXT else "thinking"})
            live = self._live[index]
        if live is not None and live.takes == kind and live.block is not None:
            self._blocks[0].add(live.block, piece)
        else:
            self._extra({"delta": {"type": kind, "piece": piece}})

    def _read_state(self, index: int, delta: WireDelta, data: bytes) -> None:
        """Reads a delta without a piece of the block: a signature, a citation, or one of an unknown type."""
        live = self._live.get(index)
        if live is None:
            return
        if delta.signature is not None:
            live.body["signature"] = delta.signature
        elif delta.citation is not None and live.takes == _TEXT:
            self.blocks().put(read_citation(delta.citation))
        elif live.block is None and live.body:
            raw = loads(data)[0]["delta"]
            self.tally.extra(raw)
            live.body.update({name: value for name, value in raw.items() if name != "type" and value is not None})

    def _close(self, index: int) -> None:
        live = self._live.pop(index, None)
        if live is None:
            return
        body, block = live.body, live.block
        if block is None:
            if body:
                self._loose(Extra(self.dialect, {"content_block": body}))
        elif live.takes == _THINKING:
            field = "data" if block.redacted else "signature"
            opaque = string_in(body, field)
            self.blocks().end(block, Echo(self.provider, {field: opaque}) if opaque else None)
        else:
            if live.takes == _INPUT:
                given = body.get("input")
                if given and not block.size:
                    self.blocks().add(block, msgspec.json.encode(given).decode())
            self.blocks().end(block)
        self._advance_queue()

    def _loose(self, event: BareEvent) -> None:
        """Emits an event that stands between blocks and is counted already. It waits while blocks overlap."""
        self._waiting.append(event)
        self._advance_queue()

    def _advance_queue(self) -> None:
        if self._waiting and not any(live.block is not None for live in self._live.values()):
            for event in self._waiting:
                self.emit_counted(event)
            self._waiting.clear()

    # --- the end

    def _finish(self) -> None:
        if not self.started:
            raise UpstreamTruncated("the stream ended without any content", code="upstream_empty")
        for index in sorted(self._live):
            self._close(index)
        blocks = self.blocks()
        blocks.finish()
        reason: StopReason = REASONS.get(self._stop, "other") if self._stop else "other"
        if reason in ("end", "other") and blocks.calls:
            reason = "tool_calls"
        elif reason == "tool_calls" and not blocks.calls:
            reason = "end"
        self.end(reason, self._stop, self._sequence)
