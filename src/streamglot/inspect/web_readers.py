"""Reads the dialects of web pages, which streamglot otherwise only writes, so that they can be inspected.

One table serves both event vocabularies, because they share no names. Only blocks, results, usage and the end are read. This
reader is for display, never for forwarding a stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, get_args

import msgspec

from ..errors import StreamglotError, UpstreamTruncated, excerpt
from ..events import (
    CallKind,
    Event,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StepEnd,
    StopReason,
    StreamEnd,
    StreamError,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    Usage,
)
from ..framing import Frame, Sse
from ..json_types import JsonObject

_Fields = JsonObject
_REASONS: Final[dict[str, StopReason]] = {
    **{reason: reason for reason in get_args(StopReason)},
    "stop": "end",
    "success": "end",
    "interrupt": "pause",
    "tool-calls": "tool_calls",
    "content-filter": "content_filter",
}
_ENDS: Final[dict[str, Callable[[bool], Event]]] = {
    "text": lambda complete: TextEnd(complete=complete),
    "reasoning": lambda complete: ReasoningEnd(complete=complete),
    "call": lambda complete: ToolCallEnd(complete=complete),
}


class ClientReader:
    """Converts bytes to events, like the reader of any dialect."""

    def __init__(self) -> None:
        self._framing = Sse()
        self._out: list[Event] = []
        self._open = ""
        self._wrote = False
        self._steps = 0
        self._step_over = False
        self._started = self._done = False
        self._rules = {name: rule for names, rule in self._table() for name in names.split()}

    def feed(self, chunk: bytes) -> list[Event]:
        return self._events(self._framing.feed(chunk))

    def close(self) -> list[Event]:
        self._events_of(self._framing.close())
        if not self._done:
            self._fail(UpstreamTruncated("the stream ended before its last event").as_event())
        return self._taken()

    def _events(self, frames: list[Frame]) -> list[Event]:
        self._events_of(frames)
        return self._taken()

    def _events_of(self, frames: list[Frame]) -> None:
        for frame in frames:
            if frame.kind != "data" or self._done or frame.data.strip() in (b"", b"[DONE]"):
                continue
            try:
                fields = msgspec.json.decode(frame.data)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self._fail(StreamglotError(f"a frame is not JSON: {excerpt(frame.data)}", code="not_json").as_event())
                return
            rule = self._rules.get(str(fields.get("type"))) if isinstance(fields, dict) else None
            if rule is not None:
                rule(fields)

    def _taken(self) -> list[Event]:
        out, self._out = self._out, []
        return out

    # --- rules

    def _table(self) -> tuple[tuple[str, Callable[[_Fields], None]], ...]:
        return (
            ("RUN_STARTED start", self._start),
            ("STEP_STARTED start-step", self._start_step),
            ("STEP_FINISHED finish-step", self._end_step),
            ("TEXT_MESSAGE_START text-start", lambda fields: self._begin("text", TextStart(_flag(fields, "refusal")))),
            ("TEXT_MESSAGE_CONTENT TEXT_MESSAGE_CHUNK text-delta", self._text),
            ("TEXT_MESSAGE_END text-end", lambda fields: self._end("text")),
            (
                "REASONING_MESSAGE_START reasoning-start",
                lambda fields: self._begin("reasoning", ReasoningStart(_flag(fields, "summary"))),
            ),
            ("REASONING_MESSAGE_CONTENT REASONING_MESSAGE_CHUNK reasoning-delta", self._reasoning),
            ("REASONING_MESSAGE_END reasoning-end", lambda fields: self._end("reasoning")),
            ("TOOL_CALL_START tool-input-start", self._call),
            ("TOOL_CALL_ARGS TOOL_CALL_CHUNK tool-input-delta", self._arguments),
            ("TOOL_CALL_END", lambda fields: self._end("call", complete=_metadata(fields).get("complete") is not False)),
            ("tool-input-available", self._input),
            ("tool-input-error", lambda fields: self._end("call", complete=False)),
            ("TOOL_CALL_RESULT tool-output-available tool-output-error", self._result),
            ("RUN_FINISHED finish abort", self._finish),
            ("RUN_ERROR error", self._error),
        )

    def _start(self, fields: _Fields) -> None:
        if not self._started:
            self._started = True
            model = _metadata(fields).get("model")
            self._out.append(StreamStart(_text(fields, "runId", "messageId"), model if isinstance(model, str) else ""))

    def _start_step(self, fields: _Fields) -> None:
        self._start(fields)
        if self._step_over:
            self._step_over = False
            self._steps += 1
            self._out.append(StepEnd(self._steps))

    def _end_step(self, _fields: _Fields) -> None:
        self._end(self._open)
        self._step_over = True

    def _begin(self, kind: str, event: Event) -> None:
        self._start({})
        self._end(self._open)
        self._open, self._wrote = kind, False
        self._out.append(event)

    def _end(self, kind: str, complete: bool = True) -> None:
        if kind and self._open == kind:
            self._open = ""
            self._out.append(_ENDS[kind](complete))

    def _text(self, fields: _Fields) -> None:
        if self._open != "text":
            self._begin("text", TextStart())
        self._out.append(TextDelta(_text(fields, "delta")))

    def _reasoning(self, fields: _Fields) -> None:
        if self._open != "reasoning":
            self._begin("reasoning", ReasoningStart())
        self._out.append(ReasoningDelta(_text(fields, "delta")))

    def _call(self, fields: _Fields) -> None:
        metadata = _metadata(fields).get("kind")
        kind: CallKind = "custom" if metadata == "custom" or fields.get("inputEncoding") == "text" else "function"
        if metadata == "server" or fields.get("providerExecuted") is True:
            kind = "server"
        self._begin("call", ToolCallStart(_text(fields, "toolCallId"), _text(fields, "toolCallName", "toolName"), kind))

    def _arguments(self, fields: _Fields) -> None:
        if self._open == "call":
            self._wrote = True
            self._out.append(ToolCallDelta(_text(fields, "delta", "inputTextDelta")))

    def _input(self, fields: _Fields) -> None:
        if self._open != "call":
            self._call(fields)
        if not self._wrote:
            self._out.append(ToolCallDelta(msgspec.json.encode(fields.get("input")).decode()))
        self._end("call")

    def _result(self, fields: _Fields) -> None:
        self._start({})
        self._end(self._open)
        found = next((fields[name] for name in ("content", "output", "errorText") if name in fields), "")
        content = found if isinstance(found, str) else msgspec.json.encode(found).decode()
        is_error = fields["type"] == "tool-output-error" or _flag(fields, "isError")
        self._out.append(ToolResult(_text(fields, "toolCallId"), content, is_error))

    def _finish(self, fields: _Fields) -> None:
        self._start({})
        self._end(self._open)
        metadata = _metadata(fields)
        usage = fields.get("usage")
        counts = usage[0] if isinstance(usage, list) and usage else metadata.get("usage")
        if isinstance(counts, dict):
            names = ("inputTokens", "outputTokens", "cachedInputTokens", "cacheWriteInputTokens", "reasoningTokens")
            read, wrote, cached, stored, thought = (value if type(value := counts.get(name)) is int else None for name in names)
            self._out.append(Usage(read, wrote, cached, stored, thought))
        outcome = fields.get("outcome")
        word = metadata.get("finishReason") or fields.get("finishReason") or (outcome or {}).get("type")
        reason = "cancelled" if fields["type"] == "abort" else _REASONS.get(word, "other") if isinstance(word, str) else "other"
        self._done = True
        self._out.append(StreamEnd(reason, _text(metadata, "rawFinishReason") or None))

    def _error(self, fields: _Fields) -> None:
        self._fail(StreamError(_text(fields, "code") or "upstream_error", _text(fields, "message", "errorText")))

    def _fail(self, error: StreamError) -> None:
        self._end(self._open, complete=False)
        self._done = True
        self._out.append(error)


def _text(fields: _Fields, *names: str) -> str:
    return next((value for name in names if isinstance(value := fields.get(name), str)), "")


def _metadata(fields: _Fields) -> _Fields:
    found = fields.get("metadata") or fields.get("messageMetadata")
    return found if isinstance(found, dict) else {}


def _flag(fields: _Fields, name: str) -> bool:
    return _metadata(fields).get(name) is True
