"""Stops an answer when the budget of its key is used up."""

from __future__ import annotations

from ...events import (
    BareEvent,
    Choice,
    Event,
    ReasoningEnd,
    ReasoningStart,
    StreamEnd,
    StreamError,
    TextEnd,
    TextStart,
    ToolCallEnd,
    ToolCallStart,
)
from ...stages.stage import ExchangeContext, Output, Stage, StageFactory
from .authenticator import Caller
from .budgets import Reservation

_BROKEN_END: dict[type, BareEvent] = {
    TextStart: TextEnd(complete=False),
    ReasoningStart: ReasoningEnd(complete=False),
    ToolCallStart: ToolCallEnd(complete=False),
}
_ENDS = (TextEnd, ReasoningEnd, ToolCallEnd)


def budget_stage(reservation: Reservation, caller: Caller, *, whole: bool) -> StageFactory:
    """Returns the factory of the stage. ``whole``: the answer is not streamed, so an answer that is complete is delivered even if
    it exceeds the budget, because it is already paid for."""
    return lambda context: BudgetStage(reservation, caller, context, whole)


class BudgetStage(Stage):
    """Counts what the upstream sends.

    The error follows the event that uses up the budget, however the stream is cut into reads.
    """

    def __init__(self, reservation: Reservation, caller: Caller, context: ExchangeContext, whole: bool) -> None:
        self._reservation = reservation
        self._caller = caller
        self._context = context
        self._whole = whole
        self._open: dict[int, type] = {}
        self._over = False

    def feed(self, events: list[Event]) -> list[Output]:
        if self._over:
            return []
        number = self._reservation.count(events)
        if number is None or (self._whole and isinstance(events[-1], (StreamEnd, StreamError))):
            self._follow(events)
            return list(events)
        self._over = True
        kept = events[:number]
        self._follow(kept)
        if isinstance(kept[-1], (StreamEnd, StreamError)):
            return list(kept)
        error = self._caller.budget_exceeded().as_event()
        return [*kept, *self._close_blocks(), error]

    def _follow(self, events: list[Event]) -> None:
        """Remembers the open block of each choice."""
        for event in events:
            index, bare = (event.index, event.event) if type(event) is Choice else (0, event)
            if type(bare) in _BROKEN_END:
                self._open[index] = type(bare)
            elif isinstance(bare, _ENDS):
                self._open.pop(index, None)

    def _close_blocks(self) -> list[Event]:
        broken = [(index, _BROKEN_END[kind]) for index, kind in sorted(self._open.items(), reverse=True)]
        return [Choice(index, event) if index else event for index, event in broken]
