"""The vendors' own clients in Node read our streams over a real socket."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from clients.node import FOLDER, SUMMARIES_ONLY, NodeClients
from clients.server import StreamServer
from streamglot import check, collect, writer
from streamglot.dialects.agui.request import parse as parse_agui
from streamglot.dialects.common.server_tools import ApprovalPrompt, asking
from streamglot.dialects.vercel_ui.request import parse as parse_vercel_ui
from vocabulary import *

SIGNED = Echo("elsewhere", {"signature": "S"})
NATIVE = Echo("elsewhere", {"block": 1})
START = StreamStart("c-1", "model-1", 5)
UI_CLIENTS = (("agui", "ag-ui"), ("vercel_ui", "ai-6"), ("vercel_ui", "ai-7"))
CHAT_CLIENTS = (
    ("openai_chat", "openai-chat"),
    ("openai_chat", "ai-sdk-openai-compatible-6"),
    ("openai_chat", "ai-sdk-openai-compatible-7"),
    ("openai_responses", "openai-responses"),
    ("openai_responses", "ai-sdk-openai-responses"),
    ("anthropic", "anthropic"),
    ("anthropic", "ai-sdk-anthropic"),
    ("gemini", "google-genai"),
)
THOUGHT: list[Event] = [ReasoningStart(), ReasoningDelta("Let me "), ReasoningDelta("see"), ReasoningEnd(SIGNED)]
TEXT: list[Event] = [TextStart(), TextDelta("Hé"), KeepAlive(), TextDelta("llo \u2028 😀"), TextEnd()]
CALL: list[Event] = [
    ToolCallStart("call_1", "get_weather"),
    ToolCallDelta('{"city":'),
    ToolCallDelta(' "Bern"}'),
    ToolCallEnd(SIGNED),
]
USAGE = Usage(10, 5, 2, 0, 3)


@pytest.fixture(scope="module")
def server() -> Iterator[StreamServer]:
    with StreamServer() as running:
        yield running


def check_returned(first: Message, results: Message) -> None:
    """Checks a turn that a client sends back: the state of its provider, its calls and their results."""
    assert [part.echo for part in first.parts if isinstance(part, ReasoningPart)] == [SIGNED, SIGNED]
    assert [part.echo for part in first.parts if isinstance(part, TextPart)] == [SIGNED]
    calls = [part for part in first.parts if isinstance(part, ToolCallPart)]
    assert [(call.name, call.kind, call.echo, call.native) for call in calls] == [
        ("search", "server", None, NATIVE),
        ("get_weather", "function", SIGNED, None),
        ("draw", "custom", None, None),
    ]
    assert len(results.parts) == 2


def written(dialect: str, events: list[Event]) -> bytes:
    check(events)
    options: dict[str, Any] = {"thread_id": "thread", "run_id": "run"} if dialect == "agui" else {}
    box = writer(dialect, include_usage=True, **options)
    return box.feed(events) + box.close()


class Judge:
    """Writes the events in a dialect and has a client read them."""

    def __init__(self, node: NodeClients, server: StreamServer) -> None:
        self.node = node
        self.server = server

    def __call__(self, dialect: str, client: str, events: list[Event]) -> dict[str, Any]:
        return self.node.read(client, self.server.serve(written(dialect, events)))


@pytest.fixture
def judge(node: NodeClients, server: StreamServer) -> Judge:
    return Judge(node, server)


def understood(answer: dict[str, Any]) -> tuple[Any, ...]:
    calls = [(call["name"], json.loads(call["arguments"])) for call in answer["toolCalls"]]
    return answer["error"], answer["text"], answer["reasoning"], calls


LOOP: list[Event] = [
    START,
    *(TextStart(), TextDelta("I look."), TextEnd()),
    *(ToolCallStart("call_1", "get_weather", "server"), ToolCallDelta('{"city": "Bern"}'), ToolCallEnd()),
    *(Usage(10, 5), StepEnd(1), ToolResult("call_1", "sunny")),
    *(TextStart(), TextDelta("It is "), TextDelta("sunny."), TextEnd()),
    *(Usage(20, 6), StreamEnd()),
]
"""An answer of two model turns, between which a tool was run for the client."""


@pytest.mark.parametrize(("dialect", "client"), [*UI_CLIENTS, *CHAT_CLIENTS])
class TestEveryClient:
    def test_steps(self, judge: Judge, dialect: str, client: str) -> None:
        answer = judge(dialect, client, LOOP)
        assert answer["error"] is None
        assert (answer["text"].startswith("I look."), answer["text"].endswith("It is sunny.")) == (True, True)
        if dialect in ("openai_chat", "gemini"):
            assert answer["text"] == "I look.\n\nIt is sunny."
        if (dialect, client) not in UI_CLIENTS:
            assert all(call.get("server") for call in answer["toolCalls"]), "the client would run it"

    def test_text(self, judge: Judge, dialect: str, client: str) -> None:
        answer = judge(dialect, client, [START, *TEXT, USAGE, StreamEnd()])
        assert understood(answer) == (None, "Héllo \u2028 😀", "", [])
        assert answer["usage"]["input"] == 10
        assert answer["usage"]["output"] == 5

    def test_reasoning_and_calls(self, judge: Judge, dialect: str, client: str) -> None:
        second: list[Event] = [ToolCallStart("call_2", "get_time"), ToolCallDelta("{}"), ToolCallEnd()]
        answer = judge(dialect, client, [START, *THOUGHT, *TEXT, *CALL, *second, USAGE, StreamEnd("tool_calls")])
        calls = [("get_weather", {"city": "Bern"}), ("get_time", {})]
        reasoning = "" if client in SUMMARIES_ONLY else "Let me see"
        assert understood(answer) == (None, "Héllo \u2028 😀", reasoning, calls)

    def test_an_error_in_the_middle_is_reported_not_rejected(self, judge: Judge, dialect: str, client: str) -> None:
        answer = judge(dialect, client, [START, *TEXT, StreamError("upstream_truncated", "it broke off")])
        assert not answer["ok"]
        assert "it broke off" in answer["error"]
        assert not answer["rejected"]

    def test_a_stream_without_its_end_is_noticed(
        self, node: NodeClients, server: StreamServer, dialect: str, client: str
    ) -> None:
        """The harness itself: bytes that we never write must not pass."""
        body = written(dialect, [START, *TEXT, StreamEnd()])
        assert not node.read(client, server.serve(body[: body.index(b"llo")]))["ok"]


ALL: list[Event] = [
    START,
    *THOUGHT,
    ReasoningStart(summary=True),
    ReasoningEnd(SIGNED, redacted=True),
    *TEXT[:-1],
    Citation("http://example.org/", "Example", "Hé", 0, 2, NATIVE),
    Citation(title="A book"),
    TextEnd(SIGNED),
    *(ToolCallStart("search_1", "search", "server", NATIVE), ToolCallEnd(), ToolResult("search_1", "hit", native=NATIVE)),
    *CALL,
    *(ToolCallStart("call_2", "draw", "custom"), ToolCallDelta("a {cat"), ToolCallEnd()),
    ToolResult("call_1", "rain"),
    ToolResult("call_2", "no paper", True),
    StepEnd(1),
    *(Media("image/png", "AAAA"), Media("audio/wav", "AAAA", id="m"), Media("audio/wav", "BBBB", id="m")),
    *(TextStart(refusal=True), TextDelta("I will not"), TextEnd()),
    Extra("agui", {"type": "ACTIVITY_SNAPSHOT", "messageId": "act", "activityType": "search", "content": {"done": 0}}),
    Extra(
        "agui",
        {
            "type": "ACTIVITY_DELTA",
            "messageId": "act",
            "activityType": "search",
            "patch": [{"op": "replace", "path": "/done", "value": 1}],
        },
    ),
    Extra("agui", {"type": "STATE_SNAPSHOT", "snapshot": {"a": 1}}),
    Extra("vercel_ui", {"type": "data-weather", "data": {"a": 1}}),
    *CALL,
    asking(ApprovalPrompt("question", "call_1", "May I?")),
    USAGE,
    StreamEnd("tool_calls", "tool_use"),
]


class TestUserInterfaces:
    @pytest.mark.parametrize(("dialect", "client"), UI_CLIENTS)
    def test_every_event(self, judge: Judge, dialect: str, client: str) -> None:
        answer = judge(dialect, client, ALL)
        assert answer["error"] is None
        assert answer["text"] == "Héllo \u2028 😀I will not"
        assert answer["reasoning"] == "Let me see"
        assert [call["name"] for call in answer["toolCalls"]] == ["search", "get_weather", "draw", "get_weather"]
        assert answer["usage"] == {"input": 10, "output": 5, "reasoning": 3, "cached": 2}

    def test_agui_messages_and_their_way_back(self, judge: Judge) -> None:
        answer = judge("agui", "ag-ui", ALL)
        messages = answer["messages"]
        roles = ["reasoning", "reasoning", "assistant", "tool", "tool", "tool", "assistant", "activity"]
        assert [message["role"] for message in messages] == roles
        assert messages[-1]["content"] == {"done": 1}
        assert messages[-2]["metadata"] == {"refusal": True}
        question = {"id": "question", "reason": "tool_call", "message": "May I?", "toolCallId": "call_1-2"}
        assert answer["outcome"] == {"type": "interrupt", "interrupts": [question]}
        first, results, last = parse_agui({"threadId": "t", "runId": "r", "messages": messages}).messages
        check_returned(first, results)
        assert last.parts[0] == RefusalPart("I will not")

    def test_pending_calls(self, judge: Judge) -> None:
        answer = judge("agui", "ag-ui", [START, *CALL, StreamEnd("tool_calls")])
        assert answer["outcome"] == {"type": "success", "pendingToolCallIds": ["call_1"]}

    def test_a_messages_snapshot_leaves_the_client_as_it_was(self, node: NodeClients, server: StreamServer) -> None:
        asked_before = {"id": "asked", "role": "user", "content": "q"}
        boxes = [writer("agui", thread_id="thread", run_id="run", messages=messages) for messages in (None, [asked_before])]
        answers = [node.read("ag-ui", server.serve(box.feed(ALL) + box.close())) for box in boxes]
        assert answers[1]["error"] is None
        without_activity = [[one for one in answer["messages"] if one["role"] != "activity"] for answer in answers]
        assert without_activity[0] == without_activity[1]

    @pytest.mark.parametrize("client", ["ai-6", "ai-7"])
    def test_ui_parts_and_their_way_back(self, judge: Judge, client: str) -> None:
        answer = judge("vercel_ui", client, ALL)
        states = [part["state"] for part in answer["parts"] if part["type"] == "dynamic-tool"]
        assert states == ["output-available", "output-available", "output-error", "approval-requested"]
        message = {"id": "a", "role": "assistant", "parts": answer["parts"]}
        first, results, last = parse_vercel_ui({"messages": [message]}).messages
        check_returned(first, results)
        assert RefusalPart("I will not") in last.parts

    @pytest.mark.parametrize(("dialect", "client"), UI_CLIENTS)
    def test_a_call_that_broke_off(self, judge: Judge, dialect: str, client: str) -> None:
        broken: list[Event] = [ToolCallStart("a", "f"), ToolCallDelta('{"x'), ToolCallEnd(complete=False)]
        answer = judge(dialect, client, [START, *broken, StreamError("upstream_truncated", "it broke off")])
        assert (answer["error"], answer["rejected"]) == ("it broke off", False)
        answer = judge(dialect, client, [START, *broken, StreamEnd("length")])
        assert (answer["error"], answer["finish"]) == (None, "length")

    @pytest.mark.parametrize(("dialect", "client"), UI_CLIENTS)
    def test_any_order_that_the_grammar_allows(self, judge: Judge, dialect: str, client: str) -> None:
        for seed in range(60):
            events = any_stream(random.Random(seed))
            answer = judge(dialect, client, events)
            response = collect(events)
            assert not answer["rejected"], (seed, answer["error"], events)
            assert answer["ok"] == (response.error is None), seed
            parts = [part for choice in response.choices for part in choice.parts]
            assert answer["text"] == "".join(part.text for part in parts if isinstance(part, (TextPart, RefusalPart))), seed
            assert len(answer["toolCalls"]) == sum(isinstance(part, ToolCallPart) for part in parts), seed

    def test_bytes_that_break_the_protocol_are_rejected(self, node: NodeClients, server: StreamServer) -> None:
        body = written("agui", [START, *TEXT, StreamEnd()])
        for broken in (
            body.replace(b'"1.0"', b'"9.0"'),
            body.replace(b'"role":"assistant"', b'"role":null'),
            body + b"data: [DONE]\n\n",
        ):
            assert node.read("ag-ui", server.serve(broken))["rejected"]
        body = written("vercel_ui", [START, *TEXT, StreamEnd()])
        for client in ("ai-6", "ai-7"):
            for broken in (body.replace(b'"text-start"', b'"text-begin"'), body.replace(b'"stop"', b'"done"')):
                assert node.read(client, server.serve(broken))["rejected"]


def any_stream(source: random.Random) -> list[Event]:
    """Blocks, results, steps and loose events in any order, with or without a proper end."""
    events: list[Event] = [START]
    echo = source.choice([None, SIGNED])
    for number in range(source.randrange(12)):
        name = f"call_{source.randrange(3)}"
        events += source.choice(
            [
                [TextStart(), *[TextDelta(f"t{number}")] * source.randrange(3), TextEnd(echo)],
                [TextStart(), TextDelta("a"), Citation("http://x", start=0, end=1), USAGE, KeepAlive(), TextEnd()],
                [ReasoningStart(), *[ReasoningDelta("r")] * source.randrange(3), ReasoningEnd(echo, source.random() < 0.5)],
                [ToolCallStart(name, "f"), ToolCallDelta('{"a":[1,'), ToolCallDelta("2]}"), ToolCallEnd(echo)],
                [ToolCallStart("", "f"), ToolCallEnd()],
                [ToolCallStart(name, "s", "server"), ToolCallDelta("{}"), ToolCallEnd()],
                [ToolResult(name, "done", source.random() < 0.5)],
                [Media("image/png", "AAAA"), Citation(title="T")],
                [StepEnd(number)],
                [asking(ApprovalPrompt(f"q{number}", name))],
            ]
        )
    if source.random() < 0.2:
        return [*events, ToolCallStart("x", "f"), ToolCallDelta("{"), ToolCallEnd(complete=False), StreamError("x", "broke")]
    return [*events, StreamEnd(source.choice(["end", "length", "tool_calls", "refusal", "pause", "cancelled"]))]


def test_the_lock_file_names_no_registry() -> None:
    lock = json.loads((FOLDER / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert packages
    assert not [name for name, package in packages.items() if "resolved" in package]
    assert not [name for name, package in packages.items() if "integrity" not in package]
