"""Tool calls and their results as clients see them: chat chunks, AG-UI events, and the ``extensions`` of a whole answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import streamglot
from gateway.running import Running, running
from streamglot.inband import inband
from tools.chat_model import ChatModel
from vocabulary import *

TOOLS = """
import streamglot

@streamglot.tool
async def weather(city: str) -> str:
    return "sunny in " + city
"""
CALL: list[streamglot.Event] = [
    StreamStart("chatcmpl-123", "m", 1),
    ToolCallStart("call_abc123", "get_weather"),
    ToolCallDelta('{"location":'),
    ToolCallDelta(' "Paris"}'),
    ToolCallEnd(),
    StreamEnd("tool_calls"),
]


@pytest.fixture
def gateway(model: ChatModel, tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "mytools.py").write_text(TOOLS)
    config = {
        "upstreams": {"scripted": {"base_url": model.url, "models": ["m"]}},
        "routes": [{"models": ["m"], "to": [{"upstream": "scripted"}], "tools": ["weather"]}],
        "tools": {"enabled": ["weather"], "python": [str(tmp_path / "mytools.py")]},
    }
    with running(config) as gateway:
        yield gateway


def written(dialect: str, events: list[streamglot.Event]) -> list[dict[str, Any]]:
    options: dict[str, Any] = {"thread_id": "t", "run_id": "r"} if dialect == "agui" else {}
    writer = streamglot.writer(dialect, **options)
    lines = (writer.feed(events) + writer.close()).decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_tool_call_start_arguments_and_end_as_chat_chunks() -> None:
    deltas = [chunk["choices"][0]["delta"] for chunk in written("openai_chat", CALL) if chunk["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls[0] == {"index": 0, "id": "call_abc123", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    assert "".join(call["function"]["arguments"] for call in calls) == '{"location": "Paris"}'
    assert all(call["index"] == 0 for call in calls)


def test_tool_call_start_arguments_and_end_as_agui_events() -> None:
    events = [event for event in written("agui", CALL) if event["type"].startswith("TOOL_CALL_")]
    assert [event["type"] for event in events] == ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_ARGS", "TOOL_CALL_END"]
    assert {event["toolCallId"] for event in events} == {"call_abc123"}
    assert events[0]["toolCallName"] == "get_weather"


@pytest.mark.parametrize(
    ("notation", "answer_text"),
    [
        ("mistral", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"location": "Paris"}}]'),
        ("llama", '<function=get_weather>{"location": "Paris"}</function>'),
        ("qwen", '<tool_call>{"name": "get_weather", "arguments": {"location": "Paris"}}</tool_call>'),
        ("generic", '{"name": "get_weather", "arguments": {"location": "Paris"}}'),
    ],
)
def test_tool_call_detection(notation: str, answer_text: str) -> None:
    """Each notation of the models that use it, character by character."""
    formats = {"mistral": "mistral", "llama": "llama_function", "qwen": "hermes", "generic": "generic_json"}
    box = inband(formats[notation], [ToolSpec("get_weather")])
    text: list[Any] = [StreamStart(), TextStart(), *map(TextDelta, answer_text), TextEnd(), StreamEnd("end")]
    events = [out for event in text for out in box.feed(event)] + box.close()
    [call] = [part for part in streamglot.collect(events).choices[0].parts if isinstance(part, ToolCallPart)]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"location": "Paris"})


def test_blocking_mode_has_calls_and_results_in_its_extensions(gateway: Running) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "weather?"}], "extensions": True}
    for asked in (body, {**body, "extensions": False, "streamglot": {"activity": "extensions"}}):
        answer = gateway.ask("/v1/chat/completions", asked).json()
        chunks = answer["extensions"]["tool_call_chunks"]
        assert [chunk["type"] for chunk in chunks] == ["start", "args", "end", "start", "args", "end", "result", "result"]
        assert chunks[0] == {"type": "start", "tool_call_id": "call_0", "tool_name": "weather"}
        assert chunks[-1] == {"type": "result", "tool_call_id": "call_1", "content": "sunny in Rome"}
        assert answer["choices"][0]["finish_reason"] == "stop"


def streamed(gateway: Running, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    lines = gateway.ask(path, body, headers).body.decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_tool_execution_results_are_streamed_to_chat_clients_that_ask(gateway: Running) -> None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "weather?"}], "stream": True}
    plain = streamed(gateway, "/v1/chat/completions", body)
    assert not any("extensions" in chunk for chunk in plain)
    shown = streamed(gateway, "/v1/chat/completions", {**body, "streamglot": {"activity": "extensions"}})
    chunks = [entry for chunk in shown for entry in chunk.get("extensions", {}).get("tool_call_chunks", ())]
    assert sorted(chunk["type"] for chunk in chunks) == sorted(["start", "args", "end", "result"] * 2)
    assert [chunk["type"] for chunk in chunks if chunk["tool_call_id"] == "call_0"] == ["start", "args", "end", "result"]
    assert [chunk["delta"] for chunk in chunks if chunk["type"] == "args"] == ['{"city":"Paris"}', '{"city":"Rome"}']
    by_header = streamed(gateway, "/v1/chat/completions", body, {"x-streamglot-activity": "extensions"})
    assert [entry for chunk in by_header for entry in chunk.get("extensions", {}).get("tool_call_chunks", ())][:3] == chunks[:3]
    assert {chunk["content"] for chunk in chunks if chunk["type"] == "result"} == {"sunny in Paris", "sunny in Rome"}
    events = streamed(gateway, "/v1/chat/completions", {**body, "streamglot": {"activity": "reasoning"}})
    words = "".join(chunk["choices"][0]["delta"].get("reasoning_content", "") for chunk in events if chunk["choices"])
    assert 'Running weather({"city":"Paris"})' in words
    assert "weather answered: sunny in Rome" in words


def test_activity_events_for_agui_clients_that_ask(gateway: Running) -> None:
    run = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "weather?"}], "tools": []}
    body = {**run, "context": [], "state": {}, "forwardedProps": {"model": "m"}}
    kinds = [event["type"] for event in streamed(gateway, "/agui", body)]
    assert kinds.count("TOOL_CALL_RESULT") == 2
    assert "ACTIVITY_SNAPSHOT" not in kinds
    asked = {"activity": "extensions"}
    ways: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({**body, "streamglot": asked}, {}),
        ({**body, "forwardedProps": {"model": "m", "streamglot": asked}}, {}),
        (body, {"x-streamglot-activity": "extensions"}),
    ]
    for given, headers in ways:
        events = streamed(gateway, "/agui", given, headers)
        activity = [event for event in events if event["type"].startswith("ACTIVITY_")]
        assert sorted(event["type"] for event in activity) == ["ACTIVITY_DELTA"] * 4 + ["ACTIVITY_SNAPSHOT"] * 2
        first = next(event for event in activity if event["type"] == "ACTIVITY_SNAPSHOT")
        assert first["content"]["toolName"] == "weather"
        values = [event["patch"][0]["value"] for event in activity if event["type"] == "ACTIVITY_DELTA"]
        assert sorted(values) == ["done", "done", '{"city":"Paris"}', '{"city":"Rome"}']


def test_forwarded_properties_say_what_a_field_or_a_header_says(gateway: Running) -> None:
    run = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "weather?"}], "tools": []}

    def ask(**options: Any) -> Any:
        body = {**run, "context": [], "state": {}, "forwardedProps": {"model": "m", "streamglot": options}}
        return gateway.ask("/agui", body)

    assert "TOOL_CALL_RESULT" not in ask(tools=[]).body.decode()
    assert "TOOL_CALL_RESULT" in ask(tools=["weather"]).body.decode()
    assert "Running weather" in ask(activity="reasoning").body.decode()
    assert ask(keep=True, session="s", output="strict", extensions=True, reasoning_field="all", directory="d").status == 200
    for wrong, words in (
        ({"activity": "loud"}, "extensions or reasoning"),
        ({"loud": 1}, "forwardedProps.streamglot must be an object with tools, activity"),
        ({"keep": "yes"}, "forwardedProps.streamglot.keep must be true or false"),
        ({"output": "thin"}, "must be rich or strict"),
    ):
        answer = ask(**wrong)
        assert answer.status == 400
        assert words in answer.body.decode()


def test_other_dialects_show_runs_in_their_own_form_only(gateway: Running) -> None:
    body = {"model": "m", "input": "weather?", "streamglot": {"activity": "extensions"}, "stream": True}
    events = streamed(gateway, "/v1/responses", body)
    assert [event["item"]["type"] for event in events if event["type"] == "response.output_item.done"][:2] == ["mcp_call"] * 2
    wrong = gateway.ask("/v1/responses", {**body, "streamglot": {"activity": "loud"}})
    assert (wrong.status, "extensions or reasoning" in wrong.body.decode()) == (400, True)


def test_a_call_that_cannot_be_parsed_ends_the_stream_with_an_error() -> None:
    box = inband("hermes", [ToolSpec("get_weather")])
    answer_text = '<tool_call>{"name": "get_weather", "arguments": {"location": </tool_call>'
    text: list[Any] = [StreamStart(), TextStart(), TextDelta(answer_text), TextEnd(), StreamEnd("end")]
    events = [out for event in text for out in box.feed(event)] + box.close()
    last = events[-1]
    assert isinstance(last, StreamError)
    assert last.code == "tool_call_parse_error"
    [error] = [chunk["error"] for chunk in written("openai_chat", [*events]) if "error" in chunk]
    assert error["code"] == "tool_call_parse_error"


def test_results_are_in_the_extensions_with_their_failures() -> None:
    events: list[streamglot.Event] = [*CALL[:-1], ToolResult("call_abc123", "no station", is_error=True), CALL[-1]]
    extensions = streamglot.collect(events, extensions=True).extensions
    assert extensions is not None
    assert extensions["tool_call_chunks"][-1] == {
        "type": "result",
        "tool_call_id": "call_abc123",
        "content": "no station",
        "is_error": True,
    }
