"""Message objects, in both directions."""

from __future__ import annotations

from typing import Any

from streamglot.dialects import DIALECTS
from streamglot.dialects.anthropic.wire import packed_beside, wire_id
from streamglot.dialects.anthropic.write import build
from streamglot.dialects.common.state import pack
from streamglot.messages import Part
from vocabulary import *

parse = DIALECTS["anthropic"].parse_response
FOREIGN = Echo("another", {"state": 1})

MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [
        {"type": "compaction", "content": "c"},
        {"type": "thinking", "thinking": "hm", "signature": "SIG"},
        {"type": "redacted_thinking", "data": "XYZ"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "text", "text": "So.", "citations": [{"type": "char_location", "cited_text": "c"}]},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"a": 1}, "caller": {"type": "direct"}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 5, "service_tier": "standard"},
    "container": {"id": "c"},
    "context_management": {"applied_edits": [1]},
}


def content(*parts: Part) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = build(Response(choices=[ResponseChoice(0, list(parts), "end")]))["content"]
    return blocks


def test_a_message_survives_a_round_trip() -> None:
    assert build(parse(MESSAGE)) == MESSAGE
    assert "context_management" not in build(parse(MESSAGE), strict=True)
    assert parse(MESSAGE).usage.input_tokens == 7
    assert parse(MESSAGE, provider="cloud").choices[0].parts[0] == ReasoningPart(
        "hm", echo=Echo("anthropic@cloud", {"signature": "SIG"})
    )


def test_parts_of_other_dialects() -> None:
    own = Echo("anthropic", {"signature": "S"})
    assert content(
        ToolCallPart("x:1", "look", "", echo=FOREIGN),
        ToolCallPart("c2", "say", "hi", "custom"),
        ToolCallPart("c3", "look", '{"half', complete=False),
        ToolCallPart("s", "search", "{}", "server", native=FOREIGN),
        ToolResultPart("s", [TextPart("r")], kind="server", native=FOREIGN),
        MediaPart("image/png", "QUJD"),
        ReasoningPart("a", echo=FOREIGN),
        ReasoningPart("", redacted=True, echo=FOREIGN),
        ReasoningPart("", echo=own),
        ReasoningPart("b"),
        ReasoningPart(""),
        TextPart(" "),
        TextPart("t", [Citation("https://a.example", "A", "c"), Citation()], FOREIGN),
        RefusalPart("no"),
    ) == [
        {"type": "thinking", "thinking": "a", "signature": pack(FOREIGN)},
        {"type": "redacted_thinking", "data": pack(FOREIGN)},
        {"type": "thinking", "thinking": "", "signature": "S"},
        {"type": "thinking", "thinking": "b", "signature": ""},
        {
            "type": "text",
            "text": "t",
            "citations": [
                {
                    "type": "web_search_result_location",
                    "url": "https://a.example",
                    "title": "A",
                    "cited_text": "c",
                    "encrypted_index": "",
                }
            ],
        },
        {"type": "redacted_thinking", "data": packed_beside(FOREIGN)},
        {"type": "text", "text": "no"},
        {"type": "tool_use", "id": wire_id("x:1"), "name": "look", "input": {}},
        {"type": "redacted_thinking", "data": packed_beside(FOREIGN)},
        {"type": "tool_use", "id": wire_id("c2", custom=True), "name": "say", "input": {"input": "hi"}},
    ]


def test_the_stop_reason_follows_the_calls() -> None:
    half = ResponseChoice(0, [ToolCallPart("c", "look", "{", complete=False)], "tool_calls")
    assert build(Response(choices=[half]))["stop_reason"] == "end_turn"
    whole = ResponseChoice(0, [ToolCallPart("c", "look", "{}")], "end", "stop")
    assert build(Response(choices=[whole]))["stop_reason"] == "tool_use"
    stopped = ResponseChoice(0, [TextPart("a")], "stop_sequence", "stop", "END")
    built = build(Response(choices=[stopped]))
    assert (built["stop_reason"], built["stop_sequence"]) == ("stop_sequence", "END")
    assert build(Response(choices=[ResponseChoice(0)]))["stop_reason"] is None
    assert build(Response())["stop_reason"] == "end_turn"


def test_errors() -> None:
    error = StreamError("overloaded_error", "busy", status=529)
    assert build(Response(error=error)) == {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    partial = build(Response("msg_1", error=error, choices=[ResponseChoice(0, [TextPart("half")])]))
    assert partial["type"] == "error"
    assert partial["content"] == [{"type": "text", "text": "half"}]


def test_extras_and_extensions() -> None:
    response = Response(usage=TokenCounts(5, 2, 1), extras=[Extra("openai_chat", {"x": 1})], extensions={"reasoning_chunks": []})
    built = build(response)
    assert built["usage"] == {"input_tokens": 4, "cache_read_input_tokens": 1, "output_tokens": 2}
    assert built["extensions"] == {"reasoning_chunks": []}
    assert "x" not in built
    assert "extensions" not in build(response, strict=True)
