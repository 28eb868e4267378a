"""Requests for an upstream of the messages dialect: rules for turns, tools, thinking, and dropped fields."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from streamglot.dialects import DIALECTS
from streamglot.dialects.anthropic.request import DEFAULT_MAX_TOKENS, effort_for
from streamglot.dialects.anthropic.wire import wire_id
from streamglot.dialects.common.abilities import Abilities
from streamglot.errors import Unsupported
from streamglot.messages import Part
from vocabulary import *

build = DIALECTS["anthropic"].build_request
FOREIGN = Echo("another", {"state": 1})
HOW = 'Give the whole input as one string in "input".'
NEWER = "2026-10-21"


def sent(*messages: Message, **options: Any) -> list[dict[str, Any]]:
    built: list[dict[str, Any]] = build(Request("m", list(messages)), **options).body["messages"]
    return built


def test_turns_are_merged_and_ordered() -> None:
    built = build(
        Request(
            "m",
            [
                Message("developer", [TextPart("one")]),
                Message("user", [TextPart("a")], name="Ann"),
                Message("user", [TextPart("  ")]),
                Message("assistant", [ToolCallPart("x:1", "look", ""), RefusalPart("no"), ReasoningPart("gone", echo=FOREIGN)]),
                Message("assistant", [ToolCallPart("c2", "say", "hi", "custom"), ToolCallPart("s", "search", "{}", "server")]),
                Message("user", [TextPart("b")]),
                Message("tool", [ToolResultPart("x:1", [TextPart("r")]), ToolResultPart("s", [], kind="server")]),
                Message("tool", [ToolResultPart("c2", [])]),
                Message("system", [TextPart("two")]),
                Message("assistant", [ReasoningPart("gone")]),
            ],
        )
    )
    assert built.body["system"] == "one"
    assert built.body["messages"] == [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "no"},
                {"type": "tool_use", "id": wire_id("x:1"), "name": "look", "input": {}},
                {"type": "tool_use", "id": "c2", "name": "say", "input": {"input": "hi"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": wire_id("x:1"), "content": "r"},
                {"type": "tool_result", "tool_use_id": "c2"},
                {"type": "text", "text": "b"},
                {"type": "text", "text": "two"},
            ],
        },
    ]
    assert built.body["max_tokens"] == DEFAULT_MAX_TOKENS
    assert built.dropped == ["messages.reasoning", "messages.search", "messages.system", "messages.name"]


def test_system_messages_stay_in_their_place_where_the_upstream_and_its_version_take_them() -> None:
    messages = (Message("user", [TextPart("a")]), Message("system", [TextPart("s")]), Message("user", [TextPart("b")]))
    able = Abilities(inner_system=True)
    assert [message["role"] for message in sent(*messages, version=NEWER, abilities=able)] == ["user", "system", "user"]
    for options in ({}, {"version": NEWER}, {"abilities": able}):
        built = build(Request("m", list(messages)), **options)
        assert [[block["text"] for block in message["content"]] for message in built.body["messages"]] == [["a", "s", "b"]]
        assert built.dropped == ["messages.system"]


def test_a_turn_to_be_continued_does_not_end_in_white_space() -> None:
    assert sent(Message("assistant", [TextPart("It is ")])) == [{"role": "assistant", "content": "It is"}]
    two = sent(Message("assistant", [TextPart("It "), TextPart("is ")]))
    assert [block["text"] for block in two[0]["content"]] == ["It ", "is"]
    assert sent(Message("assistant", [ToolCallPart("c", "look", "{}")]))[0]["content"][0]["type"] == "tool_use"


def test_reasoning_returns_to_its_own_provider_only() -> None:
    signed = ReasoningPart("a", echo=Echo("anthropic@cloud", {"signature": "S"}))
    hidden = ReasoningPart("", redacted=True, echo=Echo("anthropic@cloud", {"data": "D"}))
    odd = ReasoningPart("a", echo=Echo("anthropic@cloud", {"else": 1}))
    message = Message("assistant", [signed, hidden, odd, TextPart("t")])
    assert sent(message, provider="cloud")[0]["content"] == [
        {"type": "thinking", "thinking": "a", "signature": "S"},
        {"type": "redacted_thinking", "data": "D"},
        {"type": "text", "text": "t"},
    ]
    assert sent(message) == [{"role": "assistant", "content": "t"}]


def test_citations_that_the_api_would_refuse_are_left_out() -> None:
    own = {"type": "web_search_result_location", "url": "https://a.example", "encrypted_index": "E"}
    cited = TextPart("t", [Citation("https://b.example"), Citation("u", native=Echo("anthropic", own)), Citation()])
    assert sent(Message("assistant", [cited]))[0]["content"][0]["citations"] == [own]


def test_media() -> None:
    text = b64encode("hé".encode()).decode()
    given = sent(
        Message(
            "user",
            [
                MediaPart("image/webp", "QUJD", detail="high"),
                MediaPart("image/*", url="https://a.example/i"),
                MediaPart("application/octet-stream", "QUJD", filename="a.PDF"),
                MediaPart("text/markdown", text),
                MediaPart("application/octet-stream", file_id="f"),
            ],
        )
    )
    assert [block["source"] for block in given[0]["content"]] == [
        {"type": "base64", "media_type": "image/webp", "data": "QUJD"},
        {"type": "url", "url": "https://a.example/i"},
        {"type": "base64", "media_type": "application/pdf", "data": "QUJD"},
        {"type": "text", "media_type": "text/plain", "data": "hé"},
        {"type": "file", "file_id": "f"},
    ]
    request = Request("m", [Message("user", [MediaPart("image/png", "QUJD", detail="low")] * 2)])
    assert build(request).dropped == ["image.detail"]
    assert build(Request("m", [Message("assistant", [MediaPart("image/png", "QUJD")])])).dropped == ["messages.assistant.image"]


@pytest.mark.parametrize(
    "part",
    [
        MediaPart("audio/wav", "QUJD"),
        MediaPart("audio/wav", url="https://a.example/a"),
        MediaPart("image/tiff", "QUJD"),
        MediaPart("text/plain", "###"),
        MediaPart("image/png"),
        NativePart("openai_chat", {"type": "odd"}),
    ],
)
def test_parts_that_cannot_be_sent(part: Part) -> None:
    with pytest.raises(Unsupported):
        sent(Message("user", [part]))


def test_tools() -> None:
    tools = [
        ToolSpec("a", parameters={"properties": {}}, strict=False, cache="5m"),
        ToolSpec("b"),
        ToolSpec("c", "writes", kind="custom", format={"type": "grammar"}),
        ToolSpec("d", kind="custom", format={"type": "text"}),
    ]
    built = build(Request("m", tools=tools, tool_choice=ToolChoice("required"), parallel_tool_calls=True))
    wrapped = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    cache = {"type": "ephemeral", "ttl": "5m"}
    assert built.body["tools"] == [
        {"name": "a", "input_schema": {"type": "object", "properties": {}}, "strict": False, "cache_control": cache},
        {"name": "b", "input_schema": {"type": "object", "properties": {}}},
        {"name": "c", "description": f"writes\n\n{HOW}", "input_schema": wrapped},
        {"name": "d", "description": HOW, "input_schema": wrapped},
    ]
    assert built.body["tool_choice"] == {"type": "any", "disable_parallel_tool_use": False}
    assert built.dropped == ["tools.c.format"]
    built = build(Request("m", tools=[ToolSpec("search", kind="server", native=Echo("openai_responses", {}))]))
    assert ("tools" in built.body, built.dropped) == (False, ["tools.search"])


@pytest.mark.parametrize(
    ("choice", "parallel", "wanted", "names"),
    [
        (None, None, None, "ab"),
        (None, True, None, "ab"),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}, "ab"),
        (ToolChoice("none"), False, {"type": "none"}, "ab"),
        (ToolChoice("required", ["a"]), None, {"type": "tool", "name": "a"}, "ab"),
        (ToolChoice("required", ["a", "b"]), None, {"type": "any"}, "ab"),
        (ToolChoice("auto", ["b"]), None, {"type": "auto"}, "b"),
    ],
)
def test_built_tool_choices(choice: ToolChoice | None, parallel: bool | None, wanted: Any, names: str) -> None:
    request = Request("m", tools=[ToolSpec("a"), ToolSpec("b")], tool_choice=choice, parallel_tool_calls=parallel)
    body = build(request).body
    assert body.get("tool_choice") == wanted
    assert [tool["name"] for tool in body["tools"]] == list(names)
    assert "tool_choice" not in build(Request("m", tool_choice=choice, parallel_tool_calls=parallel)).body


@pytest.mark.parametrize(
    ("reasoning", "limit", "thinking", "built_limit"),
    [
        (Reasoning("none"), 9, {"type": "disabled"}, 9),
        (Reasoning(enabled=False), 9, {"type": "disabled"}, 9),
        (Reasoning(budget_tokens=0), 9, {"type": "disabled"}, 9),
        (Reasoning("high"), None, {"type": "enabled", "budget_tokens": 16_384}, DEFAULT_MAX_TOKENS + 16_384),
        (Reasoning(enabled=True), 20_000, {"type": "enabled", "budget_tokens": 8192}, 20_000),
        (Reasoning(budget_tokens=5, summary="auto"), 2000, {"type": "enabled", "budget_tokens": 1024}, 2000),
        (Reasoning(budget_tokens=5000), 3000, {"type": "enabled", "budget_tokens": 1500}, 3000),
        (Reasoning("low"), 1024, None, 1024),
    ],
)
def test_reasoning_as_a_budget(reasoning: Reasoning, limit: int | None, thinking: Any, built_limit: int) -> None:
    built = build(Request("m", reasoning=reasoning, max_tokens=limit))
    assert built.body.get("thinking") == thinking
    assert built.body["max_tokens"] == built_limit
    assert built.dropped == ([] if thinking else ["reasoning"])


@pytest.mark.parametrize(
    ("reasoning", "thinking", "effort"),
    [
        (Reasoning("minimal"), {"type": "adaptive"}, "low"),
        (Reasoning(budget_tokens=9000), {"type": "adaptive"}, "high"),
        (Reasoning("xhigh", summary="detailed"), {"type": "adaptive", "display": "summarized"}, "xhigh"),
        (Reasoning(enabled=True), {"type": "adaptive"}, None),
    ],
)
def test_reasoning_as_a_word(reasoning: Reasoning, thinking: Any, effort: str | None) -> None:
    body = build(Request("m", reasoning=reasoning), version=NEWER).body
    assert body["thinking"] == thinking
    assert body.get("output_config", {}).get("effort") == effort
    assert build(Request("m", reasoning=reasoning), version=NEWER, adaptive=False).body["thinking"]["type"] == "enabled"


def test_words_for_budgets() -> None:
    assert [effort_for(budget) for budget in (1, 2048, 2049, 30_000, 70_000)] == ["low", "low", "medium", "xhigh", "max"]


def test_thinking_does_not_go_with_everything() -> None:
    request = Request("m", reasoning=Reasoning("low"), temperature=0.2, tools=[ToolSpec("a")])
    built = build(request)
    assert built.dropped == ["temperature"]
    request.tool_choice = ToolChoice("required")
    built = build(request)
    assert built.dropped == ["reasoning"]
    assert built.body["temperature"] == 0.2


def test_parameters_of_other_dialects() -> None:
    request = Request("m", temperature=1.7, stop=["END"], user="u", seed=4, n=1, service_tier="default", metadata={"a": "b"})
    request.dialect, request.extra = "openai_chat", {"odd": 1}
    built = build(request)
    assert built.body["temperature"] == 1.0
    assert built.body["metadata"] == {"user_id": "u"}
    assert built.body["service_tier"] == "standard_only"
    assert built.body["stop_sequences"] == ["END"]
    assert built.dropped == ["seed", "metadata", "temperature", "odd"]
    assert build(Request("m", service_tier="flex")).dropped == ["service_tier"]
    for refused in (Request("m", stop=["\n"]), Request("m", n=2), Request("m", output=OutputFormat("json_object"))):
        with pytest.raises(Unsupported):
            build(refused)


def test_output() -> None:
    schema = OutputFormat("json_schema", "answer", schema={"type": "object"})
    built = build(Request("m", output=schema)).body
    assert built["output_config"] == {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    assert "output_config" not in build(Request("m", output=OutputFormat("text"))).body
