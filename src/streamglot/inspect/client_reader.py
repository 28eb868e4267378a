"""Reads streams of dialects that are made for web pages, which streamglot otherwise only writes, so that they can be looked into.

Both vocabularies of such events are read by one table, since they share no name. What they carry beside blocks, results, usage and
the end is left out: this reader is for showing a stream, and never for passing it on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, get_args

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

_Fields = dict[str, Any]
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
    """A box from bytes to events, like the reader of any dialect."""

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
                said = msgspec.json.decode(frame.data)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self._fail(StreamglotError(f"a frame is no JSON: {excerpt(frame.data)}", code="not_json").as_event())
                return
            rule = self._rules.get(str(said.get("type"))) if isinstance(said, dict) else None
            if rule is not None:
                rule(said)

    def _taken(self) -> list[Event]:
        out, self._out = self._out, []
        return out

    # --- rules

    def _table(self) -> tuple[tuple[str, Callable[[_Fields], None]], ...]:
        return (
            ("RUN_STARTED start", self._start),
            ("STEP_STARTED start-step", self._start_step),
            ("STEP_FINISHED finish-step", self._end_step),
            ("TEXT_MESSAGE_START text-start", lambda said: self._begin("text", TextStart(_flag(said, "refusal")))),
            ("TEXT_MESSAGE_CONTENT TEXT_MESSAGE_CHUNK text-delta", self._text),
            ("TEXT_MESSAGE_END text-end", lambda said: self._end("text")),
            (
                "REASONING_MESSAGE_START reasoning-start",
                lambda said: self._begin("reasoning", ReasoningStart(_flag(said, "summary"))),
            ),
            ("REASONING_MESSAGE_CONTENT REASONING_MESSAGE_CHUNK reasoning-delta", self._reasoning),
            ("REASONING_MESSAGE_END reasoning-end", lambda said: self._end("reasoning")),
            ("TOOL_CALL_START tool-input-start", self._call),
            ("TOOL_CALL_ARGS TOOL_CALL_CHUNK tool-input-delta", self._arguments),
            ("TOOL_CALL_END", lambda said: self._end("call", complete=_metadata(said).get("complete") is not False)),
            ("tool-input-available", self._input),
            ("tool-input-error", lambda said: self._end("call", complete=False)),
            ("TOOL_CALL_RESULT tool-output-available tool-output-error", self._result),
            ("RUN_FINISHED finish abort", self._finish),
            ("RUN_ERROR error", self._error),
        )

    def _start(self, said: _Fields) -> None:
        if not self._started:
            self._started = True
            model = _metadata(said).get("model")
            self._out.append(StreamStart(_text(said, "runId", "messageId"), model if isinstance(model, str) else ""))

    def _start_step(self, said: _Fields) -> None:
        self._start(said)
        if self._step_over:
            self._step_over = False
            self._steps += 1
            self._out.append(StepEnd(self._steps))

    def _end_step(self, _said: _Fields) -> None:
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

    def _text(self, said: _Fields) -> None:
        if self._open != "text":
            self._begin("text", TextStart())
        self._out.append(TextDelta(_text(said, "delta")))

    def _reasoning(self, said: _Fields) -> None:
        if self._open != "reasoning":
            self._begin("reasoning", ReasoningStart())
        self._out.append(ReasoningDelta(_text(said, "delta")))

    def _call(self, said: _Fields) -> None:
        metadata = _metadata(said).get("kind")
        kind: CallKind = "custom" if metadata == "custom" or said.get("inputEncoding") == "text" else "function"
        if metadata == "server" or said.get("providerExecuted") is True:
            kind = "server"
        self._begin("call", ToolCallStart(_text(said, "toolCallId"), _text(said, "toolCallName", "toolName"), kind))

    def _arguments(self, said: _Fields) -> None:
        if self._open == "call":
            self._wrote = True
            self._out.append(ToolCallDelta(_text(said, "delta", "inputTextDelta")))

    def _input(self, said: _Fields) -> None:
        if self._open != "call":
            self._call(said)
        if not self._wrote:
            self._out.append(ToolCallDelta(msgspec.json.encode(said.get("input")).decode()))
        self._end("call")

    def _result(self, said: _Fields) -> None:
        self._start({})
        self._end(self._open)
        found = next((said[name] for name in ("content", "output", "errorText") if name in said), "")
        content = found if isinstance(found, str) else msgspec.json.encode(found).decode()
        is_error = said["type"] == "tool-output-error" or _flag(said, "isError")
        self._out.append(ToolResult(_text(said, "toolCallId"), content, is_error))

    def _finish(self, said: _Fields) -> None:
        self._start({})
        self._end(self._open)
        metadata = _metadata(said)
        usage = said.get("usage")
        counts = usage[0] if isinstance(usage, list) and usage else metadata.get("usage")
        if isinstance(counts, dict):
            names = ("inputTokens", "outputTokens", "cachedInputTokens", "cacheWriteInputTokens", "reasoningTokens")
            read, wrote, cached, stored, thought = (value if type(value := counts.get(name)) is int else None for name in names)
            self._out.append(Usage(read, wrote, cached, stored, thought))
        outcome = said.get("outcome")
        word = metadata.get("finishReason") or said.get("finishReason") or (outcome or {}).get("type")
        reason = "cancelled" if said["type"] == "abort" else _REASONS.get(word, "other") if isinstance(word, str) else "other"
        self._done = True
        self._out.append(StreamEnd(reason, _text(metadata, "rawFinishReason") or None))

    def _error(self, said: _Fields) -> None:
        self._fail(StreamError(_text(said, "code") or "upstream_error", _text(said, "message", "errorText")))

    def _fail(self, error: StreamError) -> None:
        self._end(self._open, complete=False)
        self._done = True
        self._out.append(error)


def _text(said: _Fields, *names: str) -> str:
    return next((value for name in names if isinstance(value := said.get(name), str)), "")


def _metadata(said: _Fields) -> _Fields:
    found = said.get("metadata") or said.get("messageMetadata")
    return found if isinstance(found, dict) else {}


def _flag(said: _Fields, name: str) -> bool:
    return _metadata(said).get(name) is True
