"""The bars of a waterfall: blocks of the answer, attempts and waits, each with its beginning and end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from ..events import (
    BareEvent,
    Choice,
    Event,
    Media,
    ReasoningEnd,
    ReasoningStart,
    StepEnd,
    StreamEnd,
    StreamError,
    TextEnd,
    TextStart,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
)
from ..json_types import JsonObject, JsonValue
from ..text import one_line

MAX_BARS: Final = 20_000
"""Bars of one stream: as many as a stream may have blocks."""
LABEL_CHARS: Final = 120
"""Characters of the label of a bar: more than fits beside it."""
_STARTS: Final = {TextStart: "text", ReasoningStart: "reasoning", ToolCallStart: "call"}
_ENDS: Final = (TextEnd, ReasoningEnd, ToolCallEnd)
_STARTS_BY_NAME: Final = {kind.__name__: name for kind, name in _STARTS.items()}
_ENDS_BY_NAME: Final = frozenset(kind.__name__ for kind in _ENDS)


class Bar(Struct, omit_defaults=True):
    """``begin`` and ``end`` are seconds. ``first`` and ``last`` are the numbers of its events, -1 if it has none."""

    kind: str
    begin: float
    end: float
    label: str = ""
    first: int = -1
    last: int = -1
    choice: int = 0
    step: int = 0
    open: bool = False
    broken: bool = False
    note: str = ""


class Bars:
    """Collects bars from events. ``changed`` is the first bar that is new or different since ``taken``."""

    def __init__(self) -> None:
        self.bars: list[Bar] = []
        self.step = 0
        self._open: dict[int, int] = {}
        self._changed = 0

    def feed(self, event: Event, at: float, row: int) -> None:
        choice, bare = (event.index, event.event) if isinstance(event, Choice) else (0, event)
        kind = _STARTS.get(type(bare))
        if kind is not None:
            self._end(choice, at, row - 1, broken=True)
            self._open[choice] = len(self.bars)
            self.add(Bar(kind, at, at, _label(bare), row, row, choice, self.step, open=True))
        elif isinstance(bare, _ENDS):
            self._end(choice, at, row, broken=not bare.complete)
        elif isinstance(bare, ToolResult):
            self.add(Bar("result", at, at, bare.call_id[:LABEL_CHARS], row, row, choice, self.step, broken=bare.is_error))
        elif isinstance(bare, Media):
            self.add(Bar("media", at, at, bare.mime[:LABEL_CHARS], row, row, choice, self.step))
        elif isinstance(bare, StepEnd):
            self.step += 1
        elif isinstance(bare, (StreamEnd, StreamError)):
            self._end(choice, at, row, broken=True)
            if isinstance(bare, StreamError):
                self.add(Bar("error", at, at, one_line(bare.code)[:LABEL_CHARS], row, row, choice, self.step, broken=True))
        elif choice in self._open:
            bar = self.bars[self._open[choice]]
            bar.end, bar.last = at, row
            self._changed = min(self._changed, self._open[choice])

    def add(self, bar: Bar) -> None:
        if len(self.bars) < MAX_BARS:
            self.bars.append(bar)

    def taken(self) -> JsonObject:
        """The bars that are new or different since the last call, and the number of the first of them."""
        first = min(self._changed, len(self.bars))
        self._changed = min([len(self.bars), *self._open.values()])
        return {"first": first, "bars": self.bars[first:]}

    def _end(self, choice: int, at: float, row: int, broken: bool) -> None:
        number = self._open.pop(choice, None)
        if number is not None and number < len(self.bars):
            bar = self.bars[number]
            bar.end, bar.last, bar.open, bar.broken = at, max(row, bar.first), False, broken
            self._changed = min(self._changed, number)


def _label(event: BareEvent) -> str:
    return one_line(event.name)[:LABEL_CHARS] if isinstance(event, ToolCallStart) else ""


def bars_of_marks(marks: Iterable[tuple[float, str]], offset: float) -> list[Bar]:
    """The blocks of a turn whose events are not stored, from the times that every turn has."""
    bars: list[Bar] = []
    step, is_open = 0, False
    for at, name in marks:
        when = max(0.0, at + offset)
        if name in _STARTS_BY_NAME:
            bars.append(Bar(_STARTS_BY_NAME[name], when, when, step=step))
            is_open = True
        elif name in _ENDS_BY_NAME and is_open:
            bars[-1].end, is_open = when, False
        elif name == "StepEnd":
            step += 1
        elif name == "ToolResult":
            bars.append(Bar("result", when, when, step=step))
            is_open = False
    return bars


def bars_of_facts(timings: Mapping[str, JsonValue]) -> list[Bar]:
    """Waits for judges, people and tools, and failed attempts, from a turn's timings."""
    offset = timings.get("offset", 0.0)
    bars = [
        Bar(
            wait["kind"],
            max(0.0, wait["at"] + offset),
            wait["at"] + offset + wait["seconds"],
            one_line(wait["label"])[:LABEL_CHARS],
        )
        for wait in timings.get("waits", ())
    ]
    for failure in timings.get("failures", ()):
        begin = max(0.0, failure["at"] + offset)
        label = one_line(f"{failure['upstream']} {failure['status']} {failure['code']}")[:LABEL_CHARS]
        bars.append(Bar("failed", begin, begin + failure["seconds"], label, broken=True, note=failure["message"]))
    return bars
