"""Events of the tests of the Messages writer, and their bytes."""

from __future__ import annotations

from typing import Any

from streamglot.dialects.anthropic.write import AnthropicWriter
from vocabulary import *

START = StreamStart("msg_1", "m")
BROKEN = StreamError("upstream_truncated", "cut")


def call(*pieces: str, call_id: str = "toolu_1", kind: Any = "function", end: ToolCallEnd | None = None) -> list[Event]:
    return [ToolCallStart(call_id, "look", kind), *map(ToolCallDelta, pieces), end or ToolCallEnd()]


def text(*pieces: str) -> list[Event]:
    return [TextStart(), *map(TextDelta, pieces), TextEnd()]


def write(*events: Event, strict: bool = False) -> tuple[bytes, AnthropicWriter]:
    made = AnthropicWriter(strict=strict)
    return made.feed(events) + made.close(), made
