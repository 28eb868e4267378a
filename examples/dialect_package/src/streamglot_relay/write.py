"""Events to lines, and a whole answer."""

from __future__ import annotations

from typing import Any

import msgspec

from streamglot import (
    ReasoningDelta,
    Response,
    StreamEnd,
    StreamError,
    StreamStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
    Writer,
)

from .wire import DIALECT, STOPS, error_body


class RelayWriter(Writer):
    dialect = DIALECT
    folded = {"TextStart": "the first delta starts it", "TextEnd": "no word for it", "ToolCallEnd": "no word for it"}

    def rules(self) -> dict[type, Any]:
        return {
            StreamStart: self.begin,
            TextStart: lambda event: None,
            TextDelta: lambda event: self.line(say=event.text),
            TextEnd: lambda event: None,
            ReasoningDelta: lambda event: self.line(think=event.text),
            ToolCallStart: lambda event: self.line(tool=event.name, call=event.call_id),
            ToolCallDelta: lambda event: self.line(args=event.args),
            ToolCallEnd: lambda event: None,
            Usage: self.keep_usage,
            StreamEnd: self.feed_end,
            StreamError: self.feed_end,
        }

    def line(self, **fields: object) -> None:
        self.pieces.append(msgspec.json.encode(fields) + b"\n")

    def write_start(self) -> None:
        self.line(id=self.id)

    def write_end(self, event: StreamEnd) -> None:
        used = self.usage or Usage()
        self.line(stop=STOPS.get(event.reason, "done"), tokens=[used.input_tokens or 0, used.output_tokens or 0])

    def write_error(self, event: StreamError) -> None:
        self.line(**error_body(event))


def build_response(response: Response, *, strict: bool = False) -> dict[str, Any]:
    """One line with everything in it."""
    return {
        "id": response.id,
        "think": response.reasoning,
        "say": response.text,
        "calls": [{"tool": call.name, "call": call.call_id, "args": call.arguments} for call in response.tool_calls],
        "stop": STOPS.get(response.stop_reason or "other", "done"),
        "tokens": [response.usage.input_tokens or 0, response.usage.output_tokens or 0],
    }
