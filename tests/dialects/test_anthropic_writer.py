"""The writer of message events: exact bytes, and the blocks that no client may get."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dialects.anthropic_events import BROKEN, START, call, text, write
from streamglot import writer
from streamglot.dialects.anthropic.wire import (
    LATE_TEXT,
    arguments_object,
    error_body,
    packed,
    packed_beside,
    read_id,
    wire_id,
    write_usage,
)
from streamglot.dialects.common.state import pack
from vocabulary import *


def frames(*events: Event) -> list[dict[str, Any]]:
    """The payloads between message_start and message_delta; the event line names each of them."""
    data, _ = write(START, *events, StreamEnd())
    return payloads(data)[1:-2]


def payloads(data: bytes) -> list[dict[str, Any]]:
    given = []
    for frame in data.decode().removesuffix("\n\n").split("\n\n"):
        name, payload = frame.split("\n")
        body = json.loads(payload.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        given.append(body)
    return given


def shells(*events: Event) -> list[dict[str, Any]]:
    return [frame["content_block"] for frame in frames(*events) if frame["type"] == "content_block_start"]


def deltas(*events: Event) -> list[dict[str, Any]]:
    return [frame["delta"] for frame in frames(*events) if frame["type"] == "content_block_delta"]


def ending(*events: Event) -> dict[str, Any]:
    return payloads(write(START, *events)[0])[-2]


# --- bytes


def test_the_bytes_of_a_small_stream() -> None:
    made = writer("anthropic")
    first = made.feed([START, Usage(9, 1)])
    assert first == (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant",'
        b'"model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":9,"output_tokens":1}}}\n\n'
    )
    assert made.feed([TextStart()]) == b""
    assert made.feed([TextDelta('a"')]) == (
        b"event: content_block_start\n"
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
        b"event: content_block_delta\n"
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a\\""}}\n\n'
    )
    assert made.feed([KeepAlive("x")]) == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert made.feed([TextEnd(), Usage(9, 4), StreamEnd("stop_sequence", None, "END")]) == (
        b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"stop_sequence","stop_sequence":"END"},'
        b'"usage":{"input_tokens":9,"output_tokens":4}}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )
    assert made.close() == b""
    assert made.feed([TextDelta("late")]) == b""


def test_blocks_have_dense_indexes_and_one_is_open_at_a_time() -> None:
    given = frames(*text("a"), *call('{"x":1}'), *call("{}", call_id="toolu_2"))
    assert [(frame["type"].removeprefix("content_block_"), frame["index"]) for frame in given] == [
        (kind, index) for index in range(3) for kind in ("start", "delta", "stop")
    ]


def test_a_ping_does_not_come_before_a_start_that_is_known() -> None:
    made = writer("anthropic")
    assert [frame["type"] for frame in payloads(made.feed([START, KeepAlive()]))] == ["message_start", "ping"]
    assert [frame["type"] for frame in payloads(writer("anthropic").feed([KeepAlive()]))] == ["ping"]


def test_events_without_a_start_get_one() -> None:
    assert payloads(write(*text("a"), StreamEnd())[0])[0]["type"] == "message_start"
    assert payloads(write(StreamEnd())[0])[0]["type"] == "message_start"


def test_blank_text_makes_no_block_and_waits_for_the_next() -> None:
    assert frames(*text(), *text("", " ", "\n")) == []
    _, made = write(START, *text(" "), StreamEnd())
    assert made.lost == {"TextDelta": 1}
    given = deltas(*text("\n"), ReasoningStart(), ReasoningDelta("r"), ReasoningEnd(), *text(" ", "a", " "))
    assert [delta.get("text") for delta in given] == [None, "\n a", " "]


def test_text_after_a_call_is_folded_into_thinking() -> None:
    given = frames(*text("before"), *call("{}"), *text("after", " all"), *call("{}", call_id="toolu_2"))
    assert [frame["content_block"]["type"] for frame in given if "content_block" in frame] == [
        "text",
        "tool_use",
        "thinking",
        "tool_use",
    ]
    assert [frame["delta"] for frame in given if frame.get("index") == 2 and "delta" in frame] == [
        {"type": "thinking_delta", "thinking": "after"},
        {"type": "thinking_delta", "thinking": " all"},
        {"type": "signature_delta", "signature": packed(LATE_TEXT)},
    ]
    _, made = write(START, *call("{}"), TextStart(), TextDelta("a"), Citation("https://a.example"), TextEnd(), StreamEnd())
    assert made.lost == {"Citation": 1}


# --- calls


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        (('{"a"', ":1}"), ['{"a"', ":1}"]),
        ((), ["{}"]),
        ((" ", "\n"), ["{}"]),
        ((" ", ' {"a":1}', " "), ['{"a":1}', " "]),
        (("nu", "ll"), ["{}"]),
        (("[1,", "2]"), ['{"input":[1,2]}']),
        (('"{\\"a\\":1}"',), ['{"a":1}']),
        (("plain words",), ['{"input":"plain words"}']),
    ],
)
def test_arguments_are_always_an_object(pieces: tuple[str, ...], wanted: list[str]) -> None:
    assert [delta["partial_json"] for delta in deltas(*call(*pieces))] == wanted


def test_arguments_object() -> None:
    assert arguments_object('{"a": 12345678901234567890123}') == {"a": 12345678901234567890123}
    assert arguments_object("{half") == {"input": "{half"}
    assert arguments_object('"word"') == {"input": '"word"'}


def test_a_custom_tool_streams_inside_a_field() -> None:
    pieces = [delta["partial_json"] for delta in deltas(*call('say "hi"\n', "é", kind="custom"))]
    assert pieces == ['{"input":"', 'say \\"hi\\"\\n', "é", '"}']
    assert json.loads("".join(pieces)) == {"input": 'say "hi"\né'}
    assert [delta["partial_json"] for delta in deltas(*call(kind="custom"))] == ['{"input":""}']


def test_ids_fit_the_pattern_and_come_back() -> None:
    for call_id in ("functions.look:0", "call|ä", "", "a b"):
        assert shells(*call("{}", call_id=call_id))[0]["id"] == wire_id(call_id)
        assert wire_id(call_id).replace("_", "").replace("-", "").isalnum()
        assert read_id(wire_id(call_id)) == call_id
    assert wire_id("call_a-1") == "call_a-1"
    assert read_id("toolu_sg1_A") == "toolu_sg1_A"


def test_own_fields_of_a_call_are_written() -> None:
    native = Echo("anthropic", {"caller": {"type": "direct"}})
    assert shells(ToolCallStart("t", "look", native=native), ToolCallEnd())[0]["caller"] == {"type": "direct"}
    assert "x" not in shells(ToolCallStart("t", "look", native=Echo("other", {"x": 1})), ToolCallEnd())[0]


def test_a_call_that_was_truncated_is_left_open_before_an_error() -> None:
    half = call('{"a":"b', end=ToolCallEnd(complete=False))
    given = payloads(write(START, *half, BROKEN)[0])
    assert [frame["type"] for frame in given] == ["message_start", "content_block_start", "content_block_delta", "error"]
    assert [frame["type"] for frame in payloads(write(START, *half[:-1])[0])][-2:] == ["content_block_delta", "error"]


def test_a_call_that_was_truncated_is_closed_when_the_stream_ends_properly() -> None:
    half = call('{"a":"b', end=ToolCallEnd(complete=False))
    stops = [frame["type"] for frame in frames(*half)]
    assert stops == ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [frame["index"] for frame in frames(*half, *text("a")) if frame["type"] == "content_block_stop"] == [1, 0]
    thought = (ReasoningStart(), ReasoningDelta("a"), ReasoningEnd())
    assert [frame["index"] for frame in frames(*half, *thought) if frame["type"] == "content_block_stop"] == [1, 0]


# --- reasoning and state


def test_own_reasoning_is_written_as_it_came() -> None:
    signed, hidden = Echo("anthropic", {"signature": "SIG"}), Echo("anthropic", {"data": "XYZ"})
    thinking = {"type": "thinking", "thinking": "", "signature": ""}
    signature = {"type": "signature_delta", "signature": "SIG"}
    thought = (ReasoningStart(), ReasoningDelta("h"), ReasoningDelta("m"), ReasoningEnd(signed))
    assert shells(*thought) == [thinking]
    assert deltas(*thought) == [*({"type": "thinking_delta", "thinking": piece} for piece in "hm"), signature]
    assert deltas(ReasoningStart(), ReasoningEnd(signed)) == [signature]
    assert shells(ReasoningStart(), ReasoningEnd(hidden, True)) == [{"type": "redacted_thinking", "data": "XYZ"}]
    both = shells(ReasoningStart(), ReasoningDelta("hm"), ReasoningEnd(hidden, True))
    assert both == [thinking, {"type": "redacted_thinking", "data": "XYZ"}]
    assert deltas(ReasoningStart(), ReasoningDelta("hm"), ReasoningEnd()) == [{"type": "thinking_delta", "thinking": "hm"}]


def test_state_of_others_is_packed() -> None:
    foreign = Echo("another", {"signature": "S"})
    signature = {"type": "signature_delta", "signature": pack(foreign)}
    assert deltas(ReasoningStart(), ReasoningDelta("hm"), ReasoningEnd(foreign))[-1] == signature
    assert shells(ReasoningStart(), ReasoningEnd(foreign, True)) == [{"type": "redacted_thinking", "data": pack(foreign)}]
    odd = Echo("anthropic", {"else": 1})
    assert shells(ReasoningStart(), ReasoningEnd(odd)) == [{"type": "redacted_thinking", "data": pack(odd)}]
    beside = {"type": "redacted_thinking", "data": packed_beside(foreign)}
    assert shells(TextStart(), TextDelta("a"), TextEnd(foreign))[1] == beside
    assert shells(*call("{}", end=ToolCallEnd(foreign)))[1] == beside


def test_hidden_reasoning_without_state_is_lost() -> None:
    shown = (ReasoningStart(), ReasoningDelta("a"), ReasoningEnd(redacted=True))
    assert write(START, *shown, StreamEnd())[1].lost == {}
    data, made = write(START, ReasoningStart(), ReasoningEnd(redacted=True), ReasoningStart(), ReasoningEnd(), StreamEnd())
    assert made.lost == {"ReasoningEnd": 1}
    assert len(payloads(data)) == 3


# --- other events


def test_server_tools_are_written_from_their_native_form() -> None:
    native = Echo("anthropic", {"type": "server_tool_use"})
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    given = shells(
        ToolCallStart("srvtoolu_1", "web_search", "server", native),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        ToolResult("srvtoolu_1", "", native=Echo("anthropic", result)),
        *text("a"),
    )
    assert given == [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        result,
        {"type": "text", "text": ""},
    ]
    data, _ = write(
        START, ToolCallStart("srvtoolu_1", "advisor", "server", native), ToolCallDelta("{}"), ToolCallEnd(), StreamEnd()
    )
    assert b"input_json_delta" not in data, "the start already has it, and a client would join the two"
    other = Echo("another", {})
    foreign = (
        ToolCallStart("s", "search", "server", other),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        ToolResult("s", "r", native=other),
    )
    data, made = write(START, *foreign, StepEnd(1), Media("image/png"), Choice(1, TextStart()), StreamEnd("tool_calls"))
    assert made.lost == {"ToolCallStart": 1, "ToolResult": 1, "Media": 1, "TextStart": 1}
    assert len(payloads(data)) == 3


def test_citations() -> None:
    own = {"type": "char_location", "cited_text": "c"}
    web = {
        "type": "web_search_result_location",
        "url": "https://a.example",
        "title": "https://a.example",
        "cited_text": "",
        "encrypted_index": "",
    }
    before, after = Citation(native=Echo("anthropic", own)), Citation("https://a.example")
    given = deltas(TextStart(), before, TextDelta("a"), after, Citation(title="no address"), TextEnd())
    assert given == [
        {"type": "citations_delta", "citation": own},
        {"type": "text_delta", "text": "a"},
        {"type": "citations_delta", "citation": {**web, "encrypted_index": ""}},
    ]
    _, made = write(START, *text("a"), after, StreamEnd())
    assert made.lost == {"Citation": 1}
    _, made = write(START, TextStart(), after, TextEnd(), StreamEnd())
    assert made.lost == {"Citation": 1}


def test_extras_of_this_dialect() -> None:
    block = {"type": "compaction", "content": "c"}
    extra = Extra("anthropic", {"content_block": block})
    assert shells(extra, TextStart(), TextDelta("a"), extra, TextEnd()) == [block, {"type": "text", "text": ""}, block]
    details, container = {"type": "refusal"}, {"id": "c"}
    context: dict[str, Any] = {"applied_edits": []}
    extras = (
        Extra("anthropic", {"stop_details": details}),
        Extra("anthropic", {"container": container}),
        Extra("anthropic", {"context_management": context}),
    )
    last = ending(*extras, StreamEnd("refusal", "refusal"))
    word = {"stop_reason": "refusal", "stop_sequence": None}
    assert last["delta"] == {**word, "stop_details": details, "container": container}
    assert last["context_management"] == context
    assert "context_management" not in payloads(write(START, *extras, StreamEnd(), strict=True)[0])[-2]
    _, made = write(START, Extra("openai_chat", {"x": 1}), Extra("anthropic", {"delta": {}}), StreamEnd())
    assert made.lost == {"Extra": 2}


@pytest.mark.parametrize(
    ("event", "calls", "word"),
    [
        (StreamEnd(), False, "end_turn"),
        (StreamEnd(), True, "tool_use"),
        (StreamEnd("tool_calls"), False, "end_turn"),
        (StreamEnd("length"), True, "max_tokens"),
        (StreamEnd("length", "model_context_window_exceeded"), False, "model_context_window_exceeded"),
        (StreamEnd("length", "end_turn"), False, "max_tokens"),
        (StreamEnd("content_filter", "content_filter"), False, "refusal"),
        (StreamEnd("pause"), False, "pause_turn"),
        (StreamEnd("other", "odd"), False, "end_turn"),
    ],
)
def test_the_stop_reason_follows_what_was_written(event: StreamEnd, calls: bool, word: str) -> None:
    assert ending(*(call("{}") if calls else []), event)["delta"]["stop_reason"] == word


def test_usage_leaves_the_cache_out_of_the_input() -> None:
    given = write_usage(Usage(20, 5, 8, 2, 3))
    assert given == {
        "input_tokens": 10,
        "cache_creation_input_tokens": 2,
        "cache_read_input_tokens": 8,
        "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 3},
    }
    assert write_usage(Usage(5, 1, 9))["cache_read_input_tokens"] == 5
    assert write_usage(Usage(None, 1, 9)) == {"input_tokens": 0, "cache_read_input_tokens": 9, "output_tokens": 1}
    own = {"input_tokens": 4, "cache_read_input_tokens": 1, "output_tokens": 2, "service_tier": "standard"}
    assert write_usage(Usage(5, 2, 1, raw=own)) == own
    assert write_usage(Usage(7, 2, raw=own)) == {"input_tokens": 7, "output_tokens": 2}
    assert write_usage(Usage(5, 2, raw={**own, "total_tokens": 7})) == {"input_tokens": 5, "output_tokens": 2}


def test_errors() -> None:
    given = payloads(write(START, TextStart(), TextDelta("a"), BROKEN)[0])
    assert [frame["type"] for frame in given][-2:] == ["content_block_delta", "error"]
    details = {"error_code": "upstream_truncated"}
    assert given[-1] == {"type": "error", "error": {"type": "api_error", "message": "cut", "details": details}}
    assert [frame["type"] for frame in payloads(write(BROKEN)[0])] == ["error"]
    assert [frame["type"] for frame in payloads(write(START, BROKEN)[0])] == ["message_start", "error"]
    assert error_body(StreamError("overloaded_error", "x", status=529))["error"] == {"type": "overloaded_error", "message": "x"}
    assert error_body(StreamError("odd", "x", status=429))["error"]["type"] == "rate_limit_error"
    assert error_body(StreamError("odd", "x", status=418))["error"]["type"] == "invalid_request_error"
