"""The tool loop through the engine, with a scripted model: every turn ends properly, for any behaviour of tools and models."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import streamglot
from streamglot.engine.observer import Observer
from streamglot.errors import RequestError, StreamglotError, Unsupported
from streamglot.stages import collect, messages_of
from streamglot.stages.stage import ExchangeContext
from streamglot.tools.loop import STEP
from streamglot.tools.settings import ToolLimits
from tools.scripted import Model, call, calls, events_of, exchange_of, executor_of, hanging_tool, text, wait_for
from vocabulary import *

pytestmark = pytest.mark.anyio


@streamglot.tool
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


class StepWatch(Observer):
    """Keeps the steps that are reported, in order."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def annotated(self, subject: str, fact: dict[str, Any]) -> None:
        if subject == STEP:
            self.steps.append(fact)


def results(events: list[Event]) -> list[ToolResult]:
    return [event for event in events if isinstance(event, ToolResult)]


async def test_two_calls_of_one_turn_are_run_and_the_model_continues_with_both_results() -> None:
    model = Model(
        [
            calls(call("a", "weather", '{"city":"Paris"}'), call("b", "weather", '{"city":"Rome"}')),
            text("Both are ", "sunny."),
        ]
    )
    events = await events_of(exchange_of(model, executor_of(weather)))
    assert [(event.call_id, event.content, event.is_error) for event in results(events)] == [
        ("a", "sunny in Paris", False),
        ("b", "sunny in Rome", False),
    ]
    assert [event.kind for event in events if isinstance(event, ToolCallStart)] == ["server", "server"]
    assert [type(event) for event in events].count(StreamStart) == 1
    assert StepEnd(1) in events
    assert events[-1] == StreamEnd("end")
    assert [spec.name for spec in model.requests[0].tools] == ["weather"]
    assistant, *tools = model.requests[1].messages[1:]
    assert [(part.call_id, part.kind) for part in assistant.parts if isinstance(part, ToolCallPart)] == [
        ("a", "function"),
        ("b", "function"),
    ]
    assert [
        (part.call_id, part.name, part.text) for message in tools for part in message.parts if isinstance(part, ToolResultPart)
    ] == [
        ("a", "weather", "sunny in Paris"),
        ("b", "weather", "sunny in Rome"),
    ]
    answer = collect(events)
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (30, 7)


async def test_results_leave_as_they_come_and_go_to_the_model_in_the_order_of_the_calls() -> None:
    second = asyncio.Event()

    async def slow(name: str) -> str:
        if name == "first":
            await wait_for(second)
        return name

    model = Model([calls(call("a", "slow", '{"name":"first"}'), call("b", "slow", '{"name":"second"}')), text("ok")])
    events: list[Event] = []
    async for read in exchange_of(model, executor_of(slow)):
        events += read
        if any(isinstance(event, ToolResult) for event in read):
            second.set()
    assert [event.call_id for event in results(events)] == ["b", "a"]
    assert [part.call_id for part in model.results()] == ["a", "b"]
    history = messages_of(collect(events))
    assert [part.call_id for message in history for part in message.parts if isinstance(part, ToolResultPart)] == ["a", "b"]


async def test_a_limited_number_of_calls_runs_at_once() -> None:
    running = most = 0

    async def count(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return number

    blocks = [call(f"c{number}", "count", f'{{"number":{number}}}') for number in range(10)]
    model = Model([calls(*blocks), text("ok")])
    events = await events_of(exchange_of(model, executor_of(count, limits=ToolLimits(concurrent=3, calls=8))))
    assert most == 3
    assert [result.is_error for result in results(events)].count(True) == 2
    assert len(model.results()) == 10


async def test_a_tool_that_fails_is_an_error_that_the_model_reads() -> None:
    def broken() -> str:
        raise ValueError("no such city")

    def worded() -> str:
        raise streamglot.ToolError("Try another city.")

    model = Model([calls(call("a", "broken"), call("b", "worded")), text("sorry")])
    events = await events_of(exchange_of(model, executor_of(broken, worded)))
    first, second = model.results()
    assert (first.is_error, first.text) == (True, "The tool 'broken' failed: ValueError: no such city.")
    assert (second.is_error, second.text) == (True, "Try another city.")
    assert events[-1] == StreamEnd("end")


async def test_a_tool_that_ends_the_process_is_an_error_that_the_model_reads() -> None:
    def plain() -> str:
        raise SystemExit(3)

    async def waits() -> str:
        raise SystemExit("no more")

    model = Model([calls(call("a", "plain"), call("b", "waits")), text("sorry")])
    events = await events_of(exchange_of(model, executor_of(plain, waits)))
    assert [(result.is_error, result.text) for result in model.results()] == [
        (True, "The tool 'plain' ended with the exit status 3."),
        (True, "The tool 'waits' ended with the exit status no more."),
    ]
    assert events[-1] == StreamEnd("end")


async def test_a_tool_that_takes_too_long_is_cancelled() -> None:
    hangs, _, cancelled = hanging_tool()
    model = Model([calls(call("a", "hangs")), text("sorry")])
    await events_of(exchange_of(model, executor_of(hangs, limits=ToolLimits(seconds=0.01))))
    assert cancelled.is_set()
    assert "did not finish within 0.01 s" in model.results()[0].text


async def test_the_model_corrects_invalid_arguments() -> None:
    model = Model(
        [
            calls(call("a", "weather", '{"town":"Paris"}')),
            calls(call("b", "weather", '{"city":5}')),
            calls(call("c", "weather", '{"city":"Paris"', complete=False)),
            calls(call("d", "weather", '{"city":"Paris"}')),
            text("sunny"),
        ]
    )
    events = await events_of(exchange_of(model, executor_of(weather)))
    results = [part.text for part in model.results()]
    assert "town" in results[0]
    assert "city" in results[1]
    assert "not valid JSON" in results[2]
    assert results[3] == "sunny in Paris"
    sent = [part for message in model.requests[-1].messages for part in message.parts if isinstance(part, ToolCallPart)]
    assert [part.arguments for part in sent][2] == "{}"
    assert events[-1] == StreamEnd("end")
    history = messages_of(collect(events))
    answered = {part.call_id for message in history for part in message.parts if isinstance(part, ToolResultPart)}
    called = {part.call_id for message in history for part in message.parts if isinstance(part, ToolCallPart)}
    assert answered == called == {"a", "b", "d"}


async def test_an_unknown_tool_is_answered_with_the_names_of_those_that_exist() -> None:
    model = Model([calls(call("a", "nothing")), text("ok")])
    await events_of(exchange_of(model, executor_of(weather)))
    assert model.results()[0].text == "The tool 'nothing' does not exist. The tools are: weather."


async def test_an_endless_caller_gets_one_last_turn_without_tools() -> None:
    def again(request: Request) -> list[Event]:
        if request.tool_choice == ToolChoice("none"):
            return text("I give up")
        number = len(request.messages)
        return calls(call(f"c{number}", "weather", f'{{"city":"{number}"}}'))

    model = Model(again)
    events = await events_of(exchange_of(model, executor_of(weather, limits=ToolLimits(rounds=3))))
    assert len(model.requests) == 4
    assert model.results()[-1].text.endswith(
        "[the limit of 3 rounds of tool calls is reached: answer now, without calling tools]"
    )
    assert events[-1] == StreamEnd("end")


async def test_a_model_that_calls_even_in_its_last_turn_is_ended() -> None:
    def again(request: Request) -> list[Event]:
        return calls(call(f"c{len(request.messages)}", "weather", f'{{"city":"{len(request.messages)}"}}'))

    model = Model(again)
    events = await events_of(exchange_of(model, executor_of(weather, limits=ToolLimits(rounds=1))))
    assert len(model.requests) == 2
    assert [result.is_error for result in results(events)] == [False, True]
    assert events[-1] == StreamEnd("other")


async def test_the_same_call_again_and_again_is_not_run_again() -> None:
    runs = 0

    def poll(job: int) -> str:
        nonlocal runs
        runs += 1
        return f"job {job} is pending"

    model = Model([*(calls(call(f"c{n}", "poll", '{"job": 1}' if n % 2 else '{"job":1}')) for n in range(4)), text("ok")])
    await events_of(exchange_of(model, executor_of(poll)))
    assert runs == 2
    assert "same arguments" in model.results()[-1].text


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (ToolLimits(tokens=10), "the budget of 10 tokens is used up"),
        (ToolLimits(total_seconds=0.0), "the time for tools, 0 s, is used up"),
    ],
)
async def test_a_budget_ends_the_loop_with_an_answer(limits: ToolLimits, words: str) -> None:
    model = Model([calls(call("a", "weather", '{"city":"Paris"}')), text("ok")])
    events = await events_of(exchange_of(model, executor_of(weather, limits=limits)))
    assert model.requests[1].tool_choice == ToolChoice("none")
    assert words in model.results()[-1].text
    assert events[-1] == StreamEnd("end")


async def test_a_huge_result_is_cut_with_a_note_and_kept_whole() -> None:
    def huge() -> str:
        return "x" * 1000

    model = Model([calls(call("a", "huge")), text("ok")])
    watch = StepWatch()
    executor = executor_of(huge, limits=ToolLimits(result_chars=10))
    events = await events_of(exchange_of(model, executor, observers=[watch]))
    cut = "x" * 10 + "\n[cut here: the result has 1000 characters, 10 are shown]"
    assert results(events)[0].content == cut == model.results()[0].text
    assert watch.steps[-2]["result"] == "x" * 1000


async def test_empty_output_is_described_to_the_model() -> None:
    def nothing() -> None: ...

    model = Model([calls(call("a", "nothing")), text("ok")])
    await events_of(exchange_of(model, executor_of(nothing)))
    assert model.results()[0].text == "The tool ran and returned no output."


async def test_an_image_goes_to_the_model_as_an_image() -> None:
    def picture() -> MediaPart:
        return MediaPart("image/png", "aGk=")

    model = Model([calls(call("a", "picture")), text("ok")])
    events = await events_of(exchange_of(model, executor_of(picture)))
    assert model.results()[0].content == [MediaPart("image/png", "aGk=")]
    assert results(events)[0].content == "[image/png]"


async def test_stop_while_a_tool_runs_cancels_it_and_ends_the_stream_properly() -> None:
    hangs, began, cancelled = hanging_tool()
    model = Model([calls(call("a", "hangs"), call("b", "hangs", "{}"))])
    exchange = exchange_of(model, executor_of(hangs, limits=ToolLimits(concurrent=1)))
    reading = asyncio.ensure_future(events_of(exchange))
    await wait_for(began)
    exchange.stop()
    events = await reading
    assert events[-1] == StreamEnd("cancelled")
    assert [result.is_error for result in results(events)] == [True, True]
    await wait_for(cancelled)
    assert model.turns[0].closed


async def test_a_hang_up_while_a_tool_runs_cancels_it_and_closes_the_upstream() -> None:
    hangs, began, cancelled = hanging_tool()
    model = Model([calls(call("a", "hangs"))])
    reading = asyncio.ensure_future(events_of(exchange_of(model, executor_of(hangs))))
    await wait_for(began)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await wait_for(cancelled)
    assert model.turns[0].closed


async def test_an_interruption_while_a_tool_runs_is_the_last_event() -> None:
    hangs, began, _ = hanging_tool()
    exchange = exchange_of(Model([calls(call("a", "hangs"))]), executor_of(hangs))
    reading = asyncio.ensure_future(events_of(exchange))
    await wait_for(began)
    exchange.interrupt(StreamglotError("shutting down", code="shutdown"))
    events = await reading
    assert isinstance(events[-1], StreamError)
    assert len(results(events)) == 1


@pytest.mark.parametrize("end", [StreamEnd("length"), StreamError("upstream_truncated", "it broke off"), StreamEnd("refusal")])
async def test_calls_of_a_turn_that_did_not_end_properly_are_not_run(end: StreamEnd | StreamError) -> None:
    def never() -> str:
        raise AssertionError("it must not run")

    turn: list[Event] = [StreamStart(), *call("a", "never"), *call("b", "never", '{"', complete=False), end]
    events = await events_of(exchange_of(Model([turn]), executor_of(never)))
    assert [result.is_error for result in results(events)] == [True, True]
    assert events[-1] == end


async def test_the_clients_own_calls_are_returned_to_it() -> None:
    model = Model([calls(call("a", "theirs"))])
    events = await events_of(exchange_of(model, executor_of(weather), tools=[ToolSpec("theirs")]))
    assert [event.kind for event in events if isinstance(event, ToolCallStart)] == ["function"]
    assert events[-1] == StreamEnd("tool_calls")
    assert [spec.name for spec in model.requests[0].tools] == ["theirs", "weather"]


async def test_a_turn_with_calls_of_both_runs_ours_and_returns_the_clients() -> None:
    executor = executor_of(weather)
    first = Model([calls(call("a", "weather", '{"city":"Paris"}'), call("b", "theirs"))])
    events = await events_of(exchange_of(first, executor, tools=[ToolSpec("theirs")]))
    assert [event.kind for event in events if isinstance(event, ToolCallStart)] == ["server", "function"]
    assert [result.content for result in results(events)] == ["sunny in Paris"]
    assert events[-1] == StreamEnd("tool_calls")
    # The client's dialect shows it only its own call; what we ran is put back into its next request.
    history = [
        Message("user", [TextPart("hello")]),
        Message("assistant", [ToolCallPart("b", "theirs", "{}")]),
        Message("tool", [ToolResultPart("b", [TextPart("done")])]),
    ]
    second = Model([text("ok")])
    await events_of(exchange_of(second, executor, tools=[ToolSpec("theirs")], messages=history))
    assert [part.call_id for part in second.requests[0].messages[1].parts if isinstance(part, ToolCallPart)] == ["b", "a"]
    assert [part.text for part in second.results()] == ["sunny in Paris", "done"]
    other = Model([text("ok")])
    context = ExchangeContext("r2", key="somebody else", tools=["*"])
    await events_of(exchange_of(other, executor, tools=[ToolSpec("theirs")], messages=history, context=context))
    assert len(other.results()) == 1


async def test_a_tool_of_the_client_keeps_its_name() -> None:
    model = Model([calls(call("a", "weather", "{}"))])
    events = await events_of(exchange_of(model, executor_of(weather), tools=[ToolSpec("weather", "theirs")]))
    assert [spec.description for spec in model.requests[0].tools] == ["theirs"]
    assert events[-1] == StreamEnd("tool_calls")
    assert results(events) == []


async def test_a_forced_call_is_forced_once() -> None:
    model = Model([calls(call("a", "weather", '{"city":"Paris"}')), text("ok")])
    await events_of(exchange_of(model, executor_of(weather), tool_choice=ToolChoice("required", ["weather"])))
    assert model.requests[0].tool_choice is not None
    assert model.requests[1].tool_choice is None


async def test_opaque_reasoning_is_carried_through_the_rounds() -> None:
    echo = Echo("scripted", {"signature": "s"})
    turn = [
        StreamStart(),
        ReasoningStart(),
        ReasoningDelta("hm"),
        ReasoningEnd(echo),
        *calls(call("a", "weather", '{"city":"P"}'))[1:],
    ]
    model = Model([turn, text("ok")])
    await events_of(exchange_of(model, executor_of(weather)))
    assert model.requests[1].messages[1].parts[0] == ReasoningPart("hm", echo=echo)


async def test_an_upstream_that_fails_in_the_second_round_ends_the_stream_with_its_error() -> None:
    def script(request: Request) -> list[Event]:
        if len(request.messages) > 1:
            raise StreamglotError("the upstream is gone", code="upstream_error")
        return calls(call("a", "weather", '{"city":"Paris"}'))

    events = await events_of(exchange_of(Model(script), executor_of(weather)))
    assert isinstance(events[-1], StreamError)
    assert [result.content for result in results(events)] == ["sunny in Paris"]


async def test_nothing_that_is_not_enabled_is_offered() -> None:
    with pytest.raises(RequestError, match="selects no tool"):
        await events_of(exchange_of(Model([text("hi")]), executor_of(weather), patterns=["time"]))
    with pytest.raises(Unsupported, match="leave out n"):
        await events_of(exchange_of(Model([text("hi")]), executor_of(weather), n=2))


async def test_an_exchange_without_tools_of_ours_has_no_loop() -> None:
    model = Model([calls(call("a", "weather"))])
    events = await events_of(exchange_of(model, executor_of(weather), patterns=[]))
    assert model.requests[0].tools == []
    assert [event.kind for event in events if isinstance(event, ToolCallStart)] == ["function"]


async def test_each_step_is_reported_while_it_runs() -> None:
    watch = StepWatch()
    model = Model([calls(call("a", "weather", '{"city":"Paris"}')), text("ok")])
    await events_of(exchange_of(model, executor_of(weather), observers=[watch]))
    turn, started, ended, last = watch.steps
    assert (turn["kind"], turn["step"], turn["reason"], turn["input_tokens"]) == ("model", 1, "tool_calls", 10)
    assert started == {
        "number": 2,
        "step": 1,
        "kind": "tool",
        "call_id": "a",
        "name": "weather",
        "arguments": '{"city":"Paris"}',
    }
    assert (ended["number"], ended["result"], ended["is_error"]) == (2, "sunny in Paris", False)
    assert ended["seconds"] >= 0
    assert (last["kind"], last["step"], last["reason"]) == ("model", 2, "end")


async def test_an_observer_that_fails_on_a_step_does_not_hurt_the_loop() -> None:
    class Broken(Observer):
        def annotated(self, subject: str, fact: dict[str, Any]) -> None:
            raise ValueError(subject)

    model, watch = Model([calls(call("a", "weather", '{"city":"Paris"}')), text("ok")]), StepWatch()
    events = await events_of(exchange_of(model, executor_of(weather), observers=[Broken(), watch]))
    assert events[-1] == StreamEnd("end")
    assert len(watch.steps) == 4
    assert [line["event"] for line in model.lines] == ["observer_failed"]


async def test_a_plain_function_that_blocks_does_not_block_the_loop() -> None:
    ran = asyncio.Event()
    loop = asyncio.get_running_loop()

    def blocks() -> str:
        asyncio.run_coroutine_threadsafe(_set(ran), loop).result(30)
        time.sleep(0)
        return "done"

    model = Model([calls(call("a", "blocks")), text("ok")])
    await events_of(exchange_of(model, executor_of(blocks)))
    assert model.results()[0].text == "done"


async def _set(event: asyncio.Event) -> None:
    event.set()


async def test_the_cost_budget_counts_what_the_upstream_that_answered_costs() -> None:
    spent = ToolLimits(cost=0.00001)
    for answers_as, requests in ((("openai", "gpt-4o"), 2), (("scripted", "m"), 3)):
        model = Model(lambda request: text("done") if request.tool_choice or _asked_twice(request) else _call_again(request))
        model.answers_as = answers_as
        watch = StepWatch()
        context = ExchangeContext("r1", "openai_chat", "", "a name of our own", tools=["*"])
        await events_of(exchange_of(model, executor_of(weather, limits=spent), context=context, observers=[watch]))
        assert len(model.requests) == requests
        results = model.results()[-1].text
        assert ("the budget of $1e-05 is used up" in results) == (requests == 2), results
        costs = [step.get("cost", 0.0) for step in watch.steps if step["kind"] == "model"]
        assert all(cost > 0.00001 for cost in costs) == (requests == 2)


def _asked_twice(request: Request) -> bool:
    return sum(message.role == "tool" for message in request.messages) == 2


def _call_again(request: Request) -> list[Event]:
    return calls(call(f"c{len(request.messages)}", "weather", f'{{"city":"{len(request.messages)}"}}'))


async def test_a_call_in_the_native_form_of_its_provider_leaves_as_a_call_of_ours() -> None:
    """The model's next request has the native form still; clients see a call that this server ran."""
    native = Echo("openai_responses", {"type": "function_call"})
    block: list[Event] = [
        ToolCallStart("a", "weather", native=native),
        ToolCallDelta('{"city":"Paris"}'),
        ToolCallEnd(),
    ]
    model = Model([calls(block), text("done")])
    events = await events_of(exchange_of(model, executor_of(weather)))
    assert [event for event in events if isinstance(event, ToolCallStart)] == [ToolCallStart("a", "weather", "server")]
    asked = [part for message in model.requests[-1].messages for part in message.parts if isinstance(part, ToolCallPart)]
    assert [part.native for part in asked] == [native]
