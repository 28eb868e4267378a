"""Reads Responses events: what each says about the response or one of its items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Unpack

from ...errors import UpstreamProtocolError, UpstreamTruncated, excerpt
from ...events import Extra, KeepAlive, Media, StopReason, Usage
from ...framing import Frame
from ...json_types import JsonObject
from .. import faults
from ..lenient import json_text, loads
from ..reader import Reader, ReaderOptions
from .items import Items
from .wire import DIALECT, ENDS, INCOMPLETE, LIFECYCLE, USAGE, Event, event_decoder, string_of, whole_number

_ADDRESS: Final = frozenset(("sequence_number", "item_id", "output_index", "obfuscation"))
"""Fields that only locate an event. A writer generates them again."""
_KEEP_ALIVE: Final = frozenset(("keepalive", "ping", "response.keepalive", "response.ping"))
_NOTHING_NEW: Final = frozenset(
    (
        "response.content_part.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_part.done",
        "response.custom_tool_call_input.done",
        "response.mcp_call_arguments.done",
        "response.audio.done",
        "response.audio.transcript.done",
    )
)
"""Events that repeat what other events contain."""
_AUDIO_ID: Final = "audio"


class ResponsesReader(Reader):
    dialect = DIALECT

    def __init__(self, **more: Unpack[ReaderOptions]) -> None:
        super().__init__(**more)
        self._usage: Usage | None = None
        self._emitted: JsonObject = {}
        items = self._items = Items(self)
        self._rules: dict[str, Callable[[Event], None]] = {
            "response.output_text.delta": lambda event: items.piece(event, "message", "text", event.content_index),
            "response.output_text.done": lambda event: items.last(event, "message", "text", event.content_index, event.text),
            "response.refusal.delta": lambda event: items.piece(event, "message", "refusal", event.content_index),
            "response.refusal.done": lambda event: items.last(event, "message", "refusal", event.content_index, event.refusal),
            "response.reasoning_text.delta": lambda event: items.piece(event, "reasoning", "content", event.content_index),
            "response.reasoning_text.done": lambda event: items.last(
                event, "reasoning", "content", event.content_index, event.text
            ),
            "response.reasoning_summary_text.delta": lambda event: items.piece(
                event, "reasoning", "summary", event.summary_index
            ),
            "response.reasoning_summary_text.done": lambda event: items.last(
                event, "reasoning", "summary", event.summary_index, event.text
            ),
            "response.reasoning.delta": lambda event: items.piece(event, "reasoning", "content", event.content_index),
            "response.reasoning_summary.delta": lambda event: items.piece(event, "reasoning", "summary", event.summary_index),
            "response.function_call_arguments.delta": lambda event: items.arguments(event, "function_call"),
            "response.function_call_arguments.done": lambda event: items.arguments_done(
                event, "function_call", json_text(event.arguments)
            ),
            "response.custom_tool_call_input.delta": lambda event: items.arguments(event, "custom_tool_call"),
            "response.custom_tool_call_input.done": lambda event: items.arguments_done(
                event, "custom_tool_call", event.input or ""
            ),
            "response.mcp_call_arguments.delta": lambda event: items.arguments(event, "mcp_call"),
            "response.output_item.added": items.added,
            "response.output_item.done": items.done,
            "response.content_part.done": items.part_done,
            "response.output_text.annotation.added": items.annotation,
            "response.audio.delta": lambda event: self._audio(data=event.delta),
            "response.audio.transcript.delta": lambda event: self._audio(transcript=event.delta),
            "response.created": self._lifecycle,
            "response.queued": self._lifecycle,
            "response.in_progress": self._lifecycle,
        }

    def read(self, frame: Frame) -> None:
        data = frame.data
        if data[:1] != b"{" and data.strip(b' \t"') == b"[DONE]":
            return
        event = self.decode(event_decoder, data)
        kind = event.type or frame.event
        rule = self._rules.get(kind)
        if rule is not None:
            rule(event)
        elif kind in ENDS:
            self._read_end(kind, event)
        elif kind not in _NOTHING_NEW:
            self._read_other(kind, event, data)

    def is_chunk(self, value: JsonObject) -> bool:
        return str(value.get("type", "")).startswith("response.")

    def whole(self, body: JsonObject) -> None:
        status = string_of(body, "status")
        if status in ("queued", "in_progress"):
            raise UpstreamTruncated(f"the response is still {status}: request it again when it is done")
        if not isinstance(body.get("output"), list) and status not in ("failed", "cancelled"):
            raise UpstreamProtocolError(f"the upstream sent a JSON body without output instead of a stream: {excerpt(body)}")
        self._read_end("response.completed", Event(response=body))

    # --- the response

    def _lifecycle(self, event: Event) -> None:
        response = event.response or {}
        self.start(string_of(response, "id"), string_of(response, "model"), whole_number(response.get("created_at")) or 0)
        changed = {
            name: value
            for name, value in response.items()
            if name not in LIFECYCLE and (name not in self._emitted or self._emitted[name] != value)
        }
        if changed:
            self._emitted.update(changed)
            self.emit(Extra(self.dialect, {"response": changed}))
        raw = response.get("usage")
        if isinstance(raw, dict) and raw and (self._usage is None or self._usage.raw != raw):
            self._usage = USAGE.read(raw)
            self.emit(self._usage)

    def _read_end(self, kind: str, event: Event) -> None:
        response = event.response or {}
        status = string_of(response, "status") or None
        self._lifecycle(event)
        error = response.get("error") or event.error
        if kind == "response.failed" or status == "failed" or faults.is_error(error):
            raise faults.refusal(error or {"message": "the upstream reported a failed response without a reason"})
        self._items.settle(response.get("output"))
        reason: StopReason = "end"
        if kind == "response.cancelled" or status == "cancelled":
            reason = "cancelled"
        elif kind == "response.incomplete" or status == "incomplete":
            details = response.get("incomplete_details")
            reason = INCOMPLETE.get(string_of(details, "reason") if isinstance(details, dict) else "", "other")
        blocks = self.blocks()
        self._items.finish(cut=reason != "end")
        if reason == "end" and blocks.calls:
            reason = "tool_calls"
        elif reason == "end" and self._items.refused and not self._items.answered:
            reason = "refusal"
        self.end(reason, status)

    def _read_other(self, kind: str, event: Event, data: bytes) -> None:
        if kind in _KEEP_ALIVE:
            self.emit(KeepAlive(kind))
        elif kind in ("error", "response.error") or faults.is_error(event.error):
            raise faults.refusal(loads(data)[0])
        elif kind and self.started:
            fields = {name: value for name, value in loads(data)[0].items() if name not in _ADDRESS}
            self.emit(Extra(self.dialect, {"event": {**fields, "type": kind}}), media=len(string_of(fields, "partial_image_b64")))

    def _audio(self, data: object = None, transcript: object = None) -> None:
        data, transcript = (value if isinstance(value, str) else "" for value in (data, transcript))
        if data or transcript:
            self.blocks().put(Media("audio/*", data, id=_AUDIO_ID, transcript=transcript))
