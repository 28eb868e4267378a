"""Requests of a client of the messages dialect, parsed and built again."""

from __future__ import annotations

from typing import Any

import pytest

from streamglot.dialects import DIALECTS
from streamglot.dialects.anthropic.request import parse
from streamglot.dialects.anthropic.wire import LATE_TEXT, packed, packed_beside, wire_id
from streamglot.dialects.common.abilities import Abilities
from streamglot.dialects.common.state import pack
from streamglot.errors import RequestError
from streamglot.messages import Part
from vocabulary import *

build = DIALECTS["anthropic"].build_request
FOREIGN = Echo("another", {"state": 1})
NEWER = "2026-10-21"


def asked(*content: dict[str, Any], role: str = "user", **more: Any) -> Request:
    return parse({"model": "m", "max_tokens": 9, "messages": [{"role": role, "content": list(content)}], **more})


def parts(*content: dict[str, Any], role: str = "user") -> list[Part]:
    return [part for message in asked(*content, role=role).messages for part in message.parts]


# --- round trips


WHOLE: dict[str, Any] = {
    "model": "m",
    "max_tokens": 4000,
    "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look.", "cache_control": {"type": "ephemeral"}},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}},
                {"type": "image", "source": {"type": "url", "url": "https://a.example/i.png"}},
                {"type": "document", "source": {"type": "file", "file_id": "file_1"}, "title": "D"},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hé"}},
                {"type": "document", "source": {"type": "url", "url": "https://a.example/d.pdf"}},
                {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "QUJD"}},
                {"type": "document", "source": {"type": "content", "content": []}, "citations": {"enabled": True}},
                {"type": "document", "source": {"type": "odd"}},
                {"type": "search_result", "source": "s", "title": "t", "content": []},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "SIG"},
                {"type": "redacted_thinking", "data": "XYZ"},
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
                {"type": "text", "text": "So.", "citations": [{"type": "char_location", "cited_text": "c"}]},
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"a": 1}, "caller": {"type": "direct"}},
                {"type": "tool_use", "id": "toolu_2", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "fine", "cache_control": {"type": "ephemeral"}},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "toolset_name": "browser",
                    "content": [
                        {"type": "text", "text": "see"},
                        {"type": "image", "source": {"type": "file", "file_id": "file_2"}},
                    ],
                    "is_error": True,
                },
                {"type": "text", "text": "And?"},
            ],
        },
        {"role": "system", "content": "Be quick."},
        {"role": "user", "content": "Now."},
        {"role": "assistant", "content": "It is"},
    ],
    "tools": [
        {"name": "look", "description": "looks", "input_schema": {"type": "object"}, "strict": True, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3, "cache_control": {"type": "ephemeral"}},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2000, "display": "summarized"},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}, "task_budget": 5},
    "metadata": {"user_id": "u", "more": 1},
    "service_tier": "standard_only",
    "stop_sequences": ["END"],
    "temperature": 1.0,
    "top_p": 0.5,
    "top_k": 4,
    "stream": True,
    "context_management": {"edits": []},
}


def test_a_whole_request_survives_a_round_trip() -> None:
    request = parse(WHOLE)
    built = build(request, abilities=Abilities(inner_system=True))
    assert (built.body, built.dropped) == (WHOLE, [])
    assert "messages.system" in build(request).dropped
    assert request.user == "u"
    assert request.parallel_tool_calls is False
    assert request.service_tier == "default"
    assert request.reasoning == Reasoning("high", 2000, True, "auto")
    assert request.output == OutputFormat("json_schema", schema={"type": "object"})
    assert [message.role for message in request.messages][:5] == ["system", "user", "assistant", "tool", "user"]


def test_the_newer_version_refuses_some_of_it() -> None:
    document = {"type": "document", "source": {"type": "file", "file_id": "f"}}
    cited = {"type": "text", "text": "a", "citations": [{"type": "char_location", "cited_text": "c"}]}
    messages = [{"role": "user", "content": [cited]}, {"role": "assistant", "content": [document, cited]}]
    body = {"model": "m", "max_tokens": 9, "messages": messages, "temperature": 1.0, "top_p": 0.5, "top_k": 4}
    assert build(parse(body)).body == body
    built = build(parse(body), version=NEWER)
    assert built.body["messages"] == [{"role": "user", "content": "a"}, {"role": "assistant", "content": [cited]}]
    dropped = ["messages.user.citations", "messages.assistant.document", "temperature", "top_p", "top_k"]
    assert built.dropped == dropped
    assert not {"temperature", "top_p", "top_k"} & set(built.body)


# --- client requests


def test_a_small_request() -> None:
    request = parse({"model": "m", "messages": [{"role": "user", "content": "hi"}], "system": "s", "max_tokens": 3.0})
    assert request == Request(
        "m", [Message("system", [TextPart("s")]), Message("user", [TextPart("hi")])], max_tokens=3, dialect="anthropic"
    )
    assert parse({"system": [], "messages": [{"role": "user", "content": ""}]}).messages == [Message("user", [])]
    assert parse({"messages": [{"role": "user"}]}).messages == [Message("user", [])]
    assert parse({"messages": [], "metadata": {"user_id": "u"}}).extra == {}


def test_results_come_before_what_the_user_says() -> None:
    result = {"type": "tool_result", "tool_use_id": wire_id("x:1")}
    messages = asked({"type": "text", "text": "a"}, result).messages
    assert messages == [Message("tool", [ToolResultPart("x:1", [])]), Message("user", [TextPart("a")])]
    assert [message.role for message in asked(result).messages] == ["tool"]


def test_state_of_others_comes_back_from_where_it_was_packed() -> None:
    given = parts(
        {"type": "thinking", "thinking": "a", "signature": pack(FOREIGN)},
        {"type": "thinking", "thinking": "b", "signature": ""},
        {"type": "redacted_thinking", "data": pack(FOREIGN)},
        {"type": "tool_use", "id": wire_id("x:1"), "name": "look", "input": None},
        {"type": "redacted_thinking", "data": packed_beside(FOREIGN)},
        {"type": "thinking", "thinking": "really text", "signature": packed(LATE_TEXT)},
        {"type": "text", "text": ""},
        role="assistant",
    )
    assert given == [
        ReasoningPart("a", echo=FOREIGN),
        ReasoningPart("b"),
        ReasoningPart("", redacted=True, echo=FOREIGN),
        ToolCallPart("x:1", "look", "{}", echo=FOREIGN),
        TextPart("really text"),
    ]
    alone = parts({"type": "redacted_thinking", "data": packed_beside(FOREIGN)}, role="assistant")
    assert alone == [TextPart("", echo=FOREIGN)]  # of a text in white space, which was not written


def test_the_call_of_a_custom_tool_comes_back_as_one() -> None:
    call = {"type": "tool_use", "id": wire_id("c1", custom=True), "name": "say", "input": {"input": "hi"}}
    assert parts(call, role="assistant") == [ToolCallPart("c1", "say", "hi", "custom")]
    assert parts({**call, "input": {"else": 1}}, role="assistant") == [ToolCallPart("c1", "say", '{"else":1}')]


def test_blocks_of_this_dialect_only() -> None:
    upload = {"type": "container_upload", "file_id": "f"}
    without_source = {"type": "image"}
    with_context = {"type": "document", "source": {"type": "text", "data": "a"}, "context": "c"}
    for block in (upload, without_source, with_context):
        assert parts(block) == [NativePart("anthropic", block)]
    call = {"type": "mcp_tool_use", "id": "i", "name": "n", "input": {}, "server_name": "s"}
    result = {"type": "mcp_tool_result", "tool_use_id": "i", "is_error": True, "content": "bad"}
    assert parts(call, result, role="assistant") == [
        ToolCallPart("i", "n", "{}", "server", native=Echo("anthropic", {"type": "mcp_tool_use", "server_name": "s"})),
        ToolResultPart("i", [TextPart("bad")], True, kind="server", native=Echo("anthropic", result)),
    ]


@pytest.mark.parametrize(
    ("thinking", "reasoning"),
    [
        ({"type": "adaptive"}, Reasoning(enabled=True)),
        ({"type": "disabled"}, Reasoning(enabled=False)),
        ({"type": "between_tools"}, Reasoning()),
        ({"type": "adaptive", "display": "omitted"}, Reasoning(enabled=True)),
    ],
)
def test_kinds_of_thinking(thinking: dict[str, Any], reasoning: Reasoning) -> None:
    request = asked(thinking=thinking, output_config={"effort": "low"} if thinking["type"] != "disabled" else None)
    reasoning.effort = None if thinking["type"] == "disabled" else "low"
    assert request.reasoning == reasoning
    built = build(request).body
    assert built["thinking"] == thinking
    assert built.get("output_config") == (None if thinking["type"] == "disabled" else {"effort": "low"})


def test_effort_alone() -> None:
    request = asked(output_config={"effort": "max"})
    assert request.reasoning == Reasoning("max")
    body = build(request).body
    assert body["output_config"] == {"effort": "max"}
    assert "thinking" not in body
    assert asked(output_format={"type": "json_schema", "schema": {}}).output == OutputFormat("json_schema", schema={})


def test_tool_choices() -> None:
    assert asked(tool_choice={"type": "any"}).tool_choice == ToolChoice("required")
    assert asked(tool_choice={"type": "tool", "name": "look"}).tool_choice == ToolChoice("required", ["look"])
    assert asked(tool_choice={"type": "none"}).tool_choice == ToolChoice("none")
    assert asked(tools=[{"type": "bash_20250124"}]).tools[0].name == "bash_20250124"


def test_parameters_that_change_the_answer_are_reported() -> None:
    request = asked(mcp_servers=[{"url": "u"}], speed="fast")
    assert request.essential == ["mcp_servers"]
    assert build(request).body["mcp_servers"] == [{"url": "u"}]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [], "tool_choice": {"type": "odd"}}, "tool_choice.type"),
        ({"messages": [], "thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"messages": [], "output_config": {"effort": "odd"}}, "output_config.effort"),
        ({"messages": [], "output_config": {"format": {"type": "odd"}}}, "output_config.format.type"),
        ({"messages": [], "tools": [{"description": "d"}]}, "tools[0].name"),
    ],
)
def test_errors_name_the_place(body: dict[str, Any], where: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse(body)
    assert where in raised.value.message
