"""The structs and tables of the wire."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, json

from streamglot import StreamError
from streamglot.events import StopReason

DIALECT = "relay"


class Call(Struct):
    tool: str = ""
    call: str = ""
    args: str = ""


class Line(Struct):
    """Only the fields that are read. A whole answer is one line with everything in it, its calls in ``calls``."""

    id: str = ""
    say: str = ""
    think: str = ""
    tool: str = ""
    call: str = ""
    args: str = ""
    calls: list[Call] = []
    stop: str = ""
    tokens: list[int] = []
    error: dict[str, Any] | None = None


line_decoder = json.Decoder(Line)
REASONS: dict[str, StopReason] = {"done": "end", "full": "length", "tools": "tool_calls"}
STOPS = {reason: stop for stop, reason in REASONS.items()}


def error_body(error: StreamError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": error.message}}
