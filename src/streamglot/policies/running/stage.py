"""The stage of the engine that runs policies: on the request before an upstream is chosen, on the events of the answer, and on
the results of tools that a later stage ran.

Each choice of an answer has a chain, which runs the policies in order: each one sees what the one before it releases. Choice 0
ends last, because its end is the end of the stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from msgspec import structs

from ...errors import FOREIGN_ERRORS, foreign_exception
from ...events import BareEvent, Choice, Event, KeepAlive, StreamEnd, StreamError, StreamStart, Usage, as_list
from ...messages import Message, Request, TextPart, ToolResultPart
from ...stages.stage import ExchangeContext, NextRequest, Output, Question, QuestionGenerator, Reply, Stage, StageFactory
from ..pieces import Piece
from ..policy import Policy
from ..verdicts import Refuse, Retry
from .facts import Recorder
from .filter import AnswerFilter, BlockFilter
from .judging import Judging
from .members import Member, prepare
from .release import text_block
from .requests import KIND, checked, checked_result

_ENDS = (StreamEnd, StreamError)
_LATER = "policies_later"
"""The subject in the exchange's state with questions of dry runs that no stage has asked yet."""


def policy_stage(policies: Iterable[Policy], *, clock: Callable[[], float] = time.monotonic) -> StageFactory:
    """The factory of the stage: None for an exchange to which no policy applies. The policies are prepared once, here."""
    members = prepare(policies)
    for_answers = [each for each in members if each.sees_answers]
    for_requests = [each for each in members if each.sees_requests]
    for_results = tuple([each for each in members if KIND in each.needs.request or KIND in each.needs.answer])

    def build(context: ExchangeContext) -> Stage | None:
        on_answer = tuple([each for each in for_answers if not each.conditions or each.applies(context, "answer")])
        on_request = tuple([each for each in for_requests if not each.conditions or each.applies(context, "request")])
        return PolicyStage(on_request, on_answer, context, clock, for_results) if on_answer or on_request else None

    return build


class PolicyStage(Stage):
    """One model turn of one exchange. A retry is a second turn of the same instance."""

    def __init__(
        self,
        on_request: tuple[Member, ...],
        on_answer: tuple[Member, ...],
        context: ExchangeContext,
        clock: Callable[[], float] = time.monotonic,
        for_results: tuple[Member, ...] = (),
    ) -> None:
        self._on_request = on_request
        self._on_answer = on_answer
        self._for_results = for_results
        self._context = context
        self._recorder = Recorder(context, clock)
        self._request: Request | None = None
        self._chains: dict[int, Chain] = {}
        self._places: dict[Question, tuple[Chain, int]] = {}
        self._questions: list[Question] = []
        # Questions of dry runs about the request, and about results of the turn before.
        self._later: dict[Question, Judging] = context.state.setdefault(_LATER, {})
        self._asked_later: dict[Question, Judging] = {}
        self._start: StreamStart | None = None
        self._end: StreamEnd | StreamError | None = None  # the end of the stream, until all choices are done
        self._ended: set[int] = set()
        self._retried = False
        self._retrying = False  # the upstream is being asked again
        self._usage: Usage | None = None  # of the current model turn
        self._usage_before: Usage | None = None  # of the turn before a retry
        self._done = not on_answer

    # --- the stage

    def request(self, request: Request) -> Request | QuestionGenerator[Request]:
        steps = checked(request, self._on_request, self._context, self._recorder, self._later)
        try:
            question = next(steps)
        except StopIteration as finished:
            self._request = finished.value
            return self._request
        return self._resumed(steps, question)

    def tool_result(self, result: ToolResultPart) -> QuestionGenerator[ToolResultPart]:
        return checked_result(result, self._for_results, self._context, self._request, self._recorder, self._later)

    def check_request(self, request: Request, resolve: Callable[[Question], Reply]) -> Request:
        """The request after the policies, with ``resolve`` in place of the engine."""
        steps = self.request(request)
        if isinstance(steps, Request):
            return steps
        try:
            question = next(steps)
            while True:
                try:
                    reply = resolve(question)
                except FOREIGN_ERRORS as error:
                    reply = foreign_exception(error)
                question = steps.send(reply)
        except StopIteration as finished:
            changed: Request = finished.value
            return changed

    def feed(self, events: Iterable[Event] | Event) -> list[Output]:
        events = as_list(events)
        if not events:
            return []
        if self._later:
            self._questions += self._later
            self._asked_later.update(self._later)
            self._later.clear()
        if not self._on_answer:
            return self._with_questions(events)
        chain = self._chains.get(0) or self._chain(0)
        if self._retrying and type(events[0]) is StreamError:
            return self._not_retried(events[0].message)
        kinds = set(map(type, events))
        if Usage in kinds:
            events = self._counted(events)
        if StreamStart in kinds:
            events = self._started(events)
            if not events:
                return []
        if len(self._chains) == 1 and Choice not in kinds:
            if chain.done:
                return []
            released = chain.feed(events)  # type: ignore[arg-type]  # there is no Choice among them
            if chain.retry is not None and not self._retried:
                return self._retry(chain, released)
            if self._questions:
                return self._with_questions(released)
            return released  # type: ignore[return-value]  # events are outputs
        return self._feed_choices(events)

    def answer(self, question: Question, reply: object) -> list[Output]:
        if isinstance(question, NextRequest):
            return self._not_retried(str(reply))
        chain, place = self._places.pop(question, (None, 0))
        if chain is None:
            watching = self._asked_later.pop(question, None)
            if watching is not None:
                watching.settle(question, reply)
            return []
        released = chain.answer(place, question, reply)
        if chain.retry is not None and not self._retried:
            return self._retry(chain, released)
        if len(self._chains) == 1:
            return self._with_questions(released)
        return self._with_questions(self._wrapped(self._index(chain), released))

    @property
    def held(self) -> dict[int, list[str]]:
        """The text that policies hold, by choice."""
        return {index: chain.held for index, chain in self._chains.items()}

    # --- several choices

    def _feed_choices(self, events: list[Event]) -> list[Output]:
        out: list[Event] = []
        for event in events:
            if isinstance(event, Choice):
                chain = self._chains.get(event.index) or self._chain(event.index)
                out += self._wrapped(event.index, chain.feed([event.event]))
            elif isinstance(event, StreamError):
                for index in sorted(self._chains, reverse=True):
                    out += self._wrapped(index, self._chains[index].feed([event]))
            else:
                out += self._wrapped(0, self._chains[0].feed([event]))
        return self._with_questions(out)

    def _wrapped(self, index: int, released: list[BareEvent]) -> list[Event]:
        """The events of one choice as the stream has them; the end of the stream waits for all choices."""
        if self._done:
            return []
        out: list[Event] = []
        for event in released:
            if isinstance(event, StreamError) and event.origin == "policy":
                self._done = True
                return [*out, *self._closed(index), event]
            if isinstance(event, _ENDS):
                self._ended.add(index)
                if index == 0:
                    self._end = event
                elif isinstance(event, StreamEnd):
                    out.append(Choice(index, event))
            elif index == 0:
                out.append(event)
            elif not isinstance(event, (StreamStart, KeepAlive)):
                out.append(Choice(index, event))
        if self._end is not None and self._ended >= self._chains.keys():
            self._done = True
            out.append(self._end)
        return out

    def _closed(self, index: int) -> list[Event]:
        """The end of the block that is open in choice 0, where another choice ends the stream."""
        return [] if index == 0 else list(self._chains[0].cut())

    def _index(self, chain: Chain) -> int:
        return next(index for index, each in self._chains.items() if each is chain)

    # --- turns

    def _chain(self, index: int) -> Chain:
        chain = self._chains[index] = Chain(
            self._on_answer, self._context, self._request, index, self._recorder, self._ask, self._may_retry
        )
        if self._start is not None and index:
            chain.feed([self._start])
        return chain

    def _ask(self, question: Question, chain: Chain, place: int) -> None:
        self._places[question] = chain, place
        self._questions.append(question)

    def _with_questions(self, released: Iterable[Event]) -> list[Output]:
        questions, self._questions = self._questions, []
        return [*released, *questions]

    def _started(self, events: list[Event]) -> list[Event]:
        """A second start belongs to a second turn: the client has seen the first."""
        if self._start is None:
            self._start = next(event for event in events if isinstance(event, StreamStart))
            return events
        self._retrying = False
        self._chains[0].restart()
        return [event for event in events if not isinstance(event, StreamStart)]

    def _counted(self, events: list[Event]) -> list[Event]:
        """The events with the usage of both model turns after a retry, because both were used for one answer."""
        self._usage = next(event for event in reversed(events) if isinstance(event, Usage))
        before = self._usage_before
        if before is None:
            return events
        return [before.plus(event) if isinstance(event, Usage) else event for event in events]

    def _may_retry(self) -> bool:
        return self._request is not None and not self._retried and len(self._chains) == 1

    def _retry(self, chain: Chain, released: list[BareEvent]) -> list[Output]:
        self._retried = self._retrying = True
        retry, request = chain.retry, self._request
        assert retry is not None
        assert request is not None
        released_text = [Message("assistant", [TextPart(chain.released_text)])] if chain.released_text else []
        messages = [*request.messages, *released_text, Message("user", [TextPart(retry.instruction)])]
        self._places.clear()
        self._questions.clear()
        self._usage_before = self._usage
        used = [] if self._usage is None else [self._usage]  # a policy that holds the whole answer withheld it
        return [*released, *used, NextRequest(structs.replace(request, messages=messages))]

    def _not_retried(self, reason: str) -> list[Output]:
        """The upstream could not be asked again."""
        self._retrying = False
        return list(self._chains[0].give_up(f"the upstream could not be asked again: {reason}"))

    def _resumed(self, steps: QuestionGenerator[Request], question: Question) -> QuestionGenerator[Request]:
        while True:
            reply = yield question
            try:
                question = steps.send(reply)
            except StopIteration as finished:
                changed: Request = finished.value
                self._request = changed
                return changed


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
