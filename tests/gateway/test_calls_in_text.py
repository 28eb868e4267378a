"""What clients of the gateway get where a model writes calls and thoughts into its text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.conftest import upstreams_at
from gateway.running import Running, running
from gateway.scenarios import DONE, END, text_chunk
from gateway.upstream import HostileUpstream, sse, streamed

JSON = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"properties": {"city": {"type": "string"}}}}}]
BROKEN = ("Ok. ", '<tool_call>{"name": "get_weather", "arguments": {"city": oops}}', "</tool_call>")


def reasoning_chunk(text: str) -> dict[str, Any]:
    return {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"reasoning": text}}]}


@pytest.fixture(scope="module")
def workshop(upstream: HostileUpstream) -> Iterator[Running]:
    """Upstreams with a name of their own, whose models no profile knows."""
    for name, pieces in {
        "mystery": (JSON[:20], JSON[20:]),
        "mystery-broken": BROKEN,
        "mystery-end": ("Hello", "<|im_", "end|>"),
        "mystery-own": ("<pl", "an>Well.</plan>So ", f"<run>{JSON}</run>"),
    }.items():
        upstream.scripts[name] = streamed(sse(*map(text_chunk, pieces), END, DONE))
    marks = [reasoning_chunk(piece) for piece in ("<thi", "nk>Well.", "</think", ">")]
    upstream.scripts["mystery-marks"] = streamed(sse(*marks, text_chunk("Hello"), END, DONE))
    chat = upstreams_at(upstream.url, breaker={"failures": 1_000_000})["work"]
    own = {"thinking": [["<plan>", "</plan>"]], "calls": [["<run>", "</run>"]]}
    upstreams = {"workshop": chat, "own": {**chat, "markers": own}, "row": {**chat, "inband": "glm4x"}}
    with running({"upstreams": upstreams}) as gateway:
        yield gateway


def asked(gateway: Running, model: str, tools: bool = True) -> tuple[str, str, list[Any], dict[str, Any]]:
    body = {"model": model, "messages": [{"role": "user", "content": "q"}], "stream": True, **({"tools": TOOLS} if tools else {})}
    answer = gateway.ask("/v1/chat/completions", body)
    chunks = [json.loads(line[6:]) for line in answer.body.decode().splitlines() if line.startswith("data: {")]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    joined = [call["name"] for call in calls if call.get("name")] + ["".join(call["arguments"] for call in calls)] * bool(calls)
    text = "".join(delta.get("content") or "" for delta in deltas)
    return "".join(delta.get("reasoning_content") or delta.get("reasoning") or "" for delta in deltas), text, joined, chunks[-1]


def test_an_unknown_model_may_call_the_tools_of_the_request(workshop: Running) -> None:
    assert asked(workshop, "workshop/mystery")[1:3] == ("", ["get_weather", '{"city": "Paris"}'])
    assert asked(workshop, "workshop/mystery", tools=False)[1:3] == (JSON, [])


def test_your_own_markers_are_read(workshop: Running) -> None:
    assert asked(workshop, "own/mystery-own")[:3] == ("Well.", "So", ["get_weather", '{"city": "Paris"}'])
    assert asked(workshop, "own/mystery-own", tools=False)[0] == "Well."


@pytest.mark.parametrize("tools", [True, False])
def test_what_a_server_leaks_is_removed(workshop: Running, tools: bool) -> None:
    assert asked(workshop, "workshop/mystery-end", tools)[1] == "Hello"
    assert asked(workshop, "workshop/mystery-marks", tools)[:2] == ("Well.", "Hello")


def test_nothing_of_a_broken_call_is_content(workshop: Running) -> None:
    _, text, _, last = asked(workshop, "workshop/mystery-broken")
    assert (text, last["error"]["type"]) == ("Ok.", "tool_call_parse_error")


def test_a_blocking_answer_keeps_the_text_before_a_broken_call(workshop: Running) -> None:
    for stream in (False, None):
        body = {
            "model": "workshop/mystery-broken",
            "messages": [{"role": "user", "content": "q"}],
            "tools": TOOLS,
            "stream": stream,
        }
        answer = workshop.ask("/v1/chat/completions", body)
        assert (answer.status, answer.json()["error"]["type"]) == (502, "tool_call_parse_error")
        assert answer.json()["choices"][0]["message"]["content"] == "Ok."
        assert "tool_calls" not in answer.json()["choices"][0]["message"]


def test_agui_ends_a_broken_call(workshop: Running) -> None:
    tool = {"name": "get_weather", "description": "", "parameters": {}}
    body = {
        "threadId": "t",
        "runId": "r",
        "messages": [{"id": "1", "role": "user", "content": "q"}],
        "tools": [tool],
        "context": [],
        "state": {},
        "forwardedProps": {"model": "workshop/mystery-broken"},
    }
    lines = workshop.ask("/agui", body).body.decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert [event["type"] for event in events[-2:]] == ["TOOL_CALL_END", "RUN_ERROR"]
    assert events[-2]["metadata"] == {"complete": False}


def test_the_last_answer_shows_where_the_next_one_begins(workshop: Running, upstream: HostileUpstream) -> None:
    plain, thought = ("A plain ", "answer."), ("Well.</thi", "nk>Hello")
    separate = ("Well.", "Hello")
    for pieces, expected in (
        (plain, ("", "A plain answer.")),
        (plain, ("", "A plain answer.")),
        (thought, ("", "Well.Hello")),
        (thought, separate),
        (plain, ("A plain answer.", "A plain answer.")),
        (plain, ("", "A plain answer.")),
    ):
        upstream.scripts["mystery-turns"] = streamed(sse(*map(text_chunk, pieces), END, DONE))
        assert asked(workshop, "row/mystery-turns", tools=False)[:2] == expected
    upstream.scripts["mystery-thought"] = streamed(sse(*map(text_chunk, thought), END, DONE))
    assert asked(workshop, "row/mystery-thought", tools=False)[:2] == separate, "another model"
