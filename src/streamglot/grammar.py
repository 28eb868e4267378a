"""The allowed order of events: one table, one checker, its diagram for the docs, and what is open in a stream.

``TABLE[state][event type]`` is the next state; what is not in the table is not allowed. Each choice above 0 has its own state,
which starts in IDLE because all choices share one StreamStart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from .errors import GrammarError, excerpt
from .events import (
    BareEvent,
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


BlockStart: TypeAlias = TextStart | ReasoningStart | ToolCallStart
_STARTS: Final = frozenset((TextStart, ReasoningStart, ToolCallStart))
_ENDS: Final = frozenset((TextEnd, ReasoningEnd, ToolCallEnd))
_CUT: Final[dict[type, BareEvent]] = {
    TextStart: TextEnd(complete=False),
    ReasoningStart: ReasoningEnd(complete=False),
    ToolCallStart: ToolCallEnd(complete=False),
}
"""How a block ends that broke off."""
_ENDED: Final[dict[type, BareEvent]] = {**_CUT, TextStart: TextEnd(), ReasoningStart: ReasoningEnd()}
"""How a block ends that somebody ended: what there is of a text is whole. A call that is cut off is never run."""
_OPENS_OR_CLOSES: Final = frozenset((*_STARTS, *_ENDS, Choice))


class OpenBlocks:
    """What is open in a stream: ``starts`` has the start of the block that each choice is in.

    It follows events that keep the order above. One block of a choice is open at a time.
    """

    __slots__ = ("starts",)

    def __init__(self) -> None:
        self.starts: dict[int, BlockStart] = {}

    def __bool__(self) -> bool:
        """Whether a block is open."""
        return bool(self.starts)

    def feed(self, events: Iterable[Event]) -> None:
        """Follows the events of one read."""
        if _OPENS_OR_CLOSES.isdisjoint(map(type, events)):  # the usual case: a read of a long text
            return
        for event in events:
            if type(event) is Choice:
                self.follow(event.event, event.index)
            else:
                self.follow(event)  # type: ignore[arg-type]  # no choice

    def follow(self, event: BareEvent, choice: int = 0) -> None:
        """Follows one event of a choice."""
        if type(event) in _STARTS:
            self.starts[choice] = event  # type: ignore[assignment]  # a start
        elif type(event) in _ENDS:
            self.starts.pop(choice, None)

    def close(self, *, broken: bool = True) -> list[Event]:
        """The events that close what is open. Choice 0, which ends last, is closed last. ``broken`` is False if somebody ends the
        blocks on purpose."""
        ends = _CUT if broken else _ENDED
        closing = [(choice, ends[type(start)]) for choice, start in sorted(self.starts.items(), reverse=True)]
        self.starts.clear()
        return [Choice(choice, event) if choice else event for choice, event in closing]


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
