"""Answers of several model turns: collected, replayed, and as history for a provider."""

from __future__ import annotations

import random

import pytest

from each import each
from streamglot import check, collect, messages_of, replay
from streamglot.dialects import DIALECTS
from streamglot.events import BareEvent, StopReason
from streamglot.messages import Step
from streamglot.stages.steps import parts_by_step, with_step_breaks
from vocabulary import *

NATIVE = Echo("p", {"block": 1})


def text(content: str) -> list[BareEvent]:
    return [TextStart(), TextDelta(content), TextEnd()]


def call(call_id: str, kind: str = "server", native: Echo | None = None, complete: bool = True) -> list[BareEvent]:
    start = ToolCallStart(call_id, "tides", kind, native)  # type: ignore[arg-type]  # one of the kinds, from a test's table
    return [start, ToolCallDelta('{"port":"Oslo"}'), ToolCallEnd(complete=complete)]


LOOP: list[Event] = [
    StreamStart("r", "m", 7),
    *text("I look."),
    *call("a"),
    Usage(10, 2),
    Usage(10, 5, raw={"own": 1}),
    StepEnd(1),
    ToolResult("a", "high"),
    *text("It is high."),
    *call("b"),
    ToolResult("b", "low", is_error=True),
    Usage(20, 6, cached_tokens=4),
    StepEnd(2),
    *text("Done."),
    Usage(30, 7),
    StreamEnd("end", "stop"),
]


def test_the_steps_of_an_answer_are_kept() -> None:
    choice = collect(LOOP).choices[0]
    assert choice.steps == [
        Step(2, 1, "tool_calls", TokenCounts(10, 5, raw={"own": 1})),
        Step(6, 2, "tool_calls", TokenCounts(20, 6, 4)),
        Step(7, usage=TokenCounts(30, 7)),
    ]
    assert [len(parts) for parts in parts_by_step(choice)] == [2, 4, 1]


def test_usage_is_summed_over_steps() -> None:
    assert collect(LOOP).usage == TokenCounts(60, 18, 4)
    assert collect(LOOP[:10]).usage == TokenCounts(10, 5, raw={"own": 1})


def test_usage_that_one_step_alone_reports_is_kept_whole() -> None:
    events: list[Event] = [StreamStart(), *text("a"), StepEnd(1), *text("b"), Usage(1, 2, raw={"own": 1}), StreamEnd()]
    assert collect(events).usage == TokenCounts(1, 2, raw={"own": 1})
    assert Usage(1).plus(Usage()) == Usage(1)
    assert Usage(1, None, 2).plus(Usage(3, 4)) == Usage(4, 4, 2)


def test_an_answer_that_ends_with_a_step_has_no_empty_step_after_it() -> None:
    assert collect([StreamStart(), *text("a"), StepEnd(1, "end"), StreamEnd()]).choices[0].steps == [Step(1, 1, "end")]


def test_an_answer_that_breaks_off_keeps_its_steps() -> None:
    response = collect([*LOOP[:13], StreamError("c", "m")])
    assert [step.reason for step in response.choices[0].steps] == ["tool_calls", None]
    assert collect(replay(response)) == response


def test_a_replayed_answer_has_its_steps_again() -> None:
    response = collect(LOOP)
    events = replay(response)
    check(events)
    assert collect(events) == response
    assert [event for event in events if isinstance(event, StepEnd)] == [StepEnd(1), StepEnd(2)]
    assert [event.input_tokens for event in events if isinstance(event, Usage)] == [10, 20, 30]


def random_stream(seed: int) -> list[Event]:
    """A whole stream of random blocks, steps and choices."""
    chance = random.Random(seed)
    choices = chance.choice((1, 1, 2, 3))
    events: list[Event] = [StreamStart("r", "m", seed)]
    for number in range(chance.randrange(12)):
        index = chance.randrange(choices)
        some: list[list[BareEvent]] = [
            text(f"t{number}"),
            [ReasoningStart(chance.random() < 0.5), ReasoningDelta("h"), ReasoningDelta("m"), ReasoningEnd(NATIVE)],
            call(f"c{number}", chance.choice(("function", "custom", "server")), complete=chance.random() < 0.8),
            [ToolResult(f"c{number - 1}", "r", native=chance.choice((None, NATIVE)))],
            [TextStart(), TextDelta("cited"), Citation("u"), TextEnd()],
            [Citation("late")],
            [Media("image/png", "AA")],
            [Media("audio/wav", "AA", id=f"m{chance.randrange(2)}", transcript="t")],
            [StepEnd(number, chance.choice(("tool_calls", "pause", "length")))],
        ]
        shared: list[list[BareEvent]] = [[Usage(number, chance.choice((None, 3)))], [Extra("d", {"n": number})]]
        chosen = chance.choice(some if index else some + shared)
        events += [Choice(index, event) if index else event for event in chosen]
    events += [Choice(index, StreamEnd("length")) for index in range(1, choices)]
    ends: tuple[Event, ...] = (StreamEnd("end", "stop", "##"), StreamError("c", "m"))
    return [*events, chance.choice(ends)]


@each(seed=range(300))
def test_replaying_and_collecting_are_inverse(seed: int) -> None:
    events = random_stream(seed)
    check(events)
    response = collect(events)
    replayed = replay(response)
    check(replayed)
    assert collect(replayed) == response


# --- history


def test_an_answer_of_one_turn_is_one_message() -> None:
    response = collect([StreamStart(), *text("Hi."), StreamEnd()])
    assert messages_of(response) == [Message("assistant", [TextPart("Hi.")])]
    assert messages_of(response, 1) == messages_of(Response()) == []


def test_steps_become_alternating_messages() -> None:
    asked = '{"port":"Oslo"}'
    assert messages_of(collect(LOOP)) == [
        Message("assistant", [TextPart("I look."), ToolCallPart("a", "tides", asked)]),
        Message("tool", [ToolResultPart("a", [TextPart("high")], name="tides")]),
        Message("assistant", [TextPart("It is high."), ToolCallPart("b", "tides", asked)]),
        Message("tool", [ToolResultPart("b", [TextPart("low")], True, "tides")]),
        Message("assistant", [TextPart("Done.")]),
    ]


def test_results_follow_all_calls_of_their_turn() -> None:
    events = [*call("a"), ToolResult("a", "1"), *call("b", "custom"), ToolResult("b", "2"), StepEnd(1), *text("Done.")]
    messages = messages_of(collect([StreamStart(), *events, StreamEnd()]))
    assert [message.role for message in messages] == ["assistant", "tool", "tool", "assistant"]
    assert [part.kind for part in messages[0].parts if isinstance(part, ToolCallPart)] == ["function", "custom"]
    assert [part.kind for message in messages for part in message.parts if isinstance(part, ToolResultPart)] == [
        "function",
        "custom",
    ]


def test_without_steps_a_part_after_a_result_begins_a_turn() -> None:
    events = [*call("a", "function"), ToolResult("a", "1"), *text("Done."), *call("b", "function"), ToolResult("b", "2")]
    messages = messages_of(collect([StreamStart(), *events, StreamEnd()]))
    assert [message.role for message in messages] == ["assistant", "tool", "assistant", "tool"]


def test_calls_that_the_provider_ran_stay_in_their_message() -> None:
    events = [*call("a", native=NATIVE), ToolResult("a", "1", native=NATIVE), ToolResult("z", "2", native=NATIVE), *text("Done.")]
    messages = messages_of(collect([StreamStart(), *events, StreamEnd()]))
    assert [message.role for message in messages] == ["assistant"]
    assert [type(part).__name__ for part in messages[0].parts] == [
        "ToolCallPart",
        "ToolResultPart",
        "ToolResultPart",
        "TextPart",
    ]


def test_an_incomplete_call_is_not_part_of_the_history() -> None:
    events = [*text("I look."), *call("a", "function", complete=False)]
    assert messages_of(collect([StreamStart(), *events, StreamEnd("length")])) == [Message("assistant", [TextPart("I look.")])]


def test_a_result_whose_call_is_elsewhere_is_kept() -> None:
    messages = messages_of(collect([StreamStart(), ToolResult("z", "1"), *text("Done."), StreamEnd()]))
    assert messages == [
        Message("tool", [ToolResultPart("z", [TextPart("1")])]),
        Message("assistant", [TextPart("Done.")]),
    ]


UPSTREAMS = sorted(name for name, entry in DIALECTS.items() if entry.has_reader)
WITHOUT_TOOLS = {"openai_completions", "qwen_web"}


@pytest.mark.parametrize("name", sorted(set(UPSTREAMS) - WITHOUT_TOOLS))
def test_the_history_of_a_loop_can_be_sent_to_every_upstream(name: str) -> None:
    messages = [Message("user", [TextPart("How high is it?")]), *messages_of(collect(LOOP))]
    tools = [ToolSpec("tides", parameters={"type": "object", "properties": {"port": {"type": "string"}}})]
    built = DIALECTS[name].build_request(Request(model="anthropic.m", messages=messages, tools=tools, max_tokens=9))
    sent = repr(built.body)
    places = [sent.index(word) for word in ("How high", "I look.", "Oslo", "'high", "It is high.", "low", "Done.")]
    assert places == sorted(places)


# --- one text


def test_texts_of_two_steps_are_kept_apart() -> None:
    joined = with_step_breaks(collect(LOOP).choices[0])
    assert "".join(part.text for part in joined if isinstance(part, TextPart)) == "I look.\n\nIt is high.\n\nDone."
    silent = collect([StreamStart(), *call("a"), StepEnd(1), *text("Done."), StreamEnd()]).choices[0]
    assert silent.text == "".join(part.text for part in with_step_breaks(silent) if isinstance(part, TextPart)) == "Done."
    assert with_step_breaks(ResponseChoice(0, [TextPart("a"), TextPart("b")])) == [TextPart("a"), TextPart("b")]


def test_stop_reasons_of_steps_are_those_of_the_stream() -> None:
    reasons: list[StopReason] = ["tool_calls", "pause"]
    events: list[Event] = [StreamStart(), *(StepEnd(number, reason) for number, reason in enumerate(reasons)), StreamEnd()]
    assert [step.reason for step in collect(events).choices[0].steps] == reasons


def test_the_result_of_a_call_that_is_left_out_is_left_out_too() -> None:
    events = [
        StreamStart(),
        *call("a", complete=False),
        *call("b"),
        ToolResult("a", "not run"),
        ToolResult("b", "yes"),
        StreamEnd(),
    ]
    history = messages_of(collect(events))
    assert [part.call_id for message in history for part in message.parts if isinstance(part, ToolResultPart)] == ["b"]


def test_results_stand_in_the_order_of_their_calls() -> None:
    events = [StreamStart(), *call("a"), *call("b"), ToolResult("b", "2"), ToolResult("a", "1"), StepEnd(1), StreamEnd()]
    history = messages_of(collect(events))
    assert [part.text for message in history for part in message.parts if isinstance(part, ToolResultPart)] == ["1", "2"]
