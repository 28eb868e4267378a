"""Stops an answer when the budget of its key is used up."""

from __future__ import annotations

from ...events import Event, StreamEnd, StreamError
from ...grammar import OpenBlocks
from ...stages.stage import ExchangeContext, Output, Stage, StageFactory
from .authenticator import Caller
from .budgets import Reservation


def budget_stage(reservation: Reservation, caller: Caller, *, whole: bool) -> StageFactory:
    """The factory of the stage. ``whole``: the answer is not streamed, so an answer that is complete is delivered even if it
    exceeds the budget, because it is already paid for."""
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
        self._open = OpenBlocks()
        self._over = False

    def feed(self, events: list[Event]) -> list[Output]:
        if self._over:
            return []
        number = self._reservation.count(events)
        if number is None or (self._whole and isinstance(events[-1], (StreamEnd, StreamError))):
            self._open.feed(events)
            return list(events)
        self._over = True
        kept = events[:number]
        self._open.feed(kept)
        if isinstance(kept[-1], (StreamEnd, StreamError)):
            return list(kept)
        error = self._caller.budget_exceeded().as_event()
        return [*kept, *self._open.close(), error]
