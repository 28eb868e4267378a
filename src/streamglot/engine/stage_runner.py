"""Builds the stages of one exchange, and runs them over one or more model turns.

Theory of operation. Events enter at stage 0 and leave after the last stage. A stage's output is a list of events and questions.
Events pass to the next stage at once. A question becomes a task. Its reply is passed to ``answer`` of the stage that asked, and
the output of ``answer`` passes to the next stage. While tasks run, the runner continues to read the upstream, so that text flows
while a call is held. ``read`` returns as soon as anything leaves the last stage.

``CheckResult`` passes the result of a tool through the ``tool_result`` hooks of the stages before the asking stage.

``NextRequest`` ends the model turn. The runner opens another turn, builds new instances of the stages before the asking stage,
and feeds their events to the asking stage.

The order of the stages is fixed:

1. The in-band parser, if the model writes calls and reasoning into its text. It belongs to the upstream that answers, so
   ``answer.Pipeline`` builds it beside the reader.
2. Policies on requests and answers (``[[policies]]``, or given to the client).
3. The buffer that releases reasoning sentence by sentence (``server.reasoning``).
4. Stages of the configuration (``engine.stages``).
5. The buffer that ends fragments of arguments at bounds of JSON (``server.tool_arguments``).
6. The tool loop, if the exchange may use the gateway's tools. Calls reach it only through the stages before
   it, and these stages check each result (``tool_result``) before the client, the store or the model gets it.
7. Summaries of thoughts (``server.reasoning_summary``), over all turns of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..config import Config
from ..errors import FOREIGN_ERRORS, ConfigError, StreamglotError, foreign_exception
from ..events import Event, StreamEnd, StreamError, Usage
from ..messages import Request, TokenCounts, ToolResultPart
from ..plugins import load_object
from ..stages import JsonFragments, SentenceBuffer
from ..stages.stage import (
    CheckResult,
    ExchangeContext,
    ExchangeEnded,
    NextRequest,
    Output,
    Question,
    QuestionGenerator,
    Reply,
    Stage,
    StageFactory,
)
from ..tools import ToolLoop
from ..tools.executor import ToolExecutor
from ..tools.questions import DIRECT
from ..upstream.prices import price
from .answer import EventSource
from .observer import Observer
from .summaries import ReasoningSummaries

if TYPE_CHECKING:
    from ..policies import Policy

Checked = TypeVar("Checked", Request, ToolResultPart)
ENDS = (StreamEnd, StreamError)
MAX_TURNS = 128
"""Model turns of one exchange. The tool loop has its own, lower limit; this limit ends a stage that never stops asking."""


class Resolver(Protocol):
    """What a question may use to find its reply: a model, the clock, the store."""

    async def resolve(self, question: Question) -> Reply: ...


class StageRunner:
    """``open_turn`` calls an upstream and returns the model turn. ``resolver`` answers questions."""

    def __init__(
        self,
        factories: Sequence[StageFactory],
        context: ExchangeContext,
        open_turn: Callable[[Request], Awaitable[EventSource]],
        resolver: Resolver,
    ) -> None:
        self._context = context
        self._open_turn = open_turn
        self._resolver = resolver
        built = [(factory, factory(context)) for factory in factories]
        self._factories = [factory for factory, stage in built if stage is not None]
        self._stages: list[Stage] = [stage for _, stage in built if stage is not None]
        self._closed = [False] * len(self._stages)
        self._turn: EventSource | None = None
        self._turns = 0
        self._turn_over = False
        self._reading: asyncio.Task[list[Event] | None] | None = None
        self._open: dict[asyncio.Task[object], tuple[int, Question]] = {}
        self._next: tuple[int, Request] | None = None
        self._ready: list[Event] = []
        self._over = False
        self._end_left = False
        self._finished_by: Exception | None = None

    def __bool__(self) -> bool:
        """Whether there is anything to run."""
        return bool(self._stages)

    @property
    def turn_over(self) -> bool:
        """Whether the current model turn was read to its end."""
        return self._turn_over

    @property
    def waiting(self) -> bool:
        """Whether the exchange waits for replies rather than for the upstream."""
        return bool(self._open) and self._turn_over

    # --- requests

    async def request(self, request: Request, until: int | None = None) -> Request:
        """Runs the request hooks of the stages before ``until``, in order."""
        for stage in self._stages[:until]:
            outcome = stage.request(request)
            request = outcome if isinstance(outcome, Request) else await self._drive(outcome)
        return request

    async def _check_result(self, result: ToolResultPart, until: int) -> ToolResultPart | Exception:
        """The result after the stages before ``until``, or the exception that one of them raised."""
        try:
            for stage in self._stages[:until]:
                outcome = stage.tool_result(result)
                result = outcome if isinstance(outcome, ToolResultPart) else await self._drive(outcome)
        except FOREIGN_ERRORS as error:
            return foreign_exception(error)
        return result

    async def _drive(self, hook: QuestionGenerator[Checked]) -> Checked:
        try:
            question = next(hook)
            while True:
                question = hook.send(await self._resolve(question))
        except StopIteration as done:
            changed: Checked = done.value
            return changed
        finally:
            hook.close()

    async def _resolve(self, question: Question) -> Reply:
        """The reply, or the exception in its place."""
        try:
            async with asyncio.timeout(question.seconds):
                return await self._resolver.resolve(question)
        except FOREIGN_ERRORS as error:
            return foreign_exception(error)

    # --- events

    def begin(self, turn: EventSource) -> None:
        self._turn = turn
        self._turns += 1
        self._turn_over = False

    async def read(self) -> list[Event] | None:
        """The events that left the last stage since the last call; None when there are no more."""
        while not self._ready:
            if self._over:
                return None
            # The next model turn replaces the stages before the one that asked for it, so questions of the old ones are answered
            # first. A question in the background may outlive its turn.
            if self._next is not None and all(question.background for _, question in self._open.values()):
                await self._open_next()
            elif self._open:
                await self._wait()
            elif self._turn_over:
                self._close()
            else:
                self._feed(await self._read_turn())
        ready, self._ready = self._ready, []
        return ready

    async def _read_turn(self) -> list[Event] | None:
        assert self._turn is not None
        if self._reading is None:
            return await self._turn.read()
        # A read that began beside open questions goes on: two reads of one turn at once would divide its bytes between them.
        reading, self._reading = self._reading, None
        return await reading

    async def _wait(self) -> None:
        """Waits for the upstream or for a reply, whichever comes first."""
        tasks: set[asyncio.Task[object]] = set(self._open)
        if not self._turn_over:
            if self._reading is None:
                assert self._turn is not None
                self._reading = asyncio.ensure_future(self._turn.read())
            tasks.add(self._reading)
        # A reply that comes first does not cancel the read: bytes that it has taken already would be lost. It stays in
        # ``_reading`` for the next call.
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if self._reading in done and self._reading is not None:
            reading, self._reading = self._reading, None
            self._feed(reading.result())
        for task in [task for task in self._open if task in done]:  # in the order of the questions
            stage, question = self._open.pop(task)
            self._pass_on(stage, self._stages[stage].answer(question, task.result()))

    def _feed(self, events: list[Event] | None) -> None:
        if events is None:
            self._turn_over = True
            return
        if events:
            if type(events[-1]) in ENDS:
                self._turn_over = True
            self._pass_on(-1, events)

    def _pass_on(self, stage: int, output: Sequence[Output]) -> None:
        """Passes the events of a stage's output to the stages after it, and has its questions resolved."""
        events: list[Event] = []
        questions: list[Question] = []
        for item in output:
            if isinstance(item, Question):
                questions.append(item)
            else:
                events.append(item)
        replies = [self._ask(stage, question) for question in questions]
        # The events first: what a reply that is there at once releases comes after the events beside the question.
        if events:
            self._leave(stage, events)
        if questions:
            for question, reply in zip(questions, replies, strict=True):
                if reply is not None:
                    self._pass_on(stage, self._stages[stage].answer(question, reply))

    def _ask(self, stage: int, question: Question) -> ToolResultPart | Exception | None:
        """Has a question resolved. Returns None while the reply is awaited. The reply is known at once if no stage checks the
        result of a tool, or if the exchange has ended."""
        if isinstance(question, NextRequest):
            self._next = stage, question.request
            return None
        if not isinstance(question, CheckResult):
            self._open[asyncio.ensure_future(self._resolve(question))] = stage, question
            return None
        if all(type(each).tool_result is Stage.tool_result for each in self._stages[:stage]):
            return question.result
        if self._finished_by is None:
            self._open[asyncio.ensure_future(self._check_result(question.result, stage))] = stage, question
        return self._finished_by

    def _leave(self, stage: int, events: list[Event]) -> None:
        """Passes events to the stage after this one, or to the client."""
        if stage + 1 < len(self._stages):
            self._pass_on(stage + 1, self._stages[stage + 1].feed(events))
        else:
            self._ready += events
            if type(events[-1]) in ENDS:
                self._over = self._end_left = True

    def _close(self) -> None:
        """Closes the stages after the last turn, when no question is open. They emit what they still hold."""
        for index, stage in enumerate(self._stages):
            if not self._closed[index]:
                self._closed[index] = True
                self._pass_on(index, stage.close())
                # The replies may release more events, and those pass the stages after this one. They must not be closed yet;
                # ``read`` comes here again when nothing is open any more.
                if self._open or self._next is not None:
                    return
        self._over = True

    async def _open_next(self) -> None:
        assert self._next is not None
        (index, request), self._next = self._next, None
        if self._turns >= MAX_TURNS:
            self._pass_on(index, [StreamglotError(f"a stage requested more than {MAX_TURNS} model turns; correct it").as_event()])
            return
        # A stage may ask in the middle of a turn, as the ``Retry`` of a policy does. Its rest is not read.
        self._stop_reading()
        if self._turn is not None:
            self._turn.close()
        # Stages before the asking one see each model turn as a stream of its own, and get new instances. The asking stage and
        # those after it see one long answer, and keep theirs.
        for place in range(index):
            stage = self._factories[place](self._context)
            assert stage is not None, "a stage factory returned other stages for a later model turn of the same exchange"
            self._stages[place] = stage
            self._closed[place] = False
        self._closed[index:] = [False] * (len(self._stages) - index)
        try:
            turn = await self._open_turn(await self.request(request, until=index))
        except StreamglotError as error:
            self._turn_over = True
            self._pass_on(index, self._stages[index].feed([error.as_event()]))
            return
        self.begin(turn)

    # --- other ends

    def finish(self, events: list[Event], reply: ExchangeEnded, last: StreamEnd | StreamError) -> list[Event]:
        """Ends the exchange with ``events``: those that end the model turn, or none if it has ended before. Open questions get
        ``reply`` in place of an answer. If there are any, the answer is not complete, even if the upstream's is: then it ends with
        ``last``."""
        is_incomplete = bool(self._open)
        self._stop_reading()
        self._turn_over = True
        self._finished_by = reply
        # The end of the turn may raise questions (the tool loop wants to run the calls), and so may closing the stages. Nobody
        # waits for either, so they are answered like those that were open.
        self._pass_on(-1, events)
        self._answer_all(reply)
        if not self._over:
            self._close()
            self._answer_all(reply)
        ready, self._ready = self._ready, []
        self._over = True
        if not self._end_left:  # a stage that has seen the end of its turn does not emit a second end
            self._end_left = True
            ready.append(events[-1] if events else last)
        if is_incomplete and ready and type(ready[-1]) is StreamEnd:
            ready[-1] = last
        return ready

    def _answer_all(self, reply: Exception) -> None:
        """Gives every open question the same reply. New questions of a stage are dropped."""
        questions, self._open = self._open, {}
        for task in questions:
            task.cancel()
        for stage, question in questions.values():
            self._pass_on(stage, self._stages[stage].answer(question, reply))
        for task in self._open:
            task.cancel()
        self._open, self._next = {}, None

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def close(self) -> None:
        """Releases the upstream of the current turn and cancels the open questions."""
        self._stop_reading()
        for task in self._open:
            task.cancel()
        self._open = {}
        if self._turn is not None:
            self._turn.close()


T = TypeVar("T")


def build_stages(config: Config, policies: Sequence[Policy] = (), tools: ToolExecutor | None = None) -> list[StageFactory]:
    """The factories of all stages after the in-band parser, in order. ``tools`` runs the tools of the loop."""
    stages: list[StageFactory] = []
    if policies or config.policies:
        from ..policies import load_policies, policy_stage

        stages.append(policy_stage([*policies, *load_policies(config.policies)]))
    if config.server.reasoning == "sentence":
        stages.append(lambda _context: SentenceBuffer())
    stages += [_factory(reference) for reference in config.engine.stages]
    if config.server.tool_arguments == "json":
        stages.append(lambda _context: JsonFragments())
    if tools is not None and tools.registry:
        stages.append(tool_loop(tools))
    if config.server.reasoning_summary:
        stages.append(_summaries(config.server.reasoning_summary, config.server.reasoning == "summary"))
    return stages


def _summaries(model: str, replace: bool) -> StageFactory:
    return lambda context: ReasoningSummaries(model, context, replace=replace)


def tool_loop(tools: ToolExecutor, *, direct: bool = False) -> StageFactory:
    """The factory of the tool loop. The factory returns None for an exchange without tools of the gateway. ``direct``: the loop
    is for a call that no model made, and for no other."""

    def build(context: ExchangeContext) -> Stage | None:
        runs = bool(context.tools) and (DIRECT in context.state) is direct
        return ToolLoop(tools, context.tools, context, _price_of(context)) if runs else None

    return build


def _price_of(context: ExchangeContext) -> Callable[[Usage], float]:
    """A function for the cost of a model turn at the price of the upstream that answered it; 0 if no price is known."""

    def cost(usage: Usage) -> float:
        counts = TokenCounts(usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cache_write_tokens)
        return price(counts, context.upstream_model, context.upstream) or 0.0

    return cost


def build_observers(config: Config) -> list[Observer]:
    """The observers that the configuration names. One instance watches all exchanges."""
    return [_observer(reference) for reference in config.engine.observers]


def _observer(reference: str) -> Observer:
    made: Callable[[], Observer] = load_object(reference, "engine.observers")
    return _created(made, reference, "engine.observers")


def _factory(reference: str) -> StageFactory:
    """The factory of a stage of the configuration. A class is created once, so that a fault of it is found at load time."""
    named = load_object(reference, "engine.stages")
    if not callable(named):
        raise ConfigError(f"engine.stages: {reference} is neither a subclass of Stage nor a function that returns a stage")
    if isinstance(named, type) and issubclass(named, Stage):
        _created(named, reference, "engine.stages")
        return lambda _context: named()
    factory: StageFactory = named
    return factory


def _created(made: Callable[[], T], reference: str, setting: str) -> T:
    try:
        return made()
    except FOREIGN_ERRORS as error:
        raise ConfigError(f"{setting}: {reference} cannot be created: {type(error).__name__}: {error}") from None
