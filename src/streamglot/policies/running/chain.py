"""Runs the policies on one choice in order: each one sees what the one before it releases."""

from __future__ import annotations

from collections.abc import Callable

from ...events import BareEvent, StreamEnd
from ...messages import Request
from ...stages.stage import ExchangeContext, Question
from ..pieces import Piece
from ..verdicts import Refuse, Retry
from .blocks import text_block
from .filter import BlockFilter
from .judging import Judging
from .members import Member
from .records import Recorder
from .whole_answer import AnswerFilter


class Chain:
    """``ask`` takes questions together with the place in the chain that asked. ``done``: this choice has ended, or is asked for
    again."""

    def __init__(
        self,
        members: tuple[Member, ...],
        exchange: ExchangeContext,
        request: Request | None,
        choice: int,
        recorder: Recorder,
        ask: Callable[[Question, Chain, int], None],
        may_retry: Callable[[], bool],
    ) -> None:
        self._members = members
        self._exchange = exchange
        self._request = request
        self._choice = choice
        self._recorder = recorder
        self._ask = ask
        self._may_retry = may_retry
        self._filters = [self._filter(place) for place in range(len(members))]
        self.done = False
        self.retry: Retry | None = None
        self._retried_by = 0

    @property
    def held(self) -> list[str]:
        """The text that each policy holds of the open block."""
        return [filter.held for filter in self._filters]

    @property
    def released_text(self) -> str:
        """The text that was released by the policy that asks for a retry."""
        return self._filters[self._retried_by].release.released_text

    def feed(self, events: list[BareEvent]) -> list[BareEvent]:
        return self._through(0, events)

    def answer(self, place: int, question: Question, reply: object) -> list[BareEvent]:
        filter = self._filters[place]
        released = filter.answer(question, reply)
        if self._members[place].shadow or self.done:
            return []
        self._note_retry(place)
        return self._through(place + 1, released) if released else []

    def restart(self) -> None:
        """A new model turn begins: the policies up to the one that asked for it start again."""
        for place in range(self._retried_by + 1):
            self._filters[place] = self._filter(place)
        self.done, self.retry = False, None

    def cut(self) -> list[BareEvent]:
        """Closes the block that is open in the output of this choice, and releases nothing more."""
        self.done = True
        for filter, member in zip(reversed(self._filters), reversed(self._members), strict=True):
            if not member.shadow:
                filter.release.stop()
                return filter.release.taken()
        return []

    def give_up(self, reason: str) -> list[BareEvent]:
        """The retry failed: the answer is refused with the message of the policy that asked for it."""
        message = self.retry.message if self.retry is not None else ""
        refused = Refuse(message=message, reason=reason)
        self._recorder.record(
            self._members[self._retried_by].policy, Piece("answer", unit="answer"), refused, choice=self._choice
        )
        self.done = False
        released = self._through(self._retried_by + 1, [*text_block(message), StreamEnd("content_filter")])
        self.done = True
        return released

    def _through(self, place: int, events: list[BareEvent]) -> list[BareEvent]:
        for each in range(place, len(self._filters)):
            if not events:
                return []
            released = self._filters[each].feed(events)
            if not self._members[each].shadow:
                events = released
                self._note_retry(each)
        return events

    def _note_retry(self, place: int) -> None:
        retry = self._filters[place].release.retry
        if retry is not None and self.retry is None:
            self.retry, self._retried_by, self.done = retry, place, True

    def _filter(self, place: int) -> BlockFilter | AnswerFilter:
        member = self._members[place]
        context = member.context(self._exchange, self._request, self._choice)
        judging = Judging(member, context, self._recorder, lambda question: self._ask(question, self, place))
        may_retry = (lambda: False) if member.shadow else self._may_retry
        return AnswerFilter(judging, may_retry) if member.needs.whole else BlockFilter(judging, may_retry)
