"""The reader of message events: every kind of block and every kind of fault."""

from __future__ import annotations

import json
from typing import Any

import pytest

from split_checks import every_cut
from streamglot import collect
from streamglot.dialects.anthropic.read import AnthropicReader
from vocabulary import *

START: dict[str, Any] = {
    "type": "message_start",
    "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": None},
}
STOP: dict[str, Any] = {"type": "message_stop"}


def ending(word: str | None = "end_turn", **more: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": word, "stop_sequence": None, **more}}


def block(index: int | None, body: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    place = {} if index is None else {"index": index}
    return [
        {"type": "content_block_start", **place, "content_block": body},
        *({"type": "content_block_delta", **place, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", **place},
    ]


def text_block(index: int | None, *pieces: str) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def call_block(index: int | None, *pieces: str, **more: Any) -> list[dict[str, Any]]:
    body = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}, **more}
    return block(index, body, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def wire(*events: dict[str, Any]) -> bytes:
    return b"".join(f"event: {event.get('type')}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def read(data: bytes) -> list[Event]:
    return every_cut(AnthropicReader, data)


def inside(*events: dict[str, Any], end: dict[str, Any] | None = None) -> list[Event]:
    """The events between the start and the end of a stream of these."""
    given = read(wire(START, *events, end or ending(), STOP))
    assert isinstance(given[0], StreamStart)
    assert isinstance(given[-1], StreamEnd), given[-1]
    return given[1:-1]


def fault(data: bytes) -> StreamError:
    last = read(data)[-1]
    assert isinstance(last, StreamError)
    return last


def test_text_with_usage() -> None:
    start = {
        **START,
        "message": {**START["message"], "usage": {"input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 1}},
    }
    end = {**ending("max_tokens"), "usage": {"output_tokens": 7, "output_tokens_details": {"thinking_tokens": 2}, "speed": None}}
    first = {"input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 1}
    last = {**first, "output_tokens": 7, "output_tokens_details": {"thinking_tokens": 2}}
    assert read(wire(start, {"type": "ping"}, *text_block(0, "Bon", "jour"), end, STOP)) == [
        StreamStart("msg_1", "m"),
        Usage(13, 1, 4, raw=first),
        KeepAlive(),
        TextStart(),
        TextDelta("Bon"),
        TextDelta("jour"),
        TextEnd(),
        Usage(13, 7, 4, None, 2, last),
        StreamEnd("length", "max_tokens"),
    ]


def test_usage_is_overwritten_field_by_field_and_odd_values_are_left_out() -> None:
    first = {"type": "message_delta", "delta": {}, "usage": {"input_tokens": 100, "output_tokens": "many"}}
    second = {"type": "message_delta", "usage": {"input_tokens": 10, "cache_creation_input_tokens": 5, "output_tokens": 3}}
    usages = [event for event in inside(first, second, second) if isinstance(event, Usage)]
    assert [(usage.input_tokens, usage.output_tokens) for usage in usages] == [(100, None), (15, 3)]
    assert inside({**second, "usage": {"speed": "fast"}}) == [Usage(raw={"speed": "fast"})]


def test_thinking_keeps_its_signature_and_redacted_thinking_its_data() -> None:
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    pieces = ({"type": "thinking_delta", "thinking": "hm"}, {"type": "signature_delta", "signature": "SIG"})
    hidden = {"type": "redacted_thinking", "data": "XYZ"}
    assert inside(*block(0, thinking, *pieces), *block(1, hidden), *block(2, thinking)) == [
        ReasoningStart(),
        ReasoningDelta("hm"),
        ReasoningEnd(Echo("anthropic", {"signature": "SIG"})),
        ReasoningStart(),
        ReasoningEnd(Echo("anthropic", {"data": "XYZ"}), redacted=True),
        ReasoningStart(),
        ReasoningEnd(),
    ]


def test_the_echo_has_the_name_of_its_provider() -> None:
    data = wire(START, *block(0, {"type": "redacted_thinking", "data": "XYZ"}), ending(), STOP)
    reader = AnthropicReader(provider="a-cloud")
    assert ReasoningEnd(Echo("anthropic@a-cloud", {"data": "XYZ"}), redacted=True) in reader.feed(data)


def test_calls_and_what_their_arguments_may_look_like() -> None:
    assert inside(*call_block(0, "", '{"a":', " 1}"), end=ending("tool_use")) == [
        ToolCallStart("toolu_1", "look"),
        ToolCallDelta('{"a":'),
        ToolCallDelta(" 1}"),
        ToolCallEnd(),
    ]
    empty = [ToolCallStart("toolu_1", "look"), ToolCallDelta("{}"), ToolCallEnd()]
    assert inside(*call_block(0, "")) == empty
    assert inside(*call_block(0)) == empty
    whole_at_the_start = inside(*call_block(0, input={"a": 1}))
    assert whole_at_the_start[1] == ToolCallDelta('{"a":1}')
    native = inside(*call_block(0, "{}", caller={"type": "direct"}))[0]
    assert native == ToolCallStart("toolu_1", "look", native=Echo("anthropic", {"caller": {"type": "direct"}}))


def test_a_call_that_the_limit_cut_is_not_complete() -> None:
    assert inside(*call_block(0, '{"a": "b'), end=ending("max_tokens"))[-1] == ToolCallEnd(complete=False)


@pytest.mark.parametrize("arguments", ["{not json}", '{"a": "b', '{"a": 1}{"a": 1}'])
def test_a_call_that_is_not_json_is_an_error_although_the_stop_reason_says_tool_use(arguments: str) -> None:
    given = read(wire(START, *call_block(0, arguments), ending("tool_use"), STOP))
    assert given[-2] == ToolCallEnd(complete=False)
    assert isinstance(given[-1], StreamError)
    assert (given[-1].code, given[-1].retryable) == ("tool_call_parse_error", True)
    assert "'look'" in given[-1].message


@pytest.mark.parametrize(
    ("word", "calls", "reason"),
    [
        ("end_turn", False, "end"),
        ("end_turn", True, "tool_calls"),
        ("tool_use", True, "tool_calls"),
        ("tool_use", False, "end"),
        ("max_tokens", True, "length"),
        ("model_context_window_exceeded", False, "length"),
        ("pause_turn", False, "pause"),
        ("refusal", False, "refusal"),
        ("a_new_word", False, "other"),
        (None, True, "tool_calls"),
        (None, False, "other"),
    ],
)
def test_the_reason_follows_the_blocks(word: str | None, calls: bool, reason: str) -> None:
    last = read(wire(START, *(call_block(0, "{}") if calls else []), ending(word), STOP))[-1]
    assert last == StreamEnd(reason, word)  # type: ignore[arg-type]  # a reason of the table above


def test_a_stop_sequence() -> None:
    last = read(wire(START, *text_block(0, "a"), ending("stop_sequence", stop_sequence="END"), STOP))[-1]
    assert last == StreamEnd("stop_sequence", "stop_sequence", "END")


def test_tools_that_the_provider_runs() -> None:
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}, "caller": {"type": "direct"}}
    remote = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "ask", "input": {}, "server_name": "wiki"}
    found = [{"type": "web_search_result", "url": "https://a.example", "title": "A", "encrypted_content": "E"}]
    results: list[dict[str, Any]] = [
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": found},
        {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "content": [{"type": "text", "text": "yes"}], "is_error": True},
        {"type": "bash_tool_result", "tool_use_id": "x", "content": {"type": "bash_tool_result_error", "error_code": "late"}},
        {"type": "odd_tool_result", "tool_use_id": "x", "content": "plain"},
    ]
    given = inside(
        *block(0, search, {"type": "input_json_delta", "partial_json": '{"query":"q"}'}),
        *block(1, results[0]),
        *block(2, remote),
        *(event for number, result in enumerate(results[1:], 3) for event in block(number, result)),
    )
    assert given == [
        ToolCallStart(
            "srvtoolu_1", "web_search", "server", Echo("anthropic", {"type": "server_tool_use", "caller": {"type": "direct"}})
        ),
        ToolCallDelta('{"query":"q"}'),
        ToolCallEnd(),
        ToolResult("srvtoolu_1", "A https://a.example", native=Echo("anthropic", results[0])),
        ToolCallStart("mcptoolu_1", "ask", "server", Echo("anthropic", {"type": "mcp_tool_use", "server_name": "wiki"})),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        ToolResult("mcptoolu_1", "yes", True, Echo("anthropic", results[1])),
        ToolResult("x", '{"type":"bash_tool_result_error","error_code":"late"}', True, Echo("anthropic", results[2])),
        ToolResult("x", "plain", native=Echo("anthropic", results[3])),
    ]


def test_citations() -> None:
    web = {
        "type": "web_search_result_location",
        "url": "https://a.example",
        "title": "A",
        "cited_text": "c",
        "encrypted_index": "E",
    }
    place = {"type": "char_location", "cited_text": "c", "document_index": 0, "document_title": "D", "start_char_index": 0}
    result = {"type": "search_result_location", "source": "https://s.example", "title": None, "cited_text": "s"}
    shell = {"type": "text", "text": "", "citations": [result, "odd"]}
    deltas = ({"type": "citations_delta", "citation": web}, {"type": "text_delta", "text": "x"})
    given = inside(*block(0, shell, *deltas, {"type": "citations_delta", "citation": place}))
    assert given == [
        TextStart(),
        Citation("https://s.example", "", "s", native=Echo("anthropic", result)),
        Citation("https://a.example", "A", "c", native=Echo("anthropic", web)),
        TextDelta("x"),
        Citation("", "D", "c", native=Echo("anthropic", place)),
        TextEnd(),
    ]


def test_blocks_of_this_dialect_only_are_kept() -> None:
    compaction = {"type": "compaction", "content": None, "encrypted_content": None}
    delta = {"type": "compaction_delta", "content": "before", "encrypted_content": None}
    upload = {"type": "container_upload", "file_id": "f"}
    odd = {"file_id": "without a type"}
    given = inside(*block(0, compaction, delta), *block(1, upload), *block(2, odd))
    assert given == [
        Extra("anthropic", {"content_block": {"type": "compaction", "content": "before", "encrypted_content": None}}),
        Extra("anthropic", {"content_block": upload}),
        Extra("anthropic", {"content_block": odd}),
    ]


def test_fields_of_the_message_beside_its_blocks() -> None:
    details, container = {"type": "refusal", "category": None}, {"id": "c"}
    end = {**ending("refusal", stop_details=details, container=container), "context_management": {"applied_edits": []}}
    assert inside(end=end) == [
        Extra("anthropic", {"stop_details": details}),
        Extra("anthropic", {"container": container}),
        Extra("anthropic", {"context_management": {"applied_edits": []}}),
    ]


def test_overlapping_blocks_are_ordered() -> None:
    first, second = text_block(0, "a", "b"), call_block(1, '{"x":1}')
    result = {"type": "odd_tool_result", "tool_use_id": "t", "content": ""}
    mixed = [first[0], first[1], *second[:2], *block(2, result), second[2], first[2], first[3]]
    assert inside(*mixed) == [
        TextStart(),
        TextDelta("a"),
        TextDelta("b"),
        TextEnd(),
        ToolCallStart("toolu_1", "look"),
        ToolCallDelta('{"x":1}'),
        ToolCallEnd(),
        ToolResult("t", "", native=Echo("anthropic", result)),
    ]


def test_missing_parts_of_the_life_of_a_block() -> None:
    """A missing index, start or stop, or a start over an open block: the answer is the same."""
    answer = [TextStart(), TextDelta("a"), TextEnd()]
    assert inside(*text_block(None, "a"), *text_block(None, "b")) == [*answer, TextStart(), TextDelta("b"), TextEnd()]
    assert inside(text_block(0, "a")[1]) == answer
    assert inside(*text_block(0, "a")[:2]) == answer
    assert inside(*text_block(0, "a")[:2], *text_block(0, "b")) == [*answer, TextStart(), TextDelta("b"), TextEnd()]
    thought = {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "t"}}
    assert inside(thought) == [ReasoningStart(), ReasoningDelta("t"), ReasoningEnd()]
    assert inside(text_block(7, "a")[-1]) == []
    assert inside(*block(0, {"type": "text", "text": "at once"})) == [TextStart(), TextDelta("at once"), TextEnd()]


def test_deltas_that_do_not_belong() -> None:
    stray: dict[str, Any] = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "input_json_delta", "partial_json": "{}"},
    }
    assert inside(stray) == [Extra("anthropic", {"delta": {"type": "input_json_delta", "piece": "{}"}})]
    mixed = inside(*block(0, {"type": "text", "text": ""}, stray["delta"], {"type": "odd_delta"}, {"type": "text_delta"}))
    assert mixed == [TextStart(), Extra("anthropic", {"delta": {"type": "input_json_delta", "piece": "{}"}}), TextEnd()]
    signature = {"type": "content_block_delta", "index": 3, "delta": {"type": "signature_delta", "signature": "S"}}
    assert inside(signature, {"type": "content_block_delta", "index": 0}, {"type": "content_block_start", "index": 0}) == []
    assert inside({"type": "a_new_event", "index": 0}) == []


def test_the_name_of_the_event_replaces_its_type() -> None:
    data = wire(START, *text_block(0, "a"), ending()) + b"event: message_stop\ndata: {}\n\n"
    assert read(data)[-1] == StreamEnd("end", "end_turn")


def test_a_mark_of_another_dialect_at_the_end() -> None:
    assert read(wire(START, *text_block(0, "a"), ending()) + b"data: [DONE]\n\n")[-1] == StreamEnd("end", "end_turn")
    assert fault(wire(START, *text_block(0, "a")) + b"data: [DONE]\n\n").code == "upstream_truncated"


def test_errors() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "req_1"}
    given = read(wire(START, *text_block(0, "a")[:2], error))
    assert given[-2] == TextEnd(complete=False)
    assert isinstance(given[-1], StreamError)
    assert (given[-1].code, given[-1].status, given[-1].retryable) == ("overloaded_error", 529, True)
    assert fault(wire({"error": {"type": "api_error", "message": "x"}})).status == 500
    assert fault(b"event: error\ndata: {}\n\n").code == "upstream"
    assert fault(json.dumps(error).encode()).code == "overloaded_error"


def test_truncation() -> None:
    half = read(wire(START, *call_block(0, '{"a":')[:2]))
    assert half[-2:] == [ToolCallEnd(complete=False), half[-1]]
    assert isinstance(half[-1], StreamError)
    assert half[-1].code == "upstream_truncated"
    assert fault(wire(START, *text_block(0, "a"), ending())).code == "upstream_truncated"
    assert fault(wire(STOP)).code == "upstream_empty"
    assert fault(b"").code == "upstream_empty"
    assert fault(wire(START, *call_block(0, "{}", name=""), ending(), STOP)).code == "tool_call_without_name"


def test_a_second_message_inside_the_first_is_an_error() -> None:
    other = {**START, "message": {**START["message"], "id": "msg_2"}}
    assert fault(wire(START, *text_block(0, "a")[:2], other)).code == "second_message"
    assert collect(read(wire(START, START, *text_block(0, "a"), START, ending(), STOP))).choices[0].text == "a"


def test_a_whole_message_instead_of_a_stream() -> None:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "S"},
        {"type": "text", "text": "a", "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"a": 1}},
    ]
    more = {"content": content, "stop_reason": "tool_use", "container": {"id": "c"}, "context_management": {"x": 1}}
    body = {**START["message"], **more, "usage": {"input_tokens": 1, "output_tokens": 2}}
    assert read(json.dumps(body).encode()) == [
        StreamStart("msg_1", "m"),
        Usage(1, 2, raw={"input_tokens": 1, "output_tokens": 2}),
        ReasoningStart(),
        ReasoningDelta("hm"),
        ReasoningEnd(Echo("anthropic", {"signature": "S"})),
        TextStart(),
        TextDelta("a"),
        TextEnd(),
        ToolCallStart("toolu_1", "look"),
        ToolCallDelta('{"a":1}'),
        ToolCallEnd(),
        Extra("anthropic", {"container": {"id": "c"}}),
        Extra("anthropic", {"context_management": {"x": 1}}),
        StreamEnd("tool_calls", "tool_use"),
    ]
    assert fault(b'{"type":"message"}').code == "upstream_protocol_error"


@pytest.mark.parametrize(
    "data",
    [
        b"data: 1\n\n",
        b'data: {"type":1,"index":"x","delta":[],"content_block":3,"message":"m","usage":[]}\n\n',
        b'event: content_block_start\ndata: {"index":0,"content_block":{"type":["text"],"text":5}}\n\n',
        b'event: content_block_start\ndata: {"index":0,"content_block":{"type":"text","text":5,"citations":{"a":1}}}\n\n',
        b'event: content_block_start\ndata: {"index":0,"content_block":{"type":"tool_use","id":[],"name":{},"input":"x"}}\n\n',
        b'event: message_start\ndata: {"message":{"id":4,"content":[1,{"type":"thinking","thinking":[]}],"usage":{"x":{}}}}\n\n',
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":1e400}}}\n\n',
        b'event: content_block_start\ndata: {"content_block":{"type":"x_tool_result","content":{"a":"\\ud83d"}}}\n\n',
        b'event: message_start\ndata: {"type":"message_start"}\n\n',
        b'event: message_delta\ndata: {"type":"message_delta"}\n\n',
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\\ud83d"}}\n\n',
    ],
)
def test_mistyped_fields_are_an_error_of_ours_or_nothing(data: bytes) -> None:
    assert isinstance(read(data)[-1], StreamError)
    assert isinstance(read(wire(START) + data + wire(*text_block(5, "a"), ending(), STOP))[-1], (StreamEnd, StreamError))
