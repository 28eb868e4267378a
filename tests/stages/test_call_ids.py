"""Ids of tool calls, unique in their conversation."""

from __future__ import annotations

import pytest

import streamglot
from streamglot.events import Choice, Event, StreamEnd, StreamStart, TextDelta, TextEnd, TextStart, ToolCallStart, ToolResult
from streamglot.framing.aws_eventstream import frame
from streamglot.inband import inband
from streamglot.messages import Message, Request, TextPart, ToolCallPart
from streamglot.stages import PerChoice, UniqueCallIds

EARLIER = Request(
    messages=[
        Message("user", [TextPart("q")]),
        Message("assistant", [TextPart("a"), ToolCallPart("call_1", "f", "{}"), ToolCallPart("new_1", "f", "{}")]),
    ]
)


def stage() -> UniqueCallIds:
    made = UniqueCallIds("new")
    assert made.request(EARLIER) is EARLIER
    return made


def test_an_id_of_the_history_is_replaced() -> None:
    assert stage().feed([ToolCallStart("call_1", "f")]) == [ToolCallStart("new_2", "f")]


def test_an_id_that_is_new_stays() -> None:
    made = stage()
    assert made.taken == {"call_1", "new_1"}
    assert made.feed([ToolCallStart("call_2", "f", "custom")]) == [ToolCallStart("call_2", "f", "custom")]


def test_an_id_that_comes_twice_in_one_answer_is_replaced() -> None:
    events: list[Event] = [ToolCallStart("a", "f"), ToolCallStart("a", "g"), ToolCallStart("", "h")]
    assert stage().feed(events) == [ToolCallStart("a", "f"), ToolCallStart("new_2", "g"), ToolCallStart("new_3", "h")]


def test_results_follow_their_call() -> None:
    made = stage()
    made.feed([ToolCallStart("call_1", "f", "server")])
    assert made.feed([ToolResult("call_1", "r"), ToolResult("z", "r")]) == [ToolResult("new_2", "r"), ToolResult("z", "r")]


def test_a_result_for_a_call_of_the_history_stays() -> None:
    assert stage().feed([ToolResult("call_1", "r")]) == [ToolResult("call_1", "r")]


def test_choices_share_the_ids() -> None:
    events: list[Event] = [ToolCallStart("a", "f"), Choice(1, ToolCallStart("a", "f")), Choice(1, ToolResult("a", "r"))]
    given = stage().feed([*events, ToolResult("a", "r")])
    assert given == [events[0], Choice(1, ToolCallStart("new_2", "f")), Choice(1, ToolResult("new_2", "r")), ToolResult("a", "r")]


def test_events_without_an_id_pass() -> None:
    events: list[Event] = [StreamStart(), TextStart(), TextDelta("a"), TextEnd(), StreamEnd()]
    assert stage().feed(events) == events
    assert stage().close() == []


# --- ids that are made here


CALL = {
    "openai_chat": b'{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]},"finish_reason":"stop"}],"id":"c"}',
    "ollama": b'{"model":"m","created_at":"2026-01-01T00:00:00Z","message":{"tool_calls":[{"function":{"name":"f"}}]},"done":true}\n',
    "gemini": b'{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f"}}]},"finishReason":"STOP"}],"responseId":"c"}',
    "bedrock_invoke": frame(
        b'{"bytes":"eyJjaG9pY2VzIjpbeyJpbmRleCI6MCwibWVzc2FnZSI6eyJ0b29sX2NhbGxzIjpbeyJmdW5jdGlvbiI6eyJuYW1lIjoiZiIsImFyZ3VtZW50cyI6Int9In19XX0sImZpbmlzaF9yZWFzb24iOiJzdG9wIn1dLCJpZCI6ImMifQ=="}',
        {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"},
    ),
}


@pytest.mark.parametrize("dialect", sorted(CALL))
def test_calls_without_an_id_get_the_given_prefix(dialect: str) -> None:
    box = streamglot.reader(dialect, call_prefix="call_x")
    events = box.feed(CALL[dialect]) + box.close()
    assert [event.call_id for event in events if isinstance(event, ToolCallStart)] == ["call_x_1"]


def test_calls_in_the_text_get_the_given_prefix() -> None:
    box = PerChoice(lambda: inband("hermes", call_prefix="call_x"))
    text = TextDelta('<tool_call>{"name":"f","arguments":{}}</tool_call>')
    events = [given for event in (StreamStart(), TextStart(), text, TextEnd(), StreamEnd()) for given in box.feed(event)]
    assert [event.call_id for event in events if isinstance(event, ToolCallStart)] == ["call_x_1"]
