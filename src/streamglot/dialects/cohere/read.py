"""Reads Cohere chat events and complete responses."""

from __future__ import annotations

from typing import Unpack

import msgspec

from ...errors import UpstreamProtocolError, excerpt
from ...events import Echo, Extra, ReasoningStart, TextStart
from ...framing import Frame
from ...json_types import JsonObject
from ..common import upstream_errors
from ..common.blocks import Block
from ..common.lenient import clean, fit, loads, objects_in
from ..common.reader import Reader, ReaderOptions
from .wire import (
    DIALECT,
    FAILURES,
    REASONS,
    USAGE,
    Call,
    Content,
    Delta,
    DeltaMessage,
    WireEvent,
    event_decoder,
    read_citation,
)


class CohereReader(Reader):
    dialect = DIALECT

    def __init__(self, **more: Unpack[ReaderOptions]) -> None:
        super().__init__(**more)
        self._content: dict[int, Block] = {}
        self._calls: dict[int, Block] = {}
        self._plan: Block | None = None

    def read(self, frame: Frame) -> None:
        if frame.data[:1] != b"{" and frame.data.strip(b' \t"') == b"[DONE]":
            return
        event = self.decode(event_decoder, frame.data)
        kind = event.type or frame.event
        delta = event.delta or Delta()
        message = delta.message or DeltaMessage()
        index = event.index or 0
        match kind:
            case "content-delta":
                if isinstance(message.content, Content):
                    self._add(index, message.content)
                if event.logprobs:
                    self.emit(Extra(self.dialect, {"logprobs": event.logprobs}))
            case "tool-plan-delta":
                self._add_plan(message.tool_plan)
            case "tool-call-delta":
                self._add_call(index, message.tool_calls)
            case "content-start":
                if isinstance(message.content, Content):
                    self._end_content(index)
                    self._add(index, message.content)
            case "content-end":
                self._end_content(index)
            case "tool-call-start":
                self._start_call(index, message.tool_calls)
            case "tool-call-end":
                self._end_call(index)
            case "citation-start":
                self._cite(message.citations)
            case "citation-end":
                pass
            case "message-start":
                self.start(event.id or "")
            case "message-end":
                self._finish(delta)
            case _:
                self._read_other(kind, event, frame.data)

    def is_chunk(self, value: JsonObject) -> bool:
        return str(value.get("type", "")).startswith(("message-", "content-", "tool-", "citation-"))

    def whole(self, body: JsonObject) -> None:
        if not isinstance(body.get("message"), dict):
            if isinstance(body.get("message"), str):
                raise upstream_errors.refusal(body)
            raise UpstreamProtocolError(f"the upstream sent a JSON body without a message instead of a stream: {excerpt(body)}")
        identity = body.get("id")
        self.start(identity if isinstance(identity, str) else "")
        message: DeltaMessage = fit(DeltaMessage, body["message"])
        self._add_plan(message.tool_plan)
        for index, content in enumerate(objects_in(message.content)):
            self._add(index, fit(Content, content))
            self._end_content(index)
        for citation in objects_in(message.citations):
            self._cite(citation)
        for index, call in enumerate(objects_in(message.tool_calls)):
            self._start_call(index, fit(Call, call))
            self._end_call(index)
        if body.get("logprobs"):
            self.emit(Extra(self.dialect, {"logprobs": body["logprobs"]}))
        self.need_reason(body, "finish_reason")
        self._finish(fit(Delta, body))

    # --- blocks

    def _add(self, index: int, content: Content) -> None:
        piece = content.thinking or content.text
        if not piece:
            return
        start = ReasoningStart if content.thinking else TextStart
        block = self._content.get(index)
        if block is None or type(block.start) is not start:
            self._end_content(index)
            self._end_plan()
            block = self._content[index] = self.blocks().open(start())
            if start is ReasoningStart:
                block.echo = Echo(self.provider, {"field": "thinking"})
        self.blocks().add(block, piece)

    def _end_content(self, index: int) -> None:
        block = self._content.pop(index, None)
        if block is not None:
            self.blocks().end(block)

    def _add_plan(self, piece: str | None) -> None:
        """The plan before the calls is reasoning, and is returned in its own field."""
        if not piece:
            return
        if self._plan is None:
            self._plan = self.blocks().open(ReasoningStart())
            self._plan.echo = Echo(self.provider, {"field": "tool_plan"})
        self.blocks().add(self._plan, piece)

    def _end_plan(self) -> None:
        if self._plan is not None:
            self.blocks().end(self._plan)
            self._plan = None

    def _start_call(self, index: int, call: object) -> None:
        if not isinstance(call, Call) or call.function is None or not call.function.name:
            raise UpstreamProtocolError(f"a tool call has no name: {excerpt(call)}", code="tool_call_without_name")
        self._end_plan()
        self._end_call(index)
        self._calls[index] = self.blocks().open_call(call.id or "", call.function.name)
        self._add_call(index, call)

    def _add_call(self, index: int, call: object) -> None:
        if not isinstance(call, Call) or call.function is None:
            return
        arguments = call.function.arguments
        piece = msgspec.json.encode(clean(arguments)).decode() if isinstance(arguments, dict) else arguments
        block = self._calls.get(index)
        if block is not None:
            self.blocks().add(block, piece or "")
        elif piece:
            raise UpstreamProtocolError(f"arguments arrived for the tool call {index}, which has not begun: {excerpt(piece)}")

    def _end_call(self, index: int) -> None:
        block = self._calls.pop(index, None)
        if block is not None:
            self.blocks().end(block)

    def _cite(self, citation: object) -> None:
        for one in citation if isinstance(citation, list) else (citation,):
            if isinstance(one, dict):
                self.blocks().put(read_citation(one))

    # --- other events

    def _read_other(self, kind: str, event: WireEvent, data: bytes) -> None:
        value = loads(data)[0]
        if kind == "error" or upstream_errors.is_error(event.error) or (not kind and isinstance(event.message, str)):
            raise upstream_errors.refusal(value)
        self.start()
        self.emit(Extra(self.dialect, {kind or "event": value}))

    def _finish(self, delta: Delta) -> None:
        blocks = self.blocks()
        self._end_plan()
        for index in list(self._content):
            self._end_content(index)
        for index in list(self._calls):
            self._end_call(index)
        if delta.usage:
            self.emit(USAGE.read(delta.usage))
        raw = delta.finish_reason
        if upstream_errors.is_error(delta.error) or raw in FAILURES:
            failure = (
                delta.error if upstream_errors.is_error(delta.error) else f"the upstream ended its answer with the reason {raw!r}"
            )
            raise upstream_errors.refusal(failure, FAILURES.get(raw or ""))
        reason = REASONS.get(raw or "", "other")
        if reason in ("end", "other") and blocks.calls:
            reason = "tool_calls"
        self.end(reason, raw)
