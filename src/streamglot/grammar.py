"""The allowed order of events: one table, one checker, and its diagram for the docs.

``TABLE[state][event type]`` is the next state; what is not in the table is not allowed. Each choice above 0 has its own state,
which starts in IDLE because all choices share one StreamStart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .errors import GrammarError, excerpt
from .events import (
    Choice,
    Citation,
    Event,
    Extra,
    KeepAlive,
    Media,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StepEnd,
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

BEFORE: Final = "before"
IDLE: Final = "idle"
TEXT: Final = "text"
REASONING: Final = "reasoning"
TOOL_CALL: Final = "tool_call"
DONE: Final = "done"

ANYWHERE_INSIDE: Final = (Usage, KeepAlive, Extra)
"""Loose events that may stand inside a block as well as between two."""

_Table = dict[str, dict[type, str]]

TABLE: Final[_Table] = {
    BEFORE: {StreamStart: IDLE, KeepAlive: BEFORE, StreamError: DONE},
    IDLE: {
        TextStart: TEXT,
        ReasoningStart: REASONING,
        ToolCallStart: TOOL_CALL,
        **dict.fromkeys((ToolResult, Citation, Media, StepEnd, *ANYWHERE_INSIDE), IDLE),
        StreamEnd: DONE,
        StreamError: DONE,
    },
    TEXT: {**dict.fromkeys((TextDelta, Citation, Media, *ANYWHERE_INSIDE), TEXT), TextEnd: IDLE},
    REASONING: {**dict.fromkeys((ReasoningDelta, *ANYWHERE_INSIDE), REASONING), ReasoningEnd: IDLE},
    TOOL_CALL: {**dict.fromkeys((ToolCallDelta, *ANYWHERE_INSIDE), TOOL_CALL), ToolCallEnd: IDLE},
    DONE: {},
}


class Checker:
    """Raises GrammarError at the first event that the table does not allow."""

    def __init__(self) -> None:
        self._states: dict[int, str] = {0: BEFORE}

    def feed(self, event: Event) -> None:
        index = 0
        if type(event) is Choice:
            index, event = event.index, event.event
            if index < 1:
                raise GrammarError(f"a Choice wraps index {index}: events of choice 0 are not wrapped")
            if self._states[0] in (BEFORE, DONE):
                raise GrammarError(f"choice {index} has an event while the stream is {self._states[0]!r}: {excerpt(event)}")
            if isinstance(event, (StreamStart, StreamError)):
                raise GrammarError(f"choice {index} has {excerpt(event)}: it belongs to the whole stream")
        state = self._states.get(index, IDLE)
        following = TABLE[state].get(type(event))
        if following is None:
            raise GrammarError(f"choice {index}: {excerpt(event)} is not allowed in state {state!r}")
        if index == 0 and type(event) is StreamEnd:
            unfinished = [k for k, other in self._states.items() if k and other != DONE]
            if unfinished:
                raise GrammarError(f"the stream ended before its choices {unfinished}")
        self._states[index] = following

    def close(self) -> None:
        if self._states[0] != DONE:
            raise GrammarError(f"the events stopped in state {self._states[0]!r}: a stream ends in StreamEnd or StreamError")


def check(events: Iterable[Event]) -> None:
    """Checks that these ``events`` are one complete stream in a valid order. Gives nothing. Raises ``GrammarError`` at the first event that may
    not stand there."""
    checker = Checker()
    for event in events:
        checker.feed(event)
    checker.close()


def diagram() -> str:
    """The table as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", f"    [*] --> {BEFORE}"]
    for state, row in TABLE.items():
        arrows: dict[str, list[str]] = {}
        for event, following in row.items():
            arrows.setdefault(following, []).append(event.__name__)
        lines += [f"    {state} --> {following}: {', '.join(names)}" for following, names in arrows.items()]
    return "\n".join([*lines, f"    {DONE} --> [*]", ""])
