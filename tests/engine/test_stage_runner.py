"""Stages that wait, judged by the order of what leaves them, through the engine's own runner."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from streamglot.engine.stage_runner import MAX_TURNS, StageRunner
from streamglot.errors import RequestError, StreamglotError
from streamglot.stages.stage import CheckResult, ExchangeContext, ExchangeEnded, NextRequest, Output, Question, Stage
from streamglot.upstream import Upstream
from vocabulary import *

pytestmark = pytest.mark.anyio

ANSWER: list[Event] = [StreamStart(), TextStart(), TextDelta("hi"), TextEnd()]
CALL: list[Event] = [ToolCallStart("c1", "rm"), ToolCallDelta("{}"), ToolCallEnd()]
END = StreamEnd("tool_calls")


class Turn:
    """A model turn of scripted reads. A read that is an event waits until the test sets it."""

    def __init__(self, *reads: list[Event] | asyncio.Event) -> None:
        self.name, self.model = "scripted", "m"
        self.upstream: Upstream | None = None
        self.dropped: list[str] = []
        self.closed = False
        self._reads = list(reads)

    async def read(self) -> list[Event] | None:
        while self._reads:
            read = self._reads.pop(0)
            if isinstance(read, list):
                return read
            await read.wait()
        return None

    def broken(self, error: StreamglotError) -> list[Event]:
        return [error.as_event()]

    def stop(self) -> list[Event]:
        return [StreamEnd("cancelled")]

    async def drain(self) -> None: ...

    def close(self) -> None:
        self.closed = True


class Judged(Question):
    def __init__(self, held: list[Event], seconds: float | None = None) -> None:
        self.held = held
        self.seconds = seconds


class HoldCalls(Stage):
    """Holds each call until it is judged; a verdict of False drops it, an exception too."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._held: list[Event] = []
        self._after: list[Event] = []
        self._open = False

    def feed(self, events: list[Event]) -> list[Output]:
        out: list[Output] = []
        for event in events:
            if isinstance(event, ToolCallStart):
                self._held = [event]
            elif self._held and not self._open:
                self._held.append(event)
                if isinstance(event, ToolCallEnd):
                    self._open = True
                    out.append(Judged(self._held, self._seconds))
            elif self._open:
                self._after.append(event)
            else:
                out.append(event)
        return out

    def answer(self, question: Question, reply: Any) -> list[Output]:
        assert isinstance(question, Judged)
        out: list[Output] = [*(question.held if reply is True else []), *self._after]
        self._held, self._after, self._open = [], [], False
        return out


class Judge:
    """Answers questions when the test says so."""

    def __init__(self, verdict: Any = True) -> None:
        self.verdict = verdict
        self.asked = asyncio.Event()
        self.released = asyncio.Event()

    async def resolve(self, question: Question) -> Any:
        self.asked.set()
        await self.released.wait()
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


async def _never(_request: Request) -> Any:
    raise AssertionError("no further turn is asked for")


def _given(stage: Stage, _context: ExchangeContext) -> Stage:
    return stage


def runner_of(stages: list[Stage], judge: Any, open_turn: Any = _never) -> StageRunner:
    return StageRunner([partial(_given, stage) for stage in stages], ExchangeContext(), open_turn, judge)


async def everything(runner: StageRunner) -> list[Event]:
    events: list[Event] = []
    while (read := await runner.read()) is not None:
        events += read
    return events


async def test_text_before_a_held_call_leaves_before_the_verdict() -> None:
    judge = Judge()
    runner = runner_of([HoldCalls()], judge)
    runner.begin(Turn([*ANSWER, *CALL, END]))
    assert await runner.read() == ANSWER
    rest = asyncio.ensure_future(everything(runner))
    await judge.asked.wait()
    assert not rest.done()
    judge.released.set()
    assert await rest == [*CALL, END]


async def test_the_upstream_is_read_on_while_a_call_is_held() -> None:
    judge, late = Judge(), asyncio.Event()
    runner = runner_of([HoldCalls()], judge)
    runner.begin(Turn([StreamStart(), *CALL], late, [END]))
    assert await runner.read() == [StreamStart()]
    rest = asyncio.ensure_future(everything(runner))
    await judge.asked.wait()
    late.set()
    while not runner.waiting:
        await asyncio.sleep(0)
    judge.released.set()
    assert await rest == [*CALL, END]


@pytest.mark.parametrize("verdict", [False, ValueError("the judge is broken")])
async def test_a_refused_call_does_not_leave(verdict: Any) -> None:
    judge = Judge(verdict)
    judge.released.set()
    runner = runner_of([HoldCalls()], judge)
    runner.begin(Turn([*ANSWER, *CALL, END]))
    assert await everything(runner) == [*ANSWER, END]


async def test_a_late_judge_gets_a_timeout_as_reply() -> None:
    runner = runner_of([HoldCalls(seconds=0.01)], Judge())
    runner.begin(Turn([*ANSWER, *CALL, END]))
    assert await everything(runner) == [*ANSWER, END]


async def with_open_question() -> tuple[StageRunner, Turn]:
    judge = Judge()
    runner = runner_of([HoldCalls()], judge)
    turn = Turn([*ANSWER, *CALL], asyncio.Event())
    runner.begin(turn)
    assert await runner.read() == ANSWER
    reading = asyncio.ensure_future(runner.read())
    await judge.asked.wait()
    reading.cancel()
    return runner, turn


async def test_an_interruption_answers_open_questions_and_ends_the_stream() -> None:
    runner, turn = await with_open_question()
    error = StreamglotError("too late")
    assert runner.finish(turn.broken(error), ExchangeEnded.by(error), error.as_event()) == [error.as_event()]
    assert await runner.read() is None
    runner.close()
    assert turn.closed


@pytest.mark.parametrize("last", [StreamEnd("cancelled"), StreamglotError("too late").as_event()])
async def test_an_answer_with_an_open_question_does_not_end_as_complete(last: StreamEnd | StreamError) -> None:
    """The reader says that the upstream's answer is complete, but the call is held."""
    runner, _ = await with_open_question()
    assert runner.finish([END], ExchangeEnded.by(None), last) == [last]
    runner.close()


class Again(Stage):
    """Asks for another turn after each one, and joins their text."""

    def __init__(self, turns: int) -> None:
        self._left = turns

    def feed(self, events: list[Event]) -> list[Output]:
        out: list[Output] = [event for event in events if isinstance(event, (TextStart, TextDelta, TextEnd, StreamError))]
        if isinstance(events[-1], StreamEnd):
            self._left -= 1
            out.append(NextRequest(Request(model=f"turn {self._left}")) if self._left else events[-1])
        return out


class Count(Stage):
    built = 0

    def __init__(self) -> None:
        Count.built += 1


async def test_a_stage_asks_for_another_turn_and_the_stages_before_it_are_built_again() -> None:
    asked: list[str] = []

    async def open_turn(request: Request) -> Turn:
        asked.append(request.model)
        return Turn([*ANSWER, StreamEnd("end")])

    Count.built = 0
    again = Again(3)
    runner = StageRunner([lambda _context: Count(), lambda _context: again], ExchangeContext(), open_turn, Judge())
    runner.begin(first := Turn([*ANSWER, StreamEnd("end")]))
    events = await everything(runner)
    assert events == [*ANSWER[1:] * 3, StreamEnd("end")]
    assert asked == ["turn 2", "turn 1"]
    assert Count.built == 3
    assert first.closed


async def test_a_turn_that_cannot_be_opened_is_reported_to_the_stage() -> None:
    async def refuse(_request: Request) -> Turn:
        raise RequestError("no")

    runner = runner_of([Again(2)], Judge(), refuse)
    runner.begin(Turn([*ANSWER, StreamEnd("end")]))
    events = await everything(runner)
    assert isinstance(events[-1], StreamError)
    assert events[-1].message == "no"


async def test_a_stage_that_never_stops_asking_is_ended() -> None:
    async def open_turn(_request: Request) -> Turn:
        return Turn([StreamEnd("end")])

    runner = runner_of([Again(MAX_TURNS * 2)], Judge(), open_turn)
    runner.begin(Turn([StreamEnd("end")]))
    assert isinstance((await everything(runner))[-1], StreamError)


class AskAboutRequest(Stage):
    def request(self, request: Request) -> Any:
        if (yield Judged([])) is not True:
            raise RequestError("refused")
        request.model = "allowed"
        return request


async def test_a_request_hook_waits_for_its_reply() -> None:
    judge = Judge()
    judge.released.set()
    assert (await runner_of([AskAboutRequest()], judge).request(Request())).model == "allowed"
    judge.verdict = False
    with pytest.raises(RequestError, match="refused"):
        await runner_of([AskAboutRequest()], judge).request(Request())


def test_a_stage_that_asks_must_handle_the_reply() -> None:
    with pytest.raises(AssertionError, match="does not handle"):
        Stage().answer(Question(), None)
    assert Stage().close() == []


class RunsATool(Stage):
    """Has a result checked at the end of a turn, and tells the reply as text."""

    def __init__(self) -> None:
        self.result = ToolResultPart("a", [TextPart("sunny")])

    def feed(self, events: list[Event]) -> list[Output]:
        return [*events[:-1], CheckResult(self.result)] if events[-1] == StreamEnd() else []

    def answer(self, question: Question, reply: Any) -> list[Output]:
        text = reply.text if isinstance(reply, ToolResultPart) else f"{type(reply).__name__}: {reply}"
        return [TextStart(), TextDelta(text), TextEnd(), StreamEnd()]


class ChecksResults(Stage):
    """Waits for a verdict, and then shouts; False fails."""

    def tool_result(self, result: ToolResultPart) -> Any:
        if (yield Judged([])) is not True:
            raise RuntimeError("no verdict")
        return ToolResultPart(result.call_id, [TextPart(result.text.upper())])


class Twice(Stage):
    def tool_result(self, result: ToolResultPart) -> ToolResultPart:
        return ToolResultPart(result.call_id, [TextPart(result.text * 2)])


@pytest.mark.parametrize(
    ("stages", "verdict", "text"),
    [
        ([], True, "sunny"),
        ([Stage()], True, "sunny"),
        ([ChecksResults(), Twice()], True, "SUNNYSUNNY"),
        ([ChecksResults(), Twice()], False, "RuntimeError: no verdict"),
    ],
)
async def test_the_stages_before_a_stage_check_the_results_of_its_tools(stages: list[Stage], verdict: bool, text: str) -> None:
    judge = Judge()
    judge.verdict = verdict
    judge.released.set()
    runner = runner_of([*stages, RunsATool(), Twice()], judge)
    runner.begin(Turn([StreamStart(), StreamEnd()]))
    assert await everything(runner) == [StreamStart(), TextStart(), TextDelta(text), TextEnd(), StreamEnd()]


async def test_an_interruption_ends_a_check_and_the_stream() -> None:
    runner = runner_of([ChecksResults(), RunsATool()], Judge())
    runner.begin(Turn([StreamStart(), StreamEnd()]))
    assert await runner.read() == [StreamStart()]
    ended = runner.finish([StreamEnd("cancelled")], ExchangeEnded.by(None), StreamEnd("cancelled"))
    assert ended == [TextStart(), TextDelta("ExchangeEnded: the exchange was stopped"), TextEnd(), StreamEnd("cancelled")]


class Swallows(Stage):
    """Lets one end pass, and nothing after it."""

    def __init__(self) -> None:
        self.done = False

    def feed(self, events: list[Event]) -> list[Output]:
        done, self.done = self.done, self.done or isinstance(events[-1], StreamEnd)
        return [] if done else list(events)


async def test_an_interruption_ends_the_stream_also_after_a_stage_that_saw_the_end_of_its_turn() -> None:
    class Waits(RunsATool):
        def answer(self, question: Question, reply: Any) -> list[Output]:
            return []

    runner = runner_of([Swallows(), ChecksResults(), Waits()], Judge())
    runner.begin(Turn([StreamStart(), StreamEnd()]))
    assert await runner.read() == [StreamStart()]
    assert runner.finish([StreamEnd("cancelled")], ExchangeEnded.by(None), StreamEnd("cancelled")) == [StreamEnd("cancelled")]


@pytest.mark.parametrize("last", [StreamEnd("cancelled"), StreamError("upstream_timeout", "late")])
async def test_an_interruption_ends_the_stream_if_the_model_turn_has_ended_before(last: StreamEnd | StreamError) -> None:
    """A stage waits for a tool or a person, and the turn has no more events of its own."""

    class Waits(RunsATool):
        def answer(self, question: Question, reply: Any) -> list[Output]:
            return []

    runner = runner_of([ChecksResults(), Waits()], Judge())
    runner.begin(Turn([StreamStart(), StreamEnd()]))
    assert await runner.read() == [StreamStart()]
    assert runner.finish([], ExchangeEnded.by(None), last) == [last]
