"""How chat clients stream, call tools and batch: the sections on tools, run through reader, loop and threads."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import streamglot
from streamglot.events import ReasoningDelta, StreamEnd, TextDelta, ToolCallEnd, ToolCallStart
from streamglot.messages import ReasoningPart, ToolCallPart
from tools.chat_model import ChatModel
from waiting import WAIT_SECONDS

FUNCTION = {"name": "get_weather", "arguments": ""}
CHUNKS: list[dict[str, Any]] = [
    {
        "choices": [
            {
                "delta": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"index": 0, "id": "call_abc", "type": "function", "function": FUNCTION}],
                },
                "finish_reason": None,
            }
        ]
    },
    {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"location":'}}]}}]},
    {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ' "Paris"}'}}]}}]},
    {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]},
]
THOUGHTS: list[dict[str, Any]] = [
    {"choices": [{"delta": {"reasoning_details": [{"type": "reasoning.text", "text": "Which city? "}]}}]},
    {"choices": [{"delta": {"reasoning_content": "Paris."}}]},
    {"choices": [{"delta": {"content": "I look."}}]},
]


def stream_of(chunks: list[dict[str, Any]]) -> bytes:
    lines = [b": PROCESSING\n\n", *(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks), b"data: [DONE]\n\n"]
    return b"".join(lines)


def read(chunks: list[dict[str, Any]]) -> list[streamglot.Event]:
    reader, data = streamglot.reader("openai_chat"), stream_of(chunks)
    events = [event for place in range(len(data)) for event in reader.feed(data[place : place + 1])]
    events += reader.close()
    streamglot.check(events)
    return events


def test_2_streaming_when_tools_are_in_the_request() -> None:
    answer = streamglot.collect(read(CHUNKS)).choices[0]
    [call] = answer.parts
    assert isinstance(call, ToolCallPart)
    assert (call.call_id, call.name, json.loads(call.arguments)) == ("call_abc", "get_weather", {"location": "Paris"})
    assert (call.complete, answer.stop_reason) == (True, "tool_calls")


def test_2_a_call_is_run_only_when_its_stream_has_ended() -> None:
    broken = [event for event in read(CHUNKS[:2]) if isinstance(event, ToolCallEnd)]
    assert [event.complete for event in broken] == [False]


def test_3_reasoning_before_content_and_tool_calls() -> None:
    events = read([*THOUGHTS, *CHUNKS])
    kinds = [type(event) for event in events if isinstance(event, (ReasoningDelta, TextDelta, ToolCallStart))]
    assert kinds == [ReasoningDelta, ReasoningDelta, TextDelta, ToolCallStart]
    first = streamglot.collect(events).choices[0].parts[0]
    assert isinstance(first, ReasoningPart)
    assert first.text == "Which city? Paris."


def test_7_multiple_tool_calls_run_together_and_results_come_in_call_order(model: ChatModel) -> None:
    both = threading.Barrier(2)

    @streamglot.tool
    def get_weather(city: str) -> str:
        both.wait(WAIT_SECONDS)  # neither call ends before the other one has begun
        return f"sunny in {city}"

    with streamglot.Client(upstreams=[model.upstream()], tools=[get_weather]) as client:
        answer = streamglot.collect(client.stream(model="m", messages="weather?"))
    assert answer.choices[0].text == "sunny in Paris and sunny in Rome"


def test_7_partial_failures_do_not_affect_the_other_results(model: ChatModel) -> None:
    @streamglot.tool
    def get_weather(city: str) -> str:
        if city == "Paris":
            raise streamglot.ToolError("no station in Paris")
        return f"sunny in {city}"

    with streamglot.Client(upstreams=[model.upstream()], tools=[get_weather]) as client:
        answer = streamglot.collect(client.stream(model="m", messages="weather?"))
    assert answer.choices[0].text == "Error: no station in Paris and sunny in Rome"


def test_8_a_worker_thread_passes_errors_and_ends_to_the_main_loop(model: ChatModel) -> None:
    @streamglot.tool
    def get_weather(city: str) -> str:
        return f"sunny in {city}"

    with streamglot.Client(upstreams=[model.upstream()], tools=[get_weather]) as client:
        running = streamglot.run_in_thread(client=client, model="m", messages="weather?")
        events: list[streamglot.Event] = []
        while not running.finished:
            events += running.drain()  # never waits
            time.sleep(0.001)
        failing = streamglot.run_in_thread(client=client, model="unknown", messages="weather?")
        received = list(failing)
    assert isinstance(events[-1], StreamEnd)
    assert isinstance(received[-1], streamglot.StreamError)
