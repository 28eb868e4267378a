"""The runs of tools as activity, for a client that asked to see them and whose dialect has no form for them.

"extensions" reports each call (start, arguments, end) and each result in the field ``extensions`` of a chunk, as a whole answer
does. "reasoning" writes them as reasoning text.
"""

from __future__ import annotations

from typing import Final

from ..dialects import DIALECTS
from ..events import Event, Extra, ReasoningDelta, ReasoningEnd, ReasoningStart, ToolResult
from ..json_types import JsonObject
from ..stages.collect import result_chunk
from ..stages.stage import ExchangeContext
from .questions import TurnCall
from .tool import ToolOutput

EXTENSIONS: Final = "extensions"
REASONING: Final = "reasoning"
KINDS: Final = (EXTENSIONS, REASONING)
SHOWN_CHARS: Final = 200
"""Characters of arguments and results in reasoning text: enough for a person to see what happens."""


class Activity:
    """``streamed``: a whole answer collects its extensions itself."""

    def __init__(self, context: ExchangeContext, streamed: bool) -> None:
        known = DIALECTS.get(context.endpoint)
        shown = streamed and known is not None and known.activity
        self._kind = context.activity if shown or context.activity == REASONING else ""
        self._dialect = context.endpoint

    def started(self, call: TurnCall) -> list[Event]:
        if self._kind == EXTENSIONS:
            of_call = {"tool_call_id": call.call_id}
            chunks: list[JsonObject] = [{"type": "start", **of_call, "tool_name": call.name}]
            chunks += [{"type": "args", **of_call, "delta": call.arguments}, {"type": "end", **of_call}]
            return [self._extra(chunks)]
        if self._kind == REASONING:
            return _words(f"Running {call.name}({_cut(call.arguments)})\n")
        return []

    def ended(self, call: TurnCall, output: ToolOutput) -> list[Event]:
        """A call that was not run has no activity: its result says why."""
        if not call.began:
            return []
        if self._kind == EXTENSIONS:
            return [self._extra([result_chunk(ToolResult(call.call_id, output.text, output.is_error))])]
        if self._kind == REASONING:
            return _words(f"{call.name} {'failed' if output.is_error else 'answered'}: {_cut(output.text)}\n")
        return []

    def _extra(self, chunks: list[JsonObject]) -> Event:
        return Extra(self._dialect, {EXTENSIONS: {"tool_call_chunks": chunks}})


def _words(text: str) -> list[Event]:
    return [ReasoningStart(), ReasoningDelta(text), ReasoningEnd()]


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}…"
