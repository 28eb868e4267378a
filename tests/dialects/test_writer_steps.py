"""All writers: answers of several model turns, events without a start, and deltas outside their block."""

from __future__ import annotations

import json

import msgspec
import pytest

import streamglot
from streamglot import DIALECTS, GrammarError, collect
from vocabulary import *

WRITERS = sorted(name for name, entry in DIALECTS.items() if entry.has_writer)
BOTH = sorted(name for name in WRITERS if DIALECTS[name].has_reader)
JOINED = ["gemini", "ollama", "openai_chat", "openai_completions"]
"""Dialects with one text for the whole answer."""
SHOWN = ["anthropic", "openai_responses"]
"""Dialects with a form for calls that a server ran."""
TEXT: list[Event] = [TextStart(), TextDelta("hi"), TextEnd()]
LOOP: list[Event] = [
    StreamStart("a-1", "m-1", 7),
    *(TextStart(), TextDelta("I look."), TextEnd()),
    *(ToolCallStart("c", "tides", "server"), ToolCallDelta('{"port":"Oslo"}'), ToolCallEnd()),
    *(Usage(10, 5, raw={"prompt_tokens": 10, "completion_tokens": 5}), StepEnd(1), ToolResult("c", "high")),
    *(TextStart(), TextDelta("It is"), TextDelta(" high."), TextEnd()),
    *(TextStart(), TextDelta(" Very."), TextEnd()),
    *(Usage(20, 6), Usage(20, 7), StreamEnd()),
]


def written(dialect: str, events: list[Event]) -> bytes:
    box = streamglot.writer(dialect, id="a-1", model="m-1", created=7)
    return b"".join([*(box.feed([event]) for event in events), box.close()])


def read(dialect: str, body: bytes) -> list[Event]:
    box = streamglot.reader(dialect)
    return box.feed(body) + box.close()


# --- steps


@pytest.mark.parametrize("dialect", BOTH)
def test_usage_is_summed_over_steps(dialect: str) -> None:
    box = streamglot.writer(dialect, include_usage=True)
    body = box.feed(LOOP)
    assert box.usage == Usage(30, 12)
    usage = collect(read(dialect, body)).usage
    assert (usage.input_tokens, usage.output_tokens) == (30, 12)
    if DIALECTS[dialect].has_response:
        whole = DIALECTS[dialect].build_response(collect(LOOP))
        assert DIALECTS[dialect].parse_response(whole).usage.input_tokens == 30


@pytest.mark.parametrize("dialect", BOTH)
def test_texts_of_two_steps_do_not_run_into_each_other(dialect: str) -> None:
    entry = DIALECTS[dialect]
    streamed = collect(read(dialect, written(dialect, LOOP))).choices[0]
    whole = entry.parse_response(entry.build_response(collect(LOOP))).choices[0]
    for choice in (streamed, whole):
        texts = [part.text for part in choice.parts if isinstance(part, TextPart)]
        if dialect in JOINED:
            assert "".join(texts) == "I look.\n\nIt is high. Very."
        else:
            assert (texts[0], "".join(texts[1:])) == ("I look.", "It is high. Very.")


@pytest.mark.parametrize("dialect", WRITERS)
def test_the_client_runs_no_call_of_a_loop(dialect: str) -> None:
    if dialect in BOTH:
        parts = collect(read(dialect, written(dialect, LOOP))).choices[0].parts
        shown = [part for part in parts if not isinstance(part, TextPart)]
        assert all(part.kind == "server" for part in shown if isinstance(part, ToolCallPart))
        assert bool(shown) is (dialect in SHOWN)
    else:
        box = streamglot.writer(dialect)
        assert b"pendingToolCallIds" not in box.feed(LOOP)
        assert not box.lost


def test_agents_are_shown_the_steps() -> None:
    body = written("vercel_ui", LOOP)
    assert body.count(b'"start-step"') == body.count(b'"finish-step"') == 2
    body = written("agui", LOOP)
    assert body.count(b'"STEP_STARTED"') == body.count(b'"STEP_FINISHED"') == 2


@pytest.mark.parametrize("dialect", ["gemini", "openai_chat"])
def test_steps_of_another_choice_are_kept_apart_too(dialect: str) -> None:
    events: list[Event] = [StreamStart(), *TEXT, *(Choice(1, event) for event in (*TEXT, StepEnd(1), *TEXT, StreamEnd()))]  # type: ignore[arg-type]  # none of them is a Choice
    assert collect(read(dialect, written(dialect, [*events, StreamEnd()]))).choices[1].text == "hi\n\nhi"


def test_a_step_without_text_needs_no_break() -> None:
    events = [StreamStart(), StepEnd(1), *TEXT, StreamEnd()]
    for dialect in JOINED:
        assert collect(read(dialect, written(dialect, events))).choices[0].text == "hi"
    refusal: list[Event] = [TextStart(refusal=True), TextDelta("no"), TextEnd()]
    body = written("openai_chat", [StreamStart(), *TEXT, StepEnd(1), *refusal, StreamEnd()])
    assert collect(read("openai_chat", body)).choices[0].text == "hi"


# --- the start of a stream and of a block


@pytest.mark.parametrize("dialect", WRITERS)
def test_events_without_a_start_get_one(dialect: str) -> None:
    for first in ([], [KeepAlive("a")]):
        with_start = written(dialect, [*first, StreamStart(), *TEXT, Usage(1, 2), StreamEnd()])
        assert written(dialect, [*first, *TEXT, Usage(1, 2), StreamEnd()]) == with_start
    assert written(dialect, [StreamEnd()]) == written(dialect, [StreamStart(), StreamEnd()])


@pytest.mark.parametrize("dialect", WRITERS)
@pytest.mark.parametrize(
    ("event", "start"),
    [
        (TextDelta("hi"), "TextStart"),
        (ReasoningDelta("hm"), "ReasoningStart"),
        (ToolCallDelta("{}"), "ToolCallStart"),
    ],
)
def test_a_delta_outside_of_its_block_is_refused(dialect: str, event: Event, start: str) -> None:
    other: Event = TextStart() if isinstance(event, ToolCallDelta) else ToolCallStart("c", "f")
    blocks: list[list[Event]] = [[], [StreamStart()], [StreamStart(), *TEXT], [StreamStart(), other]]
    for before in blocks:
        box = streamglot.writer(dialect)
        box.feed(before)
        with pytest.raises(GrammarError, match=f"is outside its block: feed {start} first"):
            box.feed([event])


@pytest.mark.parametrize("dialect", WRITERS)
def test_a_refused_event_leaves_a_stream_that_can_be_ended(dialect: str) -> None:
    box = streamglot.writer(dialect)
    body = box.feed([StreamStart("a-1", "m-1", 7), *TEXT])
    with pytest.raises(GrammarError):
        box.feed([TextDelta("more")])
    body += box.feed([StreamError("overloaded", "come back later")]) + box.close()
    if dialect in BOTH:
        last = read(dialect, body)[-1]
        assert isinstance(last, StreamError)
        assert "come back later" in last.message
    else:
        assert b"come back later" in body


@pytest.mark.parametrize("dialect", WRITERS)
def test_every_line_of_a_stream_without_a_start_is_whole(dialect: str) -> None:
    """Each data line is one JSON value, as every client expects."""
    events: list[Event] = [ReasoningStart(), ReasoningDelta("hm"), ReasoningEnd(), *TEXT, StreamEnd()]
    for line in written(dialect, events).decode().splitlines():
        data = line.removeprefix("data: ") if dialect != "ollama" else line
        if data and not line.startswith(("event:", ":")) and data != "[DONE]":
            json.loads(data)


# --- calls that streamglot's tool loop ran

FAILED: list[Event] = [
    ToolResult("c", "no such port", is_error=True) if isinstance(event, ToolResult) else event for event in LOOP
]


@pytest.mark.parametrize("events", [LOOP, FAILED])
@pytest.mark.parametrize("dialect", SHOWN)
def test_a_call_of_the_loop_comes_back_in_the_history_of_the_client(dialect: str, events: list[Event]) -> None:
    entry = DIALECTS[dialect]
    whole = entry.build_response(collect(events))
    if dialect == "anthropic":
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "assistant", "content": whole["content"]}]}
    else:
        body = {"model": "m", "input": whole["output"]}
    [message] = entry.parse_request(body).messages
    failed = events is FAILED
    assert [part for part in message.parts if isinstance(part, ToolCallPart)] == [
        ToolCallPart("c", "tides", '{"port":"Oslo"}', "server")
    ]
    assert [part for part in message.parts if isinstance(part, ToolResultPart)] == [
        ToolResultPart("c", [TextPart("no such port" if failed else "high")], failed, kind="server")
    ]
    streamed = collect(read(dialect, written(dialect, events))).choices[0].parts
    assert [part.name for part in streamed if isinstance(part, ToolCallPart)] == ["tides"]


def test_a_call_of_the_loop_is_written_in_the_order_that_clients_expect() -> None:
    body = written("openai_responses", LOOP)
    kinds = [line.split(b": ")[1].decode() for line in body.splitlines() if line.startswith(b"event: response.mcp")]
    assert kinds == [
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ]
    assert b"response.mcp_call.failed" in written("openai_responses", FAILED)
    assert b'"input":{"port":"Oslo"}' in written("anthropic", LOOP)
    assert b'"is_error":true' in written("anthropic", FAILED)


@pytest.mark.parametrize("dialect", SHOWN)
def test_a_call_without_a_result_is_not_shown(dialect: str) -> None:
    events: list[Event] = [event for event in LOOP if not isinstance(event, ToolResult)]
    assert b"tides" not in written(dialect, events)
    assert b"tides" not in msgspec.json.encode(DIALECTS[dialect].build_response(collect(events)))
