"""Bedrock Converse: events, exceptions, endings, complete responses, requests in both directions."""

from __future__ import annotations

import json
from typing import Any

import pytest

import streamglot
from split_checks import every_cut
from streamglot import RequestError, Unsupported
from streamglot.dialects import dialect
from streamglot.dialects.bedrock_converse.read import BedrockConverseReader
from streamglot.dialects.bedrock_converse.wire import error_body
from streamglot.dialects.common.state import pack
from streamglot.framing.aws_eventstream import frame
from vocabulary import *

CONVERSE = dialect("bedrock_converse")
USAGE = {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10}
START = ("messageStart", {"role": "assistant", "p": "abcdef"})
STOP = ("messageStop", {"stopReason": "end_turn"})
META = ("metadata", {"usage": USAGE, "metrics": {"latencyMs": 5}})
LAST = [Extra("bedrock_converse", {"metrics": {"latencyMs": 5}}), Usage(7, 3, raw=USAGE)]


def delta(index: int, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return ("contentBlockDelta", {"contentBlockIndex": index, "delta": body})


def begin(index: int, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return ("contentBlockStart", {"contentBlockIndex": index, "start": body})


def stop(index: int) -> tuple[str, dict[str, Any]]:
    return ("contentBlockStop", {"contentBlockIndex": index, "p": "ab"})


def wire(*events: tuple[str, Any]) -> bytes:
    return b"".join(
        frame(json.dumps(body).encode(), {":event-type": name, ":content-type": "application/json", ":message-type": "event"})
        for name, body in events
    )


def read(*events: tuple[str, Any], more: bytes = b"") -> list[Event]:
    return every_cut(BedrockConverseReader, wire(*events) + more)


def inner(*events: tuple[str, Any]) -> list[Event]:
    """The events between the start and the end of a plain answer."""
    given = read(START, *events, STOP, META)
    assert given[0] == StreamStart()
    assert given[-3:-1] == LAST
    return given[1:-3]


def body_of(data: bytes) -> list[Event]:
    return every_cut(BedrockConverseReader, data)


# --- blocks


def test_text_begins_without_being_announced() -> None:
    assert read(START, delta(0, {"text": "Good"}), delta(0, {"text": " day"}), delta(0, {"text": ""}), stop(0), STOP, META) == [
        StreamStart(),
        TextStart(),
        TextDelta("Good"),
        TextDelta(" day"),
        TextEnd(),
        *LAST,
        StreamEnd("end", "end_turn"),
    ]


def test_an_empty_block_is_none() -> None:
    assert inner(delta(0, {"text": ""}), stop(0), stop(4), delta(1, {}), ("contentBlockDelta", {}), begin(2, {}), stop(2)) == []


def test_reasoning_keeps_its_signature() -> None:
    found = inner(
        delta(0, {"reasoningContent": {"text": "Hm."}}),
        delta(0, {"reasoningContent": {"signature": "abc"}}),
        delta(0, {"reasoningContent": {"signature": "def"}}),
        stop(0),
        delta(1, {"text": "Yes"}),
        stop(1),
    )
    assert found[:3] == [
        ReasoningStart(),
        ReasoningDelta("Hm."),
        ReasoningEnd(Echo("bedrock_converse", {"signature": "abcdef"})),
    ]


@pytest.mark.parametrize(
    ("pieces", "whole"), [(["QUJD"], "QUJD"), (["QQ==", "Qg=="], "QUI="), (["QQ==", "no base64"], "QQ==no base64")]
)
def test_redacted_reasoning_is_joined_as_bytes(pieces: list[str], whole: str) -> None:
    found = inner(*(delta(0, {"reasoningContent": {"redactedContent": piece}}) for piece in pieces), stop(0))
    assert found == [ReasoningStart(), ReasoningEnd(Echo("bedrock_converse", {"redactedContent": whole}), redacted=True)]


def test_calls_stream_their_arguments() -> None:
    found = read(
        START,
        begin(0, {"toolUse": {"toolUseId": "t1", "name": "weather"}}),
        delta(0, {"toolUse": {"input": ""}}),
        delta(0, {"toolUse": {"input": '{"city":'}}),
        delta(0, {"toolUse": {"input": ' "Rome"}'}}),
        stop(0),
        begin(1, {"toolUse": {"toolUseId": "t2", "name": "clock"}}),
        stop(1),
        begin(2, {"toolUse": {"toolUseId": "t3", "name": "whole"}}),
        delta(2, {"toolUse": {"input": {"a": 1}}}),
        delta(2, {"toolUse": {}}),
        stop(2),
        ("messageStop", {"stopReason": "tool_use"}),
        META,
    )
    assert found[1:-3] == [
        ToolCallStart("t1", "weather"),
        ToolCallDelta('{"city":'),
        ToolCallDelta(' "Rome"}'),
        ToolCallEnd(),
        ToolCallStart("t2", "clock"),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        ToolCallStart("t3", "whole"),
        ToolCallDelta('{"a":1}'),
        ToolCallEnd(),
    ]
    assert found[-1] == StreamEnd("tool_calls", "tool_use")


def test_interleaved_calls_are_ordered() -> None:
    found = inner(
        begin(0, {"toolUse": {"toolUseId": "a", "name": "one"}}),
        begin(1, {"toolUse": {"toolUseId": "b", "name": "two"}}),
        delta(1, {"toolUse": {"input": '{"n":2}'}}),
        delta(0, {"toolUse": {"input": '{"n":1}'}}),
        stop(1),
        stop(0),
    )
    assert [type(event).__name__ for event in found] == ["ToolCallStart", "ToolCallDelta", "ToolCallEnd"] * 2
    assert found[1] == ToolCallDelta('{"n":1}')


def test_the_reason_is_derived_from_the_blocks() -> None:
    call = begin(0, {"toolUse": {"toolUseId": "a", "name": "one"}})
    assert read(START, call, stop(0), STOP, META)[-1] == StreamEnd("tool_calls", "end_turn")


def test_a_call_that_was_cut_off_is_marked() -> None:
    call = begin(0, {"toolUse": {"toolUseId": "a", "name": "one"}})
    half = delta(0, {"toolUse": {"input": '{"n":'}})
    for events in ((call, half, stop(0)), (call, half)):
        found = read(START, *events, ("messageStop", {"stopReason": "max_tokens"}), META)
        assert ToolCallEnd(complete=False) in found
        assert found[-1] == StreamEnd("length", "max_tokens")


def test_a_call_without_a_name_and_arguments_without_a_call_are_faults() -> None:
    for event in (begin(0, {"toolUse": {"toolUseId": "a"}}), delta(0, {"toolUse": {"input": "{}"}})):
        found = read(START, event)
        assert isinstance(found[-1], StreamError)
        assert found[-1].code == "tool_call_without_name"


def test_a_tool_of_the_provider_is_a_server_tool_with_its_result() -> None:
    found = inner(
        begin(0, {"toolUse": {"toolUseId": "s1", "name": "interpreter", "type": "server_tool_use"}}),
        delta(0, {"toolUse": {"input": '{"snippet":"1+1"}'}}),
        stop(0),
        begin(1, {"toolResult": {"toolUseId": "s1", "status": "success", "type": "interpreter_result"}}),
        delta(1, {"toolResult": [{"json": {"out": "2"}}, 3]}),
        delta(1, {"toolResult": [{"text": "!"}, {"other": 1}]}),
        stop(1),
    )
    native = {
        "toolUseId": "s1",
        "status": "success",
        "type": "interpreter_result",
        "content": [{"json": {"out": "2"}}, {"text": "!"}, {"other": 1}],
    }
    assert found == [
        ToolCallStart("s1", "interpreter", "server", Echo("bedrock_converse", {"type": "server_tool_use"})),
        ToolCallDelta('{"snippet":"1+1"}'),
        ToolCallEnd(),
        ToolResult("s1", '{"out":"2"}!', native=Echo("bedrock_converse", {"toolResult": native})),
    ]
    assert read(START, begin(0, {"toolUse": {"name": "x", "type": "server_tool_use"}}), STOP, META)[-1] == StreamEnd(
        "end", "end_turn"
    )


def test_a_result_waits_for_the_block_before_it() -> None:
    found = inner(
        delta(0, {"text": "a"}),
        begin(1, {"toolResult": {"toolUseId": "s1", "status": "error"}}),
        stop(1),
        delta(0, {"text": "b"}),
        stop(0),
    )
    assert [type(event).__name__ for event in found] == ["TextStart", "TextDelta", "TextDelta", "TextEnd", "ToolResult"]
    assert isinstance(found[-1], ToolResult)
    assert found[-1].is_error


def test_citations_stand_in_their_text() -> None:
    cited = {"title": "facts", "sourceContent": [{"text": "It is so."}, 1], "location": {"documentChar": {"start": 0, "end": 9}}}
    web = {"location": {"web": {"url": "https://a.example"}}, "source": "elsewhere"}
    found = inner(
        delta(0, {"citation": cited}),
        delta(0, {"citation": web}),
        delta(0, {"text": "So."}),
        delta(0, {"citation": {"source": "https://b.example", "title": 1}}),
        stop(0),
    )
    assert found == [
        TextStart(),
        Citation("", "facts", "It is so.", native=Echo("bedrock_converse", cited)),
        Citation("https://a.example", native=Echo("bedrock_converse", web)),
        TextDelta("So."),
        Citation("https://b.example", native=Echo("bedrock_converse", {"source": "https://b.example", "title": 1})),
        TextEnd(),
    ]


def test_images_come_when_they_are_whole() -> None:
    found = inner(
        begin(0, {"image": {"format": "png"}}),
        delta(0, {"image": {"source": {"bytes": "QQ=="}}}),
        delta(0, {"image": {"source": {"bytes": "Qg=="}}}),
        stop(0),
        delta(1, {"image": {"source": {"s3Location": {"uri": "s3://bucket/a"}}}}),
        stop(1),
        begin(2, {"image": {}}),
        delta(2, {"image": {"error": {"message": "no"}}}),
        delta(2, {"image": {"source": {"s3Location": {}}}}),
        stop(2),
    )
    assert found == [
        Media("image/png", "QUI="),
        Media("image/*", url="s3://bucket/a"),
        Extra("bedrock_converse", {"image": {"error": {"message": "no"}}}),
        Media("image/*"),
    ]


def test_a_block_may_change_its_kind() -> None:
    found = inner(delta(0, {"reasoningContent": {"text": "a"}}), delta(0, {"text": "b"}), begin(0, {"toolUse": {"name": "x"}}))
    assert [type(event).__name__ for event in found if type(event).__name__.endswith("Start")] == [
        "ReasoningStart",
        "TextStart",
        "ToolCallStart",
    ]


# --- endings


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("end_turn", "end"),
        ("stop_sequence", "stop_sequence"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("guardrail_intervened", "content_filter"),
        ("content_filtered", "content_filter"),
        ("a_new_word", "other"),
    ],
)
def test_stop_reasons(raw: str, reason: str) -> None:
    assert read(START, ("messageStop", {"stopReason": raw}), META)[-1] == StreamEnd(reason, raw)  # type: ignore[arg-type]  # a reason of the table above


def test_malformed_model_output_is_an_error() -> None:
    words = {"malformed_tool_use": "tool_call_parse_error", "malformed_model_output": "malformed_model_output"}
    for word, code in words.items():
        found = read(START, delta(0, {"text": "a"}), stop(0), ("messageStop", {"stopReason": word}), META)
        assert found[-2] == LAST[-1]
        assert isinstance(found[-1], StreamError)
        assert found[-1].code == code


def test_the_stop_sequence_is_reported_if_the_model_sends_it() -> None:
    fields = {"stop_sequence": "END"}
    found = read(START, ("messageStop", {"stopReason": "stop_sequence", "additionalModelResponseFields": fields}), META)
    assert Extra("bedrock_converse", {"additionalModelResponseFields": fields}) in found
    assert found[-1] == StreamEnd("stop_sequence", "stop_sequence", "END")


def test_the_answer_is_whole_without_metadata_and_in_either_order() -> None:
    assert read(START, delta(0, {"text": "a"}), stop(0), STOP)[-1] == StreamEnd("end", "end_turn")
    assert read(START, META, STOP)[-2:] == [LAST[-1], StreamEnd("end", "end_turn")]
    assert read(STOP, META, ("contentBlockDelta", {"delta": {"text": "late"}}))[-1] == StreamEnd("end", "end_turn")


def test_the_end_of_the_input_before_the_stop_is_a_truncation() -> None:
    found = read(START, delta(0, {"text": "Half"}))
    assert found[1:4] == [TextStart(), TextDelta("Half"), TextEnd(complete=False)]
    assert isinstance(found[-1], StreamError)
    assert found[-1].code == "upstream_truncated"
    cut = wire(START, delta(0, {"text": "a"}), stop(0), STOP, META)[:-9]
    assert isinstance(body_of(cut)[-1], StreamError)
    assert isinstance(body_of(b"")[-1], StreamError)


@pytest.mark.parametrize(
    ("name", "status", "retryable"),
    [
        ("throttlingException", 429, True),
        ("validationException", 400, False),
        ("internalServerException", 500, True),
        ("modelStreamErrorException", 500, True),
        ("serviceUnavailableException", 503, True),
        ("somethingNewException", 502, True),
    ],
)
def test_exceptions_are_errors_with_the_partial_answer_kept(name: str, status: int, retryable: bool) -> None:
    headers = {":exception-type": name, ":message-type": "exception"}
    found = read(START, delta(0, {"text": "Half"}), more=frame(b'{"message": "no"}', headers))
    assert found[1:4] == [TextStart(), TextDelta("Half"), TextEnd(complete=False)]
    assert found[-1] == StreamError(name, "no", "upstream", retryable, status, {"type": name, "message": "no"})


@pytest.mark.parametrize(("payload", "message"), [(b"", "oddException"), (b"no JSON", "no JSON"), (b'["a"]', "['a']")])
def test_exceptions_with_any_body_are_errors(payload: bytes, message: str) -> None:
    found = body_of(frame(payload, {":exception-type": "oddException", ":message-type": "exception"}))
    assert isinstance(found[-1], StreamError)
    assert (found[-1].code, found[-1].message) == ("oddException", message)


def test_a_broken_frame_keeps_the_partial_answer() -> None:
    data = bytearray(wire(START, delta(0, {"text": "Half"}), delta(0, {"text": " more"})))
    data[-6] ^= 1
    found = body_of(bytes(data))
    assert found[1:4] == [TextStart(), TextDelta("Half"), TextEnd(complete=False)]
    assert isinstance(found[-1], StreamError)
    assert found[-1].code == "bad_checksum"


def test_unknown_events_are_kept_for_this_dialect() -> None:
    assert read(("initial-response", {}), ("newEvent", {"a": 1}), ("messageStart", {}), STOP, META)[:2] == [
        StreamStart(),
        Extra("bedrock_converse", {"newEvent": {"a": 1}}),
    ]
    assert Extra("bedrock_converse", {"event": {"b": 2}}) in body_of(frame(b'{"b": 2}', {}) + wire(STOP, META))


def test_mistyped_fields_are_left_out() -> None:
    found = read(
        START,
        ("contentBlockDelta", {"contentBlockIndex": "x", "delta": {"text": "a"}}),
        ("contentBlockDelta", {"delta": {"text": {}, "citation": 3, "image": [], "toolResult": "x"}}),
        ("contentBlockStop", {}),
        ("messageStop", {"stopReason": "end_turn", "additionalModelResponseFields": [1]}),
        ("metadata", {"usage": {"inputTokens": "many", "outputTokens": 2.0}}),
    )
    assert found[-2:] == [Usage(None, 2, raw={"inputTokens": "many", "outputTokens": 2.0}), StreamEnd("end", "end_turn")]
    assert isinstance(body_of(frame(b"[1]", {":event-type": "messageStart"}))[-1], StreamError)


def test_a_pair_of_surrogates_may_be_cut() -> None:
    data = [b'{"contentBlockIndex":0,"delta":{"text":"\\ud83d"}}', b'{"contentBlockIndex":0,"delta":{"text":"\\ude00"}}']
    found = body_of(b"".join(frame(piece, {":event-type": "contentBlockDelta"}) for piece in data) + wire(stop(0), STOP, META))
    assert "".join(event.text for event in found if isinstance(event, TextDelta)) == "😀"


def test_lone_surrogates_in_objects_are_replaced() -> None:
    call = begin(0, {"toolUse": {"toolUseId": "a", "name": "one"}})
    found = inner(
        call, delta(0, {"toolUse": {"input": {"a": "\ud83d"}}}), stop(0), delta(1, {"toolResult": [{"json": "\ud83d"}]}), stop(1)
    )
    assert found[1] == ToolCallDelta('{"a":"\ufffd"}')
    assert isinstance(found[-1], ToolResult)
    assert found[-1].content == '"\ufffd"'


def test_a_block_after_the_stop_is_closed() -> None:
    found = read(START, STOP, delta(0, {"text": "late"}), META)
    assert found[1:3] == [TextStart(), TextDelta("late")]
    assert found[-2:] == [TextEnd(), StreamEnd("end", "end_turn")]


def test_usage_adds_what_the_cache_read_and_wrote() -> None:
    raw = {"inputTokens": 12, "outputTokens": 3, "totalTokens": 1050, "cacheReadInputTokens": 1028, "cacheWriteInputTokens": 7}
    assert Usage(1047, 3, 1028, 7, raw=raw) in read(START, STOP, ("metadata", {"usage": raw, "serviceTier": {"type": "flex"}}))


def test_the_provider_is_the_one_asked_for() -> None:
    reader = streamglot.reader("bedrock_converse", provider="mine")
    found = reader.feed(wire(delta(0, {"reasoningContent": {"signature": "s"}}), stop(0)))
    assert found[-1] == ReasoningEnd(Echo("bedrock_converse@mine", {"signature": "s"}))


# --- whole responses

WHOLE: dict[str, Any] = {
    "output": {
        "message": {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "sig"}}},
                {"reasoningContent": {"redactedContent": "QUJD"}},
                {"text": "Hello"},
                {"citationsContent": {"content": [{"text": "So."}], "citations": [{"title": "facts"}]}},
                {"toolUse": {"toolUseId": "t1", "name": "weather", "input": {"city": "Rome"}}},
                {"toolUse": {"toolUseId": "s1", "name": "run", "input": {}, "type": "server_tool_use"}},
                {"toolResult": {"toolUseId": "s1", "content": [{"text": "2"}]}},
                {"image": {"format": "png", "source": {"bytes": "QUJD"}}},
            ],
        }
    },
    "stopReason": "tool_use",
    "usage": USAGE,
    "metrics": {"latencyMs": 5},
}


def test_a_whole_response_is_read_and_written_again() -> None:
    response = CONVERSE.parse_response(WHOLE)
    assert [type(part) for part in response.choices[0].parts] == [
        ReasoningPart,
        ReasoningPart,
        TextPart,
        TextPart,
        ToolCallPart,
        ToolCallPart,
        ToolResultPart,
        MediaPart,
    ]
    assert response.choices[0].stop_reason == "tool_calls"
    assert CONVERSE.build_response(response) == WHOLE
    assert streamglot.collect(body_of(json.dumps(WHOLE).encode())).choices == response.choices


def test_unknown_parts_of_a_complete_response() -> None:
    content: list[Any] = [3, {"video": {}}, {"reasoningContent": {"redactedContent": "QQ==", "reasoningText": 1}}]
    events = BedrockConverseReader().read_whole({"output": {"message": {"content": content}}, "stopReason": "end_turn"})
    assert Extra("bedrock_converse", {"content": {"video": {}}}) in events
    assert events[-1] == StreamEnd("end", "end_turn")
    events = BedrockConverseReader().read_whole({"output": {"message": {"content": 4}}, "stopReason": "end_turn"})
    assert events == [StreamStart(), StreamEnd("end", "end_turn")]
    cited: dict[str, Any] = {"citationsContent": {"citations": 3, "content": [{"text": "a"}]}}
    events = BedrockConverseReader().read_whole({"output": {"message": {"content": [cited]}}, "stopReason": "end_turn"})
    assert TextDelta("a") in events


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"message": "no such model", "__type": "ResourceNotFoundException"}, "ResourceNotFoundException"),
        ({"__type": "ThrottlingException"}, "ThrottlingException"),
        ({"message": "Forbidden"}, "upstream"),
        ({"output": 3}, "upstream_protocol_error"),
        ({"output": {"message": {"content": []}}}, "upstream_protocol_error"),
        ({"error": {"message": "no", "type": "server_error"}}, "server_error"),
    ],
)
def test_bodies_that_are_errors(body: dict[str, Any], code: str) -> None:
    found = body_of(json.dumps(body).encode())
    assert isinstance(found[-1], StreamError)
    assert found[-1].code == code


def test_responses_of_other_dialects_are_written() -> None:
    echo = Echo("elsewhere", {"signature": "x"})
    cited = TextPart("Cited", [Citation("https://a.example")])
    parts: list[Any] = [
        ReasoningPart("Hm.", echo=echo),
        ReasoningPart("", redacted=True, echo=echo),
        ReasoningPart("", redacted=True),
        ReasoningPart("Plain"),
        cited,
        RefusalPart("No."),
        ToolCallPart("c1", "free", "any text", "custom"),
        ToolResultPart("c1", [TextPart("x")]),
        MediaPart("audio/wav", "QUJD"),
        NativePart("elsewhere", {}),
    ]
    response = Response(choices=[ResponseChoice(0, parts, "refusal", "stop")], usage=TokenCounts(10, 4, 3, 2))
    response.extras = [Extra("elsewhere", {"a": 1}), Extra("bedrock_converse", {"trace": {"b": 2}})]
    body = CONVERSE.build_response(response)
    assert body["output"]["message"]["content"][0] == {
        "reasoningContent": {"reasoningText": {"text": "Hm.", "signature": pack(echo)}}
    }
    assert body["stopReason"] == "content_filtered"
    assert body["trace"] == {"b": 2}
    assert body["usage"] == {
        "inputTokens": 5,
        "outputTokens": 4,
        "totalTokens": 14,
        "cacheReadInputTokens": 3,
        "cacheWriteInputTokens": 2,
    }
    sent_back = CONVERSE.parse_request({"messages": [body["output"]["message"]]}).messages[0].parts
    assert sent_back[:2] == [ReasoningPart("Hm.", echo=echo), ReasoningPart("", redacted=True, echo=echo)]
    strict = CONVERSE.build_response(response, strict=True)["output"]["message"]["content"]
    assert strict[:2] == [
        {"reasoningContent": {"reasoningText": {"text": "Hm."}}},
        {"reasoningContent": {"reasoningText": {"text": "Plain"}}},
    ]
    assert {"toolUse": {"toolUseId": "c1", "name": "free", "input": {"input": "any text"}}} in strict


def test_responses_with_errors() -> None:
    error = StreamError("rate_limit", "slow down", status=429)
    assert CONVERSE.build_response(Response(error=error)) == {"__type": "ThrottlingException", "message": "slow down"}
    partial = CONVERSE.build_response(Response(choices=[ResponseChoice(0, [TextPart("Half")])], error=error))
    assert (partial["message"], partial["stopReason"]) == ("slow down", "end_turn")
    assert partial["usage"] == {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
    assert error_body(StreamError("x", "y", status=418))["__type"] == "InternalServerException"


# --- requests

ASKED: dict[str, Any] = {
    "system": [{"text": "Be brief."}, {"cachePoint": {"type": "default", "ttl": "1h"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"text": "Look:"},
                {"image": {"format": "png", "source": {"bytes": "QUJD"}}},
                {"document": {"format": "pdf", "name": "report", "source": {"s3Location": {"uri": "s3://bucket/report"}}}},
                {"audio": {"format": "mp3", "source": {"bytes": "QUJD"}}},
                {"video": {"format": "mp4", "source": {"bytes": "QUJD"}}},
                {"cachePoint": {"type": "default"}},
                {"guardContent": {"text": {"text": "guard this"}}},
                {"document": {"format": "txt", "name": "notes", "source": {"text": "a"}, "citations": {"enabled": True}}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "sig"}}},
                {"reasoningContent": {"redactedContent": "QUJD"}},
                {"toolUse": {"toolUseId": "s1", "name": "run", "input": {"a": 1}, "type": "server_tool_use"}},
                {"toolResult": {"toolUseId": "s1", "content": [{"json": {"b": 2}}], "type": "run_result"}},
                {"text": "I ask."},
                {"toolUse": {"toolUseId": "t1", "name": "weather", "input": {"city": "Rome"}}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "toolResult": {
                        "toolUseId": "t1",
                        "content": [
                            {"text": "Rain"},
                            {"image": {"format": "jpeg", "source": {"bytes": "QUJD"}}},
                            {"searchResult": {"source": "a", "title": "b", "content": []}},
                        ],
                        "status": "error",
                    }
                },
                {"text": "And?"},
            ],
        },
    ],
    "inferenceConfig": {"maxTokens": 100, "temperature": 0.5, "topP": 0.9, "stopSequences": ["END"]},
    "toolConfig": {
        "tools": [
            {
                "toolSpec": {
                    "name": "weather",
                    "description": "Tells it",
                    "inputSchema": {"json": {"type": "object"}},
                    "strict": True,
                }
            },
            {"cachePoint": {"type": "default"}},
            {"systemTool": {"name": "run"}},
        ],
        "toolChoice": {"any": {}},
    },
    "additionalModelRequestFields": {"anthropic_beta": ["x"], "top_k": 4},
    "guardrailConfig": {"guardrailIdentifier": "g", "guardrailVersion": "1"},
    "requestMetadata": {"team": "blue"},
    "serviceTier": {"type": "flex"},
    "outputConfig": {
        "textFormat": {
            "type": "json_schema",
            "structure": {"jsonSchema": {"schema": '{"type":"object"}', "name": "shape", "description": "A shape"}},
        }
    },
}


def test_a_request_survives_a_round_trip() -> None:
    request = CONVERSE.parse_request({"modelId": "amazon.nova", **ASKED})
    assert request.model == "amazon.nova"
    assert request.essential == ["guardrailConfig"]
    assert request.messages[0].parts == [TextPart("Be brief.", cache="1h")]
    assert [message.role for message in request.messages] == ["system", "user", "assistant", "tool", "user"]
    built = CONVERSE.build_request(request)
    assert built.dropped == []
    assert built.body == ASKED


def test_parameters_unknown_to_the_service_are_refused_or_reported() -> None:
    request = Request("m", [Message("user", [TextPart("a")])], seed=4, user="me", metadata={"a": 1}, service_tier="scale", n=1)
    built = CONVERSE.build_request(request)
    assert sorted(built.dropped) == ["metadata", "seed", "service_tier", "user"]
    assert built.body == {"messages": [{"role": "user", "content": [{"text": "a"}]}]}
    with pytest.raises(Unsupported):
        CONVERSE.build_request(Request("m", n=2))
    assert CONVERSE.build_request(Request("m", service_tier="auto")).dropped == []
    with pytest.raises(Unsupported):
        CONVERSE.build_request(Request("m", dialect="x", extra={"y": 1}, essential=["y"]))


def test_adjacent_messages_of_one_role_become_one_message() -> None:
    messages = [
        Message("developer", [TextPart("Rules")]),
        Message("user", [TextPart("a"), TextPart(" ")]),
        Message("user", [TextPart("b")]),
        Message("assistant", [ReasoningPart("x", echo=Echo("elsewhere", {})), ReasoningPart("y")]),
        Message("assistant", [RefusalPart("No.")]),
        Message("tool", [ToolResultPart("a|b!" + "c" * 70, [])]),
    ]
    body = CONVERSE.build_request(Request("m", messages)).body
    assert body["system"] == [{"text": "Rules"}]
    assert body["messages"] == [
        {"role": "user", "content": [{"text": "a"}, {"text": "b"}]},
        {"role": "assistant", "content": [{"text": "No."}]},
        {
            "role": "user",
            "content": [{"toolResult": {"toolUseId": "c" * 64, "content": [{"text": "(the tool gave no output)"}]}}],
        },
    ]


def test_calls_of_other_providers() -> None:
    call = Message(
        "assistant",
        [
            ToolCallPart("a|b", "free", "some text", "custom"),
            ToolCallPart("c", "broken", '{"a":'),
            ToolCallPart("d", "empty", ""),
            ToolCallPart("e", "theirs", "{}", "server", native=Echo("elsewhere", {})),
            ToolResultPart("e", [TextPart("x")], native=Echo("elsewhere", {})),
        ],
    )
    body = CONVERSE.build_request(Request("m", [call])).body
    assert [block["toolUse"] for block in body["messages"][0]["content"]] == [
        {"toolUseId": "a_b", "name": "free", "input": {"input": "some text"}},
        {"toolUseId": "c", "name": "broken", "input": {"input": '{"a":'}},
        {"toolUseId": "d", "name": "empty", "input": {}},
    ]
    assert [tool["toolSpec"]["name"] for tool in body["toolConfig"]["tools"]] == ["free", "broken", "empty"]


def test_tool_choice() -> None:
    tools = [ToolSpec("a", "A", cache="5m"), ToolSpec("b", kind="custom"), ToolSpec("c")]

    def config(choice: ToolChoice | None, history: list[Message] | None = None) -> Any:
        return CONVERSE.build_request(Request("m", history or [], tools, tool_choice=choice)).body.get("toolConfig")

    assert "toolChoice" not in config(None)
    assert config(None)["tools"][:2] == [
        {"toolSpec": {"name": "a", "inputSchema": {"json": {"type": "object", "properties": {}}}, "description": "A"}},
        {"cachePoint": {"type": "default", "ttl": "5m"}},
    ]
    assert config(ToolChoice("auto"))["toolChoice"] == {"auto": {}}
    assert config(ToolChoice("required"))["toolChoice"] == {"any": {}}
    assert config(ToolChoice("required", ["c"]))["toolChoice"] == {"tool": {"name": "c"}}
    assert len(config(ToolChoice("auto", ["c", "b"]))["tools"]) == 2
    assert config(ToolChoice("none")) is None
    called = [Message("assistant", [ToolCallPart("x", "a", "{}")])]
    assert [tool["toolSpec"]["name"] for tool in config(ToolChoice("none"), called)["tools"] if "toolSpec" in tool] == ["a"]
    assert CONVERSE.build_request(Request("m", called, tools, tool_choice=ToolChoice("none"))).dropped == ["tool_choice"]
    assert CONVERSE.build_request(Request("m", tools=[ToolSpec("x", kind="server")])).dropped == ["tools.x"]


def test_tools_and_choices_are_parsed() -> None:
    def parsed(config: dict[str, Any]) -> Request:
        return CONVERSE.parse_request({"toolConfig": config})

    assert parsed({"toolChoice": {"auto": {}}}).tool_choice == ToolChoice("auto")
    assert parsed({"toolChoice": {"tool": {"name": "a"}}}).tool_choice == ToolChoice("required", ["a"])
    assert parsed({}).tool_choice is None
    with pytest.raises(RequestError, match="toolChoice"):
        parsed({"toolChoice": "any"})
    point: dict[str, Any] = {"cachePoint": {"type": "default"}}
    tools = parsed({"tools": [point, {"toolSpec": {"name": "a"}}, {"somethingNew": {"b": 1}}]}).tools
    assert [tool.name for tool in tools] == ["a", "tool"]


@pytest.mark.parametrize(
    ("model", "reasoning", "wanted"),
    [
        ("us.anthropic.claude-x", Reasoning(effort="low"), {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        ("us.anthropic.claude-x", Reasoning(budget_tokens=10), {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        ("us.anthropic.claude-x", Reasoning(enabled=True), {"thinking": {"type": "enabled", "budget_tokens": 8192}}),
        ("us.anthropic.claude-x", Reasoning(effort="none"), {"thinking": {"type": "disabled"}}),
        ("amazon.nova-2", Reasoning(effort="minimal"), {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "low"}}),
        ("amazon.nova-2", Reasoning(effort="max"), {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "high"}}),
        ("amazon.nova-2", Reasoning(enabled=False), {"reasoningConfig": {"type": "disabled"}}),
        ("openai.gpt-oss-120b", Reasoning(effort="high"), {"reasoning_effort": "high"}),
        ("another", Reasoning(effort="none"), None),
    ],
)
def test_reasoning_is_expressed_as_the_model_requires(model: str, reasoning: Reasoning, wanted: dict[str, Any] | None) -> None:
    built = CONVERSE.build_request(Request(model, reasoning=reasoning))
    assert built.body.get("additionalModelRequestFields") == wanted
    assert built.dropped == []


def test_reasoning_that_a_model_does_not_support() -> None:
    assert CONVERSE.build_request(Request("x", reasoning=Reasoning(effort="high"))).body["outputConfig"] == {"effort": "high"}
    assert CONVERSE.build_request(Request("x", reasoning=Reasoning(budget_tokens=9))).dropped == ["reasoning"]


def test_a_budget_of_this_dialect_is_not_changed() -> None:
    more = {"thinking": {"type": "enabled", "budget_tokens": 10}}
    request = CONVERSE.parse_request(
        {"modelId": "claude", "additionalModelRequestFields": more, "inferenceConfig": {"maxTokens": 5}}
    )
    body = CONVERSE.build_request(request).body
    assert (body["additionalModelRequestFields"], body["inferenceConfig"]) == (more, {"maxTokens": 5})


def test_reasoning_and_output_are_parsed() -> None:
    more = {"thinking": {"type": "enabled", "budget_tokens": 2048}}
    request = CONVERSE.parse_request({"additionalModelRequestFields": more, "outputConfig": {"effort": "low"}})
    assert request.reasoning == Reasoning("low", 2048, True)
    assert "additionalModelRequestFields" not in request.extra
    assert CONVERSE.parse_request({"outputConfig": {"effort": "none", "textFormat": {}}}).output is None
    form = {"structure": {"jsonSchema": {"schema": "no JSON"}}}
    with pytest.raises(RequestError, match="schema"):
        CONVERSE.parse_request({"outputConfig": {"textFormat": form}})


def test_forms_of_output() -> None:
    def form(output: OutputFormat) -> Any:
        return CONVERSE.build_request(Request("x", output=output)).body.get("outputConfig")

    assert form(OutputFormat("text")) is None
    schema = {"schema": '{"type":"object"}', "name": "answer"}
    assert form(OutputFormat("json_object")) == {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}}}


def test_own_fields_that_are_not_an_object() -> None:
    request = Request("x", dialect="bedrock_converse", extra={"additionalModelRequestFields": 3}, top_k=1)
    assert CONVERSE.build_request(request).body["additionalModelRequestFields"] == {"top_k": 1}


def test_media_in_both_directions() -> None:
    def sent(part: MediaPart) -> Any:
        return CONVERSE.build_request(Request("x", [Message("user", [part])])).body["messages"][0]["content"][0]

    assert sent(MediaPart("image/jpg", "QQ==")) == {"image": {"format": "jpeg", "source": {"bytes": "QQ=="}}}
    assert sent(MediaPart("text/plain; charset=utf-8", "QQ=="))["document"]["name"] == "document 1"
    assert sent(MediaPart("application/pdf", "QQ==", filename="My_report (1).v2.pdf"))["document"]["name"] == "My report (1) v2"
    for part in (
        MediaPart("image/bmp", "QQ=="),
        MediaPart("image/png", url="https://a.example"),
        MediaPart("image/png", file_id="f"),
    ):
        with pytest.raises(Unsupported):
            sent(part)
    document = {"document": {"name": "n", "source": {"text": "abc"}}}
    request = CONVERSE.parse_request({"messages": [{"role": "user", "content": [document]}]})
    assert request.messages[0].parts == [MediaPart("text/plain", "YWJj", filename="n")]
    owner = {"image": {"format": "png", "source": {"s3Location": {"uri": "s3://a", "bucketOwner": "1"}}}}
    request = CONVERSE.parse_request({"messages": [{"role": "user", "content": [owner]}]})
    assert request.messages[0].parts == [NativePart("bedrock_converse", owner)]


def test_messages_that_are_parsed() -> None:
    def parts(*content: dict[str, Any]) -> list[Any]:
        return list(CONVERSE.parse_request({"messages": [{"role": "assistant", "content": list(content)}]}).messages[0].parts)

    point: dict[str, Any] = {"cachePoint": {"type": "default"}}
    assert parts(point) == [NativePart("bedrock_converse", point)]
    assert parts({"reasoningContent": {"reasoningText": {"text": "a"}}}) == [ReasoningPart("a")]
    assert parts({"reasoningContent": {"redactedContent": "no base64"}})[0].echo == Echo(
        "bedrock_converse", {"redactedContent": "no base64"}
    )
    only = {"toolResult": {"toolUseId": "a", "content": []}}
    parsed = CONVERSE.parse_request({"messages": [{"role": "user", "content": [only]}]}).messages
    assert parsed == [Message("tool", [ToolResultPart("a", [])])]
    cited = parts({"citationsContent": {"content": [{"text": "a"}], "citations": [{"title": "b"}]}})[0]
    assert (cited.text, cited.citations[0].title) == ("a", "b")
    with pytest.raises(RequestError, match="role"):
        CONVERSE.parse_request({"messages": [{"role": "tool", "content": []}]})
    assert CONVERSE.parse_request({"messages": [{"role": "user", "content": []}]}).messages == [Message("user", [])]


def test_parts_that_only_another_dialect_knows_are_refused() -> None:
    with pytest.raises(Unsupported):
        CONVERSE.build_request(Request("x", [Message("user", [NativePart("elsewhere", {})])]))


def test_opaque_state_goes_to_the_provider_that_made_it() -> None:
    thought = Message("assistant", [ReasoningPart("a", echo=Echo("bedrock_converse@mine", {"signature": "s"}))])
    assert CONVERSE.build_request(Request("x", [thought])).body["messages"] == []
    sent = CONVERSE.build_request(Request("x", [thought]), provider="mine").body["messages"][0]["content"]
    assert sent == [{"reasoningContent": {"reasoningText": {"text": "a", "signature": "s"}}}]


def test_requests_pass_the_official_validation() -> None:
    session = pytest.importorskip("botocore.session")
    validate = pytest.importorskip("botocore.validate")
    model = session.get_session().get_service_model("bedrock-runtime").operation_model("ConverseStream")
    body = CONVERSE.build_request(CONVERSE.parse_request({"modelId": "amazon.nova", **ASKED})).body
    report = validate.ParamValidator().validate({"modelId": "amazon.nova", **body}, model.input_shape)
    assert not report.has_errors(), report.generate_report()
