"""Bedrock InvokeModel: every model family inside frames, endings, guardrails, requests and responses."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

import streamglot
from split_checks import every_cut
from streamglot import ConfigError, RequestError, Unsupported
from streamglot.dialects import dialect
from streamglot.dialects.bedrock_invoke.read import BedrockInvokeReader
from streamglot.dialects.bedrock_invoke.request import family_for
from streamglot.framing.aws_eventstream import frame
from vocabulary import *

INVOKE = dialect("bedrock_invoke")
CHUNK = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
METRICS = {"inputTokenCount": 7, "outputTokenCount": 3, "invocationLatency": 5}
COUNTED = {"amazon-bedrock-invocationMetrics": METRICS}
REMARK = Extra("bedrock_invoke", COUNTED)
TOTAL = Usage(7, 3, raw=METRICS)


def chunk(body: Any) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return frame(json.dumps({"bytes": base64.b64encode(data).decode(), "p": "abc"}).encode(), CHUNK)


def read(*bodies: Any, more: bytes = b"") -> list[Event]:
    return every_cut(BedrockInvokeReader, b"".join(chunk(body) for body in bodies) + more)


def failure(events: list[Event]) -> StreamError:
    assert isinstance(events[-1], StreamError)
    return events[-1]


# --- plain families


def plain(*middle: str, end: StreamEnd) -> list[Event]:
    return [StreamStart(), TextStart(), *(TextDelta(text) for text in middle), TextEnd(), TOTAL, end]


@pytest.mark.parametrize(
    ("bodies", "end"),
    [
        (
            [{"outputText": "Good", "index": 0}, {"outputText": " day", "index": 1, "completionReason": "FINISH"}],
            StreamEnd("end", "FINISH"),
        ),
        (
            [
                {"generation": "Good", "prompt_token_count": 7, "stop_reason": None},
                {"generation": " day", "stop_reason": "length"},
            ],
            StreamEnd("length", "length"),
        ),
        (
            [
                {"outputs": [{"text": "Good"}]},
                {"outputs": [{"text": " day"}]},
                {"outputs": [{"text": "", "stop_reason": "stop"}]},
            ],
            StreamEnd("end", "stop"),
        ),
        (
            [{"choices": [{"text": "Good", "stop_reason": None}]}, {"choices": [{"text": " day", "stop_reason": "length"}]}],
            StreamEnd("length", "length"),
        ),
        (
            [
                {"type": "completion", "completion": "Good", "stop_reason": None, "stop": None},
                {"type": "completion", "completion": " day", "stop_reason": "stop_sequence", "stop": "\n\nHuman:"},
            ],
            StreamEnd("end", "stop_sequence"),
        ),
        (
            [{"completion": "Good"}, {"completion": " day", "stop_reason": "stop_sequence", "stop": "END"}],
            StreamEnd("stop_sequence", "stop_sequence", "END"),
        ),
        (
            [
                {"index": 0, "is_finished": False, "text": "Good"},
                {"index": 0, "is_finished": False, "text": " day"},
                {"finish_reason": "MAX_TOKENS", "is_finished": True},
            ],
            StreamEnd("length", "MAX_TOKENS"),
        ),
        (
            [
                {"is_finished": False, "event_type": "text-generation", "text": "Good"},
                {"is_finished": False, "event_type": "text-generation", "text": " day"},
                {"event_type": "stream-end", "response": {"text": "Good day", "finish_reason": "COMPLETE"}},
            ],
            StreamEnd("end", "COMPLETE"),
        ),
    ],
)
def test_plain_families(bodies: list[dict[str, Any]], end: StreamEnd) -> None:
    found = read(*bodies, COUNTED)
    assert [event for event in found if not isinstance(event, Extra)] == plain("Good", " day", end=end)
    last = {**bodies[-1], **COUNTED}
    assert [event for event in read(*bodies[:-1], last) if not isinstance(event, Extra)] == plain("Good", " day", end=end)


def test_a_plain_answer_without_a_reason_is_a_truncation() -> None:
    found = read({"generation": "Half"})
    assert found[:4] == [StreamStart(), TextStart(), TextDelta("Half"), TextEnd(complete=False)]
    assert failure(found).code == "upstream_truncated"


def test_an_answer_may_be_empty() -> None:
    found = read({"completion": "", "stop_reason": "stop_sequence", "stop": "\n\nHuman:", **COUNTED})
    assert found == [StreamStart(), REMARK, TOTAL, StreamEnd("end", "stop_sequence")]


def test_counts_of_the_family_replace_those_of_the_service() -> None:
    found = read({"generation": "a", "prompt_token_count": 9, "generation_token_count": 1, "stop_reason": "stop"})
    assert found[-2] == Usage(9, 1, raw={"input": 9, "output": 1})
    found = read({"outputText": "a", "inputTextTokenCount": 6.0, "totalOutputTextTokenCount": 3.0, "completionReason": "LENGTH"})
    assert found[-2] == Usage(6, 3, raw={"input": 6, "output": 3})
    found = read({"generation": "a", "stop_reason": "stop"})
    assert not any(isinstance(event, Usage) for event in found)


def test_the_count_of_the_service_adds_what_the_cache_read_and_wrote() -> None:
    metrics = {"inputTokenCount": 6, "outputTokenCount": 3, "cacheReadInputTokenCount": 100, "cacheWriteInputTokenCount": 10}
    found = read({"generation": "a", "stop_reason": "stop", "amazon-bedrock-invocationMetrics": metrics})
    assert found[-2] == Usage(116, 3, 100, 10, raw=metrics)
    found = read({"generation": "a", "stop_reason": "stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": "x"}})
    assert found[-2] == Usage(raw={"inputTokenCount": "x"})


def test_several_answers_are_several_choices() -> None:
    found = read(
        {"index": 0, "is_finished": False, "text": "One"},
        {"index": 1, "is_finished": False, "text": "Two"},
        {"finish_reason": "COMPLETE", "is_finished": True},
    )
    assert found == [
        StreamStart(),
        TextStart(),
        TextDelta("One"),
        Choice(1, TextStart()),
        Choice(1, TextDelta("Two")),
        TextEnd(),
        Choice(1, TextEnd()),
        Choice(1, StreamEnd("end", "COMPLETE")),
        StreamEnd("end", "COMPLETE"),
    ]
    half = read(
        {"index": 0, "text": "One"}, {"index": 1, "text": "Two"}, {"index": 0, "finish_reason": "COMPLETE", "is_finished": True}
    )
    assert failure(half).code == "upstream_truncated"


def test_calls_and_citations_of_a_plain_family() -> None:
    cited = {"start": 0, "end": 4, "text": "Good", "document_ids": ["d"]}
    found = read(
        {"event_type": "text-generation", "text": "Good"},
        {"event_type": "citation-generation", "citations": [cited, 3]},
        {"event_type": "tool-calls-generation", "tool_calls": [{"name": "clock", "parameters": {"zone": "UTC"}}, {"name": 3}, 4]},
        {"event_type": "stream-end", "response": {"finish_reason": "COMPLETE"}, "tool_calls": [{"name": "clock"}]},
    )
    assert found[3:] == [
        Citation(start=0, end=4, native=Echo("bedrock_invoke", cited)),
        TextEnd(),
        ToolCallStart("call_1", "clock"),
        ToolCallDelta('{"zone":"UTC"}'),
        ToolCallEnd(),
        StreamEnd("tool_calls", "COMPLETE"),
    ]


def test_a_model_that_ends_in_error_is_an_error() -> None:
    assert failure(read({"text": "a"}, {"is_finished": True, "finish_reason": "ERROR"})).code == "upstream_refused"


def test_a_guardrail_ends_the_answer() -> None:
    found = read(
        {"outputText": "Blocked", "index": 0.0, "amazon-bedrock-guardrailAction": "INTERVENED", "amazon-bedrock-trace": {"a": 1}}
    )
    assert found[:3] == [
        StreamStart(),
        Extra("bedrock_invoke", {"amazon-bedrock-guardrailAction": "INTERVENED"}),
        Extra("bedrock_invoke", {"amazon-bedrock-trace": {"a": 1}}),
    ]
    assert found[-1] == StreamEnd("content_filter")
    untouched = read({"generation": "a", "stop_reason": "stop", "amazon-bedrock-guardrailAction": "NONE"})
    assert untouched[-1] == StreamEnd("end", "stop")


def test_invalid_indexes_mean_the_first_choice() -> None:
    found = read({"text": "a", "index": -4, "is_finished": False}, {"text": "b", "index": 1e300}, {"finish_reason": "COMPLETE"})
    assert found[-1] == StreamEnd("end", "COMPLETE")
    assert not any(isinstance(event, Choice) for event in found)


# --- families with their own dialect

MESSAGE: list[dict[str, Any]] = [
    {
        "type": "message_start",
        "message": {"id": "m1", "model": "c", "role": "assistant", "content": [], "usage": {"input_tokens": 7}},
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "sig"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Good day"}},
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 3}},
    {"type": "message_stop", **COUNTED},
]


def test_messages_are_read_by_their_own_dialect() -> None:
    found = read(*MESSAGE)
    assert isinstance(found[0], StreamStart)
    assert (found[0].id, found[0].model) == ("m1", "c")
    assert [event.text for event in found if isinstance(event, TextDelta)] == ["Good day"]
    assert found[-1] == StreamEnd("end", "end_turn")
    assert found[-2] == REMARK
    thought = next(event for event in found if isinstance(event, ReasoningEnd))
    assert thought.echo is not None
    assert thought.echo.provider == "anthropic"
    assert streamglot.collect(found).usage.input_tokens == 7


def test_messages_that_break_off_are_truncated() -> None:
    found = read(*MESSAGE[:6])
    assert isinstance(found[-2], TextEnd)
    assert failure(found).code == "upstream_truncated"


def test_an_exception_closes_what_the_inner_dialect_has_open() -> None:
    slow = frame(b'{"message": "slow down"}', {":exception-type": "throttlingException", ":message-type": "exception"})
    found = read(*MESSAGE[:6], more=slow)
    assert isinstance(found[-2], TextEnd)
    assert (failure(found).code, failure(found).status) == ("throttlingException", 429)
    found = read({"generation": "a"}, more=slow)
    assert isinstance(found[-2], TextEnd)
    assert failure(found).code == "throttlingException"


def test_an_error_inside_the_messages_is_one() -> None:
    found = read(*MESSAGE[:6], {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})
    assert failure(found).code == "overloaded_error"


def test_a_guardrail_shows_in_the_end_of_messages() -> None:
    last = {**MESSAGE[-1], "amazon-bedrock-guardrailAction": "INTERVENED"}
    assert read(*MESSAGE[:-1], last)[-1] == StreamEnd("content_filter", "end_turn")


def chat(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "c1", "model": "g", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def test_chat_chunks_are_read_by_their_own_dialect() -> None:
    found = read(chat({"role": "assistant", "content": ""}), chat({"content": "Hi"}), chat({}, "stop"), COUNTED)
    assert found == [
        StreamStart("c1", "g"),
        TextStart(),
        TextDelta("Hi"),
        TextEnd(),
        REMARK,
        StreamEnd("end", "stop"),
    ]
    assert failure(read(chat({"content": "Hi"}))).code == "upstream_truncated"
    both = {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop", "stop_reason": 518}]}
    assert read(both)[-1] == StreamEnd("end", "stop")


def test_chat_chunks_with_another_name_for_the_finish() -> None:
    def other(content: str, reason: str | None) -> dict[str, Any]:
        return {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "stop_reason": reason}, 3]}

    found = read(other("Hi", None), other("\ud83d", None), other("\ude00", None), other("", "length"))
    assert "".join(event.text for event in found if isinstance(event, TextDelta)) == "Hi😀"
    assert found[-1] == StreamEnd("length", "length")
    assert INVOKE.parse_response(other("Hi", "stop")).choices[0].stop_reason == "end"


def test_converse_events_are_read_by_their_own_dialect() -> None:
    usage = {"inputTokens": 6, "outputTokens": 3, "cacheReadInputTokenCount": 100}
    found = read(
        {"messageStart": {"role": "assistant"}},
        {"contentBlockDelta": {"delta": {"text": "Hi"}, "contentBlockIndex": 0}},
        {"contentBlockStop": {"contentBlockIndex": 0}},
        {"somethingNew": {}},
        {"messageStop": {"stopReason": "max_tokens"}},
        {"metadata": {"usage": usage}, **COUNTED},
    )
    assert found == [
        StreamStart(),
        TextStart(),
        TextDelta("Hi"),
        TextEnd(),
        REMARK,
        Usage(106, 3, 100, raw=usage),
        StreamEnd("length", "max_tokens"),
    ]


def test_chat_events_of_another_wire_are_read_by_their_own_dialect() -> None:
    found = read(
        {"type": "message-start", "id": "x"},
        {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "Hi"}}}},
        {"type": "message-end", "delta": {"finish_reason": "COMPLETE"}},
    )
    assert found == [StreamStart("x"), TextStart(), TextDelta("Hi"), TextEnd(), StreamEnd("end", "COMPLETE")]


# --- bodies that are not answers


@pytest.mark.parametrize("body", [{"hello": 1}, [1], 3, b"plain words"])
def test_unknown_families_are_an_error(body: Any) -> None:
    assert failure(read(body)).origin == "upstream"


def test_service_fields_alone_are_not_an_answer() -> None:
    assert failure(read(COUNTED)).code == "upstream_truncated"


def test_chunks_that_are_no_base64_and_frames_of_other_kinds() -> None:
    def raw(data: bytes) -> list[Event]:
        return every_cut(BedrockInvokeReader, data)

    assert "base64" in failure(raw(frame(b'{"bytes": "#"}', CHUNK))).message
    trace = frame(b'{"trace": {"a": 1}}', {":event-type": "trace"})
    found = raw(trace + chunk({"generation": "a", "stop_reason": "stop"}) + trace)
    assert found[-1] == StreamEnd("end", "stop")


# --- whole responses


@pytest.mark.parametrize(
    ("body", "text", "usage"),
    [
        (
            {"inputTextTokenCount": 5, "results": [{"tokenCount": 2, "outputText": "Hi", "completionReason": "FINISH"}]},
            "Hi",
            (5, 2),
        ),
        ({"generation": "Hi", "prompt_token_count": 5, "generation_token_count": 2, "stop_reason": "stop"}, "Hi", (5, 2)),
        ({"outputs": [{"text": "Hi", "stop_reason": "stop"}]}, "Hi", (None, None)),
        ({"generations": [{"text": "Hi", "finish_reason": "COMPLETE"}]}, "Hi", (None, None)),
        ({"text": "Hi", "finish_reason": "COMPLETE"}, "Hi", (None, None)),
        ({"completion": "Hi", "stop_reason": "stop_sequence", "stop": "\n\nHuman:"}, "Hi", (None, None)),
        (
            {
                "output": {"message": {"content": [{"text": "Hi"}]}},
                "stopReason": "end_turn",
                "usage": {"inputTokens": 5, "outputTokens": 2},
            },
            "Hi",
            (5, 2),
        ),
        ({"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]}, "Hi", (None, None)),
        (
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "text", "text": "Hi"}],
                "stop_reason": "end_turn",
                "usage": {"input_tokens": 5, "output_tokens": 2},
            },
            "Hi",
            (5, 2),
        ),
    ],
)
def test_whole_responses_of_every_family(body: dict[str, Any], text: str, usage: tuple[int | None, int | None]) -> None:
    response = INVOKE.parse_response(body)
    assert response.choices[0].text == text
    assert response.choices[0].stop_reason == "end"
    assert (response.usage.input_tokens, response.usage.output_tokens) == usage


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"message": "no"}, "upstream"),
        ({"__type": "ValidationException", "message": "no"}, "ValidationException"),
        ({"hello": 1}, "upstream_protocol_error"),
    ],
)
def test_bodies_that_are_errors(body: dict[str, Any], code: str) -> None:
    assert failure(every_cut(BedrockInvokeReader, json.dumps(body).encode())).code == code


def test_responses_are_written_in_the_shape_of_a_family() -> None:
    response = INVOKE.parse_response({"generation": "Hi", "stop_reason": "stop"})
    assert INVOKE.build_response(response)["content"][0]["text"] == "Hi"
    assert INVOKE.build_response(response, family="nova")["output"]["message"]["content"] == [{"text": "Hi"}]
    assert INVOKE.build_response(response, family="openai")["choices"][0]["message"]["content"] == "Hi"
    with pytest.raises(ConfigError):
        INVOKE.build_response(response, family="titan")


# --- requests

ASK = [Message("system", [TextPart("Be brief.")]), Message("user", [TextPart("Hi")]), Message("assistant", [TextPart("Yes?")])]
ASK += [Message("user", [TextPart("Why?")])]


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("us.anthropic.claude-sonnet-5", "anthropic"),
        ("anthropic.claude-v2:1", "completion"),
        ("anthropic.claude-instant-v1", "completion"),
        ("us.amazon.nova-lite-v1:0", "nova"),
        ("amazon.titan-text-lite-v1", "titan"),
        ("meta.llama3-8b-instruct-v1:0", "llama"),
        ("mistral.mistral-7b-instruct-v0:2", "mistral"),
        ("mistral.mistral-large-2407-v1:0", "openai"),
        ("openai.gpt-oss-120b-1:0", "openai"),
        ("cohere.command-light-text-v14", "text"),
        ("who.knows", "text"),
    ],
)
def test_the_family_is_derived_from_the_model(model: str, family: str) -> None:
    assert family_for(model) == family


def test_a_body_of_messages() -> None:
    request = Request("us.anthropic.claude-sonnet-5", ASK, max_tokens=100, stream=True)
    body = INVOKE.build_request(request).body
    assert body["anthropic_version"] == "bedrock-2023-05-31"
    assert not body.keys() & {"model", "stream"}
    assert body["max_tokens"] == 100
    back = INVOKE.parse_request({"modelId": "m", **body})
    assert (back.model, back.max_tokens) == ("m", 100)
    assert [message.text for message in back.messages] == ["Be brief.", "Hi", "Yes?", "Why?"]


def test_a_body_of_the_converse_kind() -> None:
    body = INVOKE.build_request(Request("us.amazon.nova-lite-v1:0", ASK, max_tokens=100)).body
    assert (body["schemaVersion"], body["inferenceConfig"]) == ("messages-v1", {"maxTokens": 100})
    back = INVOKE.parse_request(body)
    assert back.max_tokens == 100
    assert len(back.messages) == 4


def test_a_body_of_chat_messages() -> None:
    body = INVOKE.build_request(Request("openai.gpt-oss-120b-1:0", ASK, stream=True, max_tokens=9)).body
    assert not body.keys() & {"model", "stream", "stream_options"}
    assert INVOKE.parse_request(body).messages == ASK


@pytest.mark.parametrize(
    ("family", "body"),
    [
        (
            "titan",
            {
                "inputText": "Be brief.\n\nUser: Hi\nBot: Yes?\nUser: Why?\nBot:",
                "textGenerationConfig": {"maxTokenCount": 9, "temperature": 0.5, "topP": 0.9},
            },
        ),
        (
            "mistral",
            {
                "prompt": "<s>[INST] Be brief. [/INST][INST] Hi [/INST] Yes?</s>[INST] Why? [/INST]",
                "max_tokens": 9,
                "temperature": 0.5,
                "top_p": 0.9,
            },
        ),
        (
            "completion",
            {
                "prompt": "Be brief.\n\nHuman: Hi\n\nAssistant: Yes?\n\nHuman: Why?\n\nAssistant:",
                "max_tokens_to_sample": 9,
                "temperature": 0.5,
                "top_p": 0.9,
            },
        ),
        (
            "text",
            {
                "prompt": "Be brief.\n\nUser: Hi\nAssistant: Yes?\nUser: Why?\nAssistant:",
                "max_tokens": 9,
                "temperature": 0.5,
                "p": 0.9,
            },
        ),
    ],
)
def test_a_conversation_as_one_prompt(family: str, body: dict[str, Any]) -> None:
    request = Request("m", ASK, max_tokens=9, temperature=0.5, top_p=0.9, reasoning=Reasoning("low"))
    built = INVOKE.build_request(request, family=family)
    assert (built.body, built.dropped) == (body, ["reasoning"])
    back = INVOKE.parse_request(body)
    assert (back.max_tokens, back.temperature, back.top_p) == (9, 0.5, 0.9)
    assert back.messages[0].text == body.get("prompt", body.get("inputText"))


def test_a_prompt_with_the_marks_of_its_family() -> None:
    built = INVOKE.build_request(
        Request("meta.llama3-8b-instruct-v1:0", ASK[1:2], dialect="bedrock_invoke", extra={"images": []})
    )
    assert built.body == {
        "prompt": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "images": [],
    }
    assert "textGenerationConfig" not in INVOKE.build_request(Request("amazon.titan-x", ASK)).body


@pytest.mark.parametrize(
    "request_",
    [
        Request("x", tools=[ToolSpec("a")]),
        Request("x", [Message("assistant", [ToolCallPart("a", "b", "{}")])]),
        Request("x", output=OutputFormat("json_object")),
        Request("meta.llama3", stop=["END"]),
    ],
)
def test_requests_that_a_prompt_cannot_express_are_refused(request_: Request) -> None:
    with pytest.raises(Unsupported):
        INVOKE.build_request(request_)


def test_requests_that_make_no_sense() -> None:
    with pytest.raises(RequestError, match="family"):
        INVOKE.build_request(Request("x"), family="nobody")
    with pytest.raises(RequestError, match="prompt"):
        INVOKE.parse_request({"modelId": "x"})
    assert INVOKE.parse_request({"inputText": "Hi"}).messages[0].text == "Hi"
    assert INVOKE.build_request(Request("x", output=OutputFormat("text"))).dropped == []
