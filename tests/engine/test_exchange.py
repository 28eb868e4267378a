"""One exchange without HTTP: how it is read, stopped, interrupted and watched."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from streamglot.engine.answer import EventSource
from streamglot.engine.ask import Passthrough
from streamglot.engine.conversation import ConversationState
from streamglot.engine.exchange import Ending, Exchange
from streamglot.engine.observer import ExchangeResult, Observer
from streamglot.engine.stats import ExchangeRecord, estimate
from streamglot.errors import RequestError, StreamglotError
from streamglot.events import Event, StepEnd, StreamEnd, StreamError, StreamStart, TextDelta, TextEnd, TextStart, Usage
from streamglot.messages import Message, Request, TextPart
from streamglot.stages.stage import NextRequest, Output, Stage, StageFactory
from streamglot.upstream import Upstream
from streamglot.upstream.settings import Timeouts

pytestmark = pytest.mark.anyio

BEGIN: list[Event] = [StreamStart(), TextStart(), TextDelta("one ")]
REST: list[Event] = [TextDelta("two"), TextEnd(), Usage(3, 4), StreamEnd("end")]


class Turn:
    """Gives its reads; after the last one it waits for ever, unless that was an end."""

    def __init__(self, *reads: list[Event]) -> None:
        self.name, self.model = "scripted", "m"
        self.upstream: Upstream | None = Upstream(name="scripted", timeouts=Timeouts(idle=5.0, total=50.0))
        self.dropped: list[str] = []
        self.closed = 0
        self.waits = asyncio.Event()
        self._reads = list(reads)

    async def read(self) -> list[Event] | None:
        if self._reads:
            return self._reads.pop(0)
        self.waits.set()
        await asyncio.Event().wait()
        return None

    def broken(self, error: StreamglotError) -> list[Event]:
        return [TextEnd(), error.as_event()]

    def stop(self) -> list[Event]:
        return [TextEnd(), StreamEnd("cancelled")]

    async def drain(self) -> None: ...

    def close(self) -> None:
        self.closed += 1


class Pool:
    """One scripted turn, or an error."""

    def __init__(self, turn: Turn | StreamglotError | None) -> None:
        self.turn = turn
        self.now = 0.0
        self.lines: list[Mapping[str, Any]] = []
        self.asked = asyncio.Event()

    def clock(self) -> float:
        return self.now

    def services(self, context: Any) -> Any:
        return None

    def log(self, line: Mapping[str, Any]) -> None:
        self.lines.append(line)

    async def ask(
        self, request: Request, record: ExchangeRecord, conversation: ConversationState | None, passthrough: Passthrough
    ) -> EventSource:
        assert (conversation, passthrough) == (None, Passthrough())
        assert request.model == record.model
        self.asked.set()
        if isinstance(self.turn, StreamglotError):
            raise self.turn
        if self.turn is None:
            await asyncio.Event().wait()
        assert self.turn is not None
        record.attempts += 1
        return self.turn


class Watch(Observer):
    wants_response = True
    wants_usage = True

    def __init__(self) -> None:
        self.seen: list[Event] = []
        self.results: list[ExchangeResult] = []
        self.began = 0

    def started(self, context: Any) -> None:
        self.began += 1

    def events(self, events: list[Event]) -> None:
        self.seen += events

    def finished(self, result: ExchangeResult) -> None:
        self.results.append(result)


def exchange_of(pool: Pool, *observers: Observer, stages: Sequence[StageFactory] = (), ending: Ending | None = None) -> Exchange:
    request = Request(model="m", messages=[Message("user", [TextPart("hello")])])
    record = ExchangeRecord("r1", "openai_chat", 0.0, "m")
    return Exchange(request, pool, record=record, stages=stages, observers=observers, ending=ending)


async def test_the_lists_of_events_are_those_of_the_reads() -> None:
    pool, watch = Pool(turn := Turn(BEGIN, REST)), Watch()
    assert [events async for events in exchange_of(pool, watch)] == [BEGIN, REST]
    [result] = watch.results
    assert (result.record.ending, result.record.upstream, result.record.usage) == ("end", "scripted", Usage(3, 4))
    assert result.response is not None
    assert result.response.choices[0].text == "one two"
    assert (watch.began, watch.seen, turn.closed) == (1, [*BEGIN, *REST], 1)
    assert result.record.estimated is None


class AskAgain(Stage):
    """Abandons the first turn at its first text, and asks for another one."""

    again = False

    def feed(self, events: list[Event]) -> list[Output]:
        if self.again:
            return [event for event in events if not isinstance(event, StreamStart)]
        self.again = True
        return [StreamStart(), NextRequest(Request(model="m", messages=[Message("user", [TextPart("again")])]))]


@pytest.mark.parametrize("reported", [True, False])
async def test_the_usage_of_a_turn_that_was_given_up_is_estimated(reported: bool) -> None:
    pool, watch = Pool(Turn(BEGIN)), Watch()
    exchange = exchange_of(pool, watch, stages=[lambda _context: AskAgain()])
    await exchange.start()
    pool.turn = Turn([StreamStart(), TextStart(), *(event for event in REST if reported or not isinstance(event, Usage))])
    while await exchange.read() is not None:
        pass
    exchange.close()
    [result] = watch.results
    assert result.record.usage == (Usage(3, 4) if reported else None)
    assert result.record.estimated is not None
    first = estimate(exchange.request)
    assert result.record.estimated.input_tokens == first + (3 if reported else first)


async def test_a_whole_answer_is_the_same_exchange_collected() -> None:
    exchange = exchange_of(Pool(Turn(BEGIN, REST)))
    await exchange.start()
    assert (await exchange.collect()).choices[0].text == "one two"


async def test_stop_ends_a_waiting_read_properly() -> None:
    pool, watch = Pool(turn := Turn(BEGIN)), Watch()
    exchange = exchange_of(pool, watch)
    reading = asyncio.ensure_future(_all(exchange))
    await turn.waits.wait()
    exchange.stop()
    exchange.stop()
    assert (await reading)[-2:] == [TextEnd(), StreamEnd("cancelled")]
    assert watch.results[0].record.ending == "cancelled"
    assert watch.results[0].record.estimated is not None


async def test_stop_between_two_reads_ends_the_next_one() -> None:
    exchange = exchange_of(Pool(Turn(BEGIN, REST)))
    await exchange.start()
    assert await exchange.read() == BEGIN
    exchange.stop()
    assert await exchange.read() == [TextEnd(), StreamEnd("cancelled")]
    assert await exchange.read() is None


async def test_stop_before_the_first_event_gives_a_whole_empty_stream() -> None:
    exchange = exchange_of(pool := Pool(None))
    reading = asyncio.ensure_future(_all(exchange))
    await pool.asked.wait()
    exchange.stop()
    assert await reading == [StreamStart(), StreamEnd("cancelled")]


async def test_interrupt_makes_its_error_the_last_event() -> None:
    pool, watch = Pool(turn := Turn(BEGIN)), Watch()
    exchange = exchange_of(pool, watch)
    reading = asyncio.ensure_future(_all(exchange))
    await turn.waits.wait()
    exchange.interrupt(StreamglotError("over budget", code="budget"))
    last = (await reading)[-1]
    assert isinstance(last, StreamError)
    assert last.code == "budget"
    assert watch.results[0].record.error == "budget"


async def test_interrupt_before_the_first_event_is_raised() -> None:
    exchange = exchange_of(pool := Pool(None))
    starting = asyncio.ensure_future(exchange.start())
    await pool.asked.wait()
    exchange.interrupt(StreamglotError("shutting down"))
    with pytest.raises(StreamglotError, match="shutting down"):
        await starting


async def test_the_first_ending_counts_and_a_client_that_is_gone_counts_after_it() -> None:
    ending = Ending()
    ending.stop()
    ending.interrupt(StreamglotError("too late"))
    assert (ending.stopped, ending.error, ending.gone) == (True, None, False)
    ending.leave()
    assert ending.gone
    other = Ending()
    other.interrupt(StreamglotError("first"))
    other.interrupt(StreamglotError("second"))
    other.stop()
    assert str(other.error) == "first"
    assert not other.stopped


async def test_an_ending_before_the_exchange_begins_asks_no_upstream() -> None:
    stopped, interrupted = exchange_of(pool := Pool(Turn(BEGIN))), exchange_of(pool)
    stopped.stop()
    assert await _all(stopped) == [StreamStart(), StreamEnd("cancelled")]
    interrupted.interrupt(StreamglotError("shutting down"))
    with pytest.raises(StreamglotError, match="shutting down"):
        await interrupted.start()
    assert not pool.asked.is_set()


async def test_an_owned_task_is_ended_wherever_it_waits_and_any_other_only_while_it_reads() -> None:
    async def work(ending: Ending, *, own: bool) -> list[Event] | None:
        (ending.own if own else ending.attach)(asyncio.current_task())
        exchange = exchange_of(Pool(Turn(BEGIN, REST)), ending=ending)
        await exchange.start()
        await exchange.read()
        begun.set()
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            assert ending.caught()
            assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]  # a task runs here
        return await exchange.read()

    for own in (True, False):
        begun, go_on, ending = asyncio.Event(), asyncio.Event(), Ending()
        working = asyncio.ensure_future(work(ending, own=own))
        await begun.wait()
        ending.stop()
        if not own:
            go_on.set()
        assert await working == [TextEnd(), StreamEnd("cancelled")]


async def test_a_client_that_is_gone_gets_no_last_events() -> None:
    ending = Ending()
    exchange = exchange_of(Pool(turn := Turn(BEGIN)), watch := Watch(), ending=ending)
    reading = asyncio.ensure_future(_all(exchange))
    await turn.waits.wait()
    ending.leave()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert [result.record.ending for result in watch.results] == ["client_gone"]


async def test_a_foreign_cancellation_stays_one() -> None:
    exchange = exchange_of(Pool(turn := Turn(BEGIN)), watch := Watch())
    reading = asyncio.ensure_future(_all(exchange))
    await turn.waits.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert watch.results[0].record.ending == "client_gone"
    starting = asyncio.ensure_future(exchange_of(pool := Pool(None)).start())
    await pool.asked.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting


async def test_a_refusal_is_raised_and_reported_to_the_observers() -> None:
    exchange = exchange_of(Pool(RequestError("no such model", code="model_not_found")), watch := Watch())
    with pytest.raises(RequestError, match="no such model"):
        await _all(exchange)
    [result] = watch.results
    assert (result.record.ending, result.record.error) == ("error", "model_not_found")
    assert result.error is not None


async def test_a_caller_that_read_a_part_says_how_it_ended() -> None:
    exchange = exchange_of(Pool(Turn(BEGIN)), watch := Watch())
    await exchange.start()
    await exchange.read()
    exchange.finish(StreamError("broken", "by the reader"))
    exchange.finish(StreamEnd("end"))
    exchange.close()
    assert [result.record.error for result in watch.results] == ["broken"]


async def test_a_failing_observer_gets_no_more_calls_and_breaks_nothing() -> None:
    class Fails(Watch):
        def events(self, events: list[Event]) -> None:
            raise RuntimeError("broken watcher")

        def started(self, context: Any) -> None:
            raise RuntimeError("broken start")

    pool, watch = Pool(Turn(BEGIN, REST)), Watch()
    assert len(await _all(exchange_of(pool, Fails(), watch))) == len([*BEGIN, *REST])
    assert watch.seen == [*BEGIN, *REST]
    assert [line["event"] for line in pool.lines] == ["observer_failed"]


async def test_silence_counts_from_when_the_caller_waits() -> None:
    pool = Pool(turn := Turn(BEGIN))
    exchange = exchange_of(pool)
    await exchange.start()
    assert exchange.overdue(40.0) is None
    await exchange.read()
    reading = asyncio.ensure_future(exchange.read())
    await turn.waits.wait()
    assert exchange.overdue(41.0) is None
    assert exchange.overdue(45.0) is None
    silent = exchange.overdue(46.5)
    assert silent is not None
    assert "timeouts.idle" in silent.message
    total = exchange_of(Pool(Turn(BEGIN)))
    await total.start()
    late = total.overdue(51.0)
    assert late is not None
    assert "timeouts.total" in late.message
    reading.cancel()


def test_the_usage_of_several_model_turns_is_added_up() -> None:
    record = ExchangeRecord("r", "openai_chat", 0.0)
    record.seen([Usage(10, 1), Usage(10, 2), StepEnd(1), Usage(20, 3, cached_tokens=5)], 1.0)
    assert record.usage == Usage(30, 5, cached_tokens=5)


async def _all(exchange: Exchange) -> list[Event]:
    return [event async for events in exchange for event in events]
