"""Text completions: reader, writer, requests and responses."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from response_server import serve_response
from split_checks import every_cut
from streamglot import RequestError, Unsupported, check, collect, dialect
from streamglot.dialects import DIALECTS
from streamglot.dialects.openai_completions.read import CompletionsReader
from streamglot.dialects.openai_completions.request import PromptTemplate, parse
from streamglot.dialects.openai_completions.wire import error_body
from streamglot.dialects.openai_completions.write import CompletionsWriter
from streamglot.dialects.openai_completions.write import build as build_response
from vocabulary import *

parse_response = DIALECTS["openai_completions"].parse_response

build = DIALECTS["openai_completions"].build_request
HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 9, "model": "m"}
START = StreamStart("cmpl-1", "m", 9)
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
LOGPROBS = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5}], "text_offset": [0]}


def chunk(text: str | None = "", finish: str | None = None, index: int | None = 0, **more: Any) -> dict[str, Any]:
    return {**HEAD, "choices": [{"text": text, "index": index, "logprobs": None, "finish_reason": finish, **more}]}


def stream(*bodies: dict[str, Any], done: bool = True) -> bytes:
    return b"".join(b"data: " + json.dumps(body).encode() + b"\n\n" for body in bodies) + (b"data: [DONE]\n\n" if done else b"")


def read(data: bytes) -> list[Event]:
    return every_cut(CompletionsReader, data)


# --- the reader


def test_text_finish_and_usage() -> None:
    assert read(stream(chunk("Hel"), chunk("lo"), chunk("", "length"), {**HEAD, "choices": [], "usage": USAGE})) == [
        START,
        TextStart(),
        TextDelta("Hel"),
        TextDelta("lo"),
        Usage(3, 2, raw=USAGE),
        TextEnd(),
        StreamEnd("length", "length"),
    ]


def test_text_in_the_finish_chunk_after_it_and_no_done() -> None:
    events = read(stream(chunk("a", "stop"), chunk("b"), done=False))
    assert collect(events).choices[0].text == "ab"
    assert events[-1] == StreamEnd("end", "stop")


def test_a_finish_chunk_without_text_or_index() -> None:
    assert read(stream(chunk("a"), {**HEAD, "choices": [{"delta": {}, "finish_reason": "stop"}]}))[-1] == StreamEnd("end", "stop")


def test_done_without_a_finish_reason_is_an_end_and_may_be_quoted() -> None:
    assert read(stream(chunk("a"), done=False) + b'data: "[DONE]"\n\n')[-1] == StreamEnd("other")


def test_several_answers_that_interleave() -> None:
    events = read(stream(chunk("a"), chunk("x", index=1), chunk("b", "stop"), chunk("y", "length", index=1)))
    assert events == [
        START,
        TextStart(),
        TextDelta("a"),
        Choice(1, TextStart()),
        Choice(1, TextDelta("x")),
        TextDelta("b"),
        Choice(1, TextDelta("y")),
        Choice(1, TextEnd()),
        Choice(1, StreamEnd("length", "length")),
        TextEnd(),
        StreamEnd("end", "stop"),
    ]


@pytest.mark.parametrize(
    ("word", "reason"), [("stop", "end"), ("content_filter", "content_filter"), ("abort", "cancelled"), ("odd", "other")]
)
def test_finish_reasons(word: str, reason: Any) -> None:
    assert read(stream(chunk("a", word)))[-1] == StreamEnd(reason, word)


def test_the_sequence_that_stopped_it() -> None:
    assert read(stream(chunk("a", "stop", stop_reason="\n")))[-1] == StreamEnd("stop_sequence", "stop", "\n")
    assert read(stream(chunk("a", "stop", stop_reason=128009)))[-1] == StreamEnd("end", "stop")


def test_reasoning_and_extras_of_this_dialect() -> None:
    filters = {"hate": {"filtered": False}}
    events = read(
        stream(
            {**chunk(None, reasoning="hm"), "system_fingerprint": "fp"},
            {**chunk("a", logprobs=LOGPROBS, content_filter_results=filters), "system_fingerprint": "fp"},
            chunk("", "stop"),
        )
    )
    assert events[1:4] == [ReasoningStart(), ReasoningDelta("hm"), Extra("openai_completions", {"system_fingerprint": "fp"})]
    assert [event.data for event in events if isinstance(event, Extra)][1:] == [
        {"choice": {"logprobs": LOGPROBS}},
        {"choice": {"content_filter_results": filters}},
    ]


def test_the_last_usage_counts_and_keeps_what_it_does_not_say() -> None:
    more = {
        "prompt_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    events = read(stream({**chunk("a"), "usage": more}, {**chunk("", "stop"), "usage": {"completion_tokens": 2}}))
    assert [event for event in events if isinstance(event, Usage)][-1] == Usage(3, 2, 2, None, 1, {"completion_tokens": 2})
    top = {**USAGE, "cached_tokens": 1, "prompt_tokens_details": None}
    assert Usage(3, 2, 1, raw=top) in read(stream({**chunk("a", "stop"), "usage": top}, {**HEAD, "usage": top}))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "upstream_empty"),
        (stream(), "upstream_empty"),
        (stream(chunk("a"), done=False), "upstream_truncated"),
        (stream(chunk("a", "stop"), chunk("x", index=1), done=False), "upstream_truncated"),
        (stream(chunk("a"), done=False) + b'data: {"id":"cm', "upstream_truncated"),
        (stream(chunk("a"), {"error": {"message": "no", "type": "server_error"}}), "server_error"),
        (stream(chunk("a"), {"object": "error", "message": "no", "code": 404}), "not_found"),
        (
            stream(chunk("a"), done=False) + b'event: error\ndata: {"message":"no","type":"overloaded_error"}\n\n',
            "overloaded_error",
        ),
        (stream(chunk("a", "error")), "upstream_refused"),
        (b'{"error":{"message":"no","code":"model_not_found"}}', "model_not_found"),
        (b'{"data":[]}', "upstream_protocol_error"),
    ],
)
def test_a_body_that_is_not_an_answer_is_an_error(data: bytes, code: str) -> None:
    event = read(data)[-1]
    assert isinstance(event, StreamError)
    assert event.code == code


def test_a_json_body_instead_of_a_stream_and_mistyped_fields() -> None:
    assert read(json.dumps(chunk("Hi", "stop")).encode())[1:4] == [TextStart(), TextDelta("Hi"), TextEnd()]
    assert read(stream({"id": 3, "choices": "x", "usage": []}, chunk("a", "stop", index=-1)))[-1] == StreamEnd("end", "stop")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["choices", "text", "index", "finish_reason", "logprobs", "usage", "error", "id", "object", "prompt_tokens"]), inner,
        max_size=5),
    max_leaves=12,
)  # fmt: skip


@given(st.lists(JSON, max_size=4), st.binary(max_size=12))
def test_anything_gives_events_or_an_error(values: list[Any], tail: bytes) -> None:
    reader = CompletionsReader()
    check(reader.feed(b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values) + tail) + reader.close())


# --- the writer

ANSWER: list[Event] = [
    START,
    TextStart(),
    TextDelta("Hi\n"),
    TextEnd(),
    StepEnd(0),
    Usage(3, 2, 1, None, 1),
    StreamEnd("length", "max_tokens"),
]


def write(events: list[Event], **options: Any) -> bytes:
    writer = CompletionsWriter(**options)
    return b"".join(writer.feed([event]) for event in events) + writer.close()


def test_written_chunks() -> None:
    head = b'data: {"id":"cmpl-1","object":"text_completion","created":9,"model":"m","choices":['
    text = head + b'{"text":"Hi\\n","index":0,"logprobs":null,"finish_reason":null}]}\n\n'
    finish = head + b'{"text":"","index":0,"logprobs":null,"finish_reason":"length"}]}\n\n'
    usage = (
        b'],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":1},'
        b'"completion_tokens_details":{"reasoning_tokens":1}}}\n\n'
    )
    assert write(ANSWER, include_usage=True) == text + finish + head + usage + b"data: [DONE]\n\n"
    assert write(ANSWER) == text + finish + b"data: [DONE]\n\n"


def test_tokens_written_to_a_cache_are_part_of_the_usage() -> None:
    written = write([START, TextStart(), TextDelta("a"), TextEnd(), Usage(9, 2, None, 4), StreamEnd()], include_usage=True)
    assert b'"prompt_tokens_details":{"cached_tokens":0,"cache_write_tokens":4}' in written


def test_several_answers_are_written_with_their_index() -> None:
    events: list[Event] = [
        START, Choice(2, TextStart()), Choice(2, TextDelta("x")), Choice(2, StepEnd(0)), Choice(2, TextEnd()),
        Choice(2, Extra("openai_completions", {"choice": {"logprobs": LOGPROBS}})), Choice(2, StreamEnd("length")),
        Choice(1, ReasoningStart()), Choice(1, ReasoningEnd()), TextStart(), TextDelta("a"), TextEnd(), Usage(), StreamEnd(),
    ]  # fmt: skip
    answer = collect(every_cut(CompletionsReader, write(events)))
    assert [(choice.index, choice.text, choice.raw_stop_reason) for choice in answer.choices] == [
        (0, "a", "stop"),
        (1, "", "stop"),
        (2, "x", "length"),
    ]


def test_extras_of_this_dialect_are_written() -> None:
    extra: dict[str, Any] = {
        "choice": {"logprobs": LOGPROBS, "content_filter_results": {"a": 1}},
        "system_fingerprint": "fp",
        "timings": {"t": 1},
    }
    events: list[Event] = [Extra("openai_completions", extra), StreamEnd()]
    rich = [json.loads(line[6:]) for line in write(events).split(b"\n\n")[:2]]
    assert rich[0]["choices"][0] == {"text": "", "index": 0, "finish_reason": None, **extra["choice"]}
    assert (rich[1]["system_fingerprint"], rich[1]["timings"]) == ("fp", {"t": 1})
    strict = write(events, strict=True)
    assert b"content_filter_results" not in strict
    assert b"timings" not in strict
    only = write([Extra("openai_completions", {"choice": {"content_filter_results": {"a": 1}}}), StreamEnd()], strict=True)
    assert only.count(b"data: ") == 2


def test_events_that_the_dialect_cannot_express_are_counted() -> None:
    writer = CompletionsWriter()
    writer.feed(
        [
            START,
            ReasoningStart(),
            ReasoningDelta("hm"),
            ReasoningEnd(),
            TextStart(refusal=True),
            TextDelta("no"),
            Citation("https://a"),
            TextEnd(Echo("other", {})),
            ToolCallStart("c", "f"),
            ToolCallDelta("{}"),
            ToolCallEnd(),
            Extra("other", {"x": 1}),
            Choice(1, TextEnd(Echo("other", {}))),
            StreamEnd("tool_calls"),
        ]
    )
    assert dict(writer.lost) == {
        "ReasoningStart": 1,
        "ReasoningDelta": 1,
        "ReasoningEnd": 1,
        "Citation": 1,
        "TextEnd": 2,
        "ToolCallStart": 1,
        "ToolCallDelta": 1,
        "ToolCallEnd": 1,
        "Extra": 1,
    }


def test_errors_and_keep_alives() -> None:
    written = write([KeepAlive(), START, KeepAlive("judging"), StreamError("x", "it broke", status=503)])
    assert written.startswith(b": ping\n\n: judging\n\n")
    assert written.endswith(
        b'data: {"error":{"message":"it broke","type":"server_error","param":null,"code":"x"}}\n\ndata: [DONE]\n\n'
    )
    assert b"the events stopped" in write([START])
    assert b'"usage":{"prompt_tokens":0,"completion_tokens":2,"total_tokens":2}' in write(
        [Usage(output_tokens=2), StreamEnd()], include_usage=True
    )
    assert error_body(StreamError("x", "y", status=404))["error"]["type"] == "invalid_request_error"
    assert error_body(StreamError("x", "y", status=429))["error"]["type"] == "rate_limit_error"


# --- the vendor's client over a socket


def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0)


def test_the_client_reads_what_is_written() -> None:
    events = [*ANSWER[:3], KeepAlive(), Extra("openai_completions", {"choice": {"logprobs": LOGPROBS}}), *ANSWER[3:]]
    with serve_response(write(events, include_usage=True), "text/event-stream") as address:
        parts = list(client(address).completions.create(model="m", prompt="q", stream=True))
    assert "".join(choice.text for part in parts for choice in part.choices) == "Hi\n"
    assert [choice.finish_reason for part in parts for choice in part.choices][-1] == "length"
    assert any(choice.logprobs and choice.logprobs.tokens == ["a"] for part in parts for choice in part.choices)
    assert parts[-1].usage is not None
    assert (parts[-1].usage.total_tokens, parts[0].id, parts[0].object) == (5, "cmpl-1", "text_completion")


def test_the_client_raises_what_is_written_as_an_error() -> None:
    body = write([*ANSWER[:3], StreamError("x", "it broke")])
    with serve_response(body, "text/event-stream") as address, pytest.raises(openai.APIError, match="it broke"):
        list(client(address).completions.create(model="m", prompt="q", stream=True))
    error = json.dumps(error_body(StreamError("x", "slow down", status=429))).encode()
    with serve_response(error, "application/json", 429) as address, pytest.raises(openai.RateLimitError, match="slow down"):
        client(address).completions.create(model="m", prompt="q")


def test_the_client_reads_a_complete_response() -> None:
    with serve_response(json.dumps(build_response(collect(ANSWER))).encode(), "application/json") as address:
        answer = client(address).completions.create(model="m", prompt="q")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hi\n", "length")


# --- responses


def test_a_response_survives_a_round_trip() -> None:
    body = {**chunk("Hi", "stop", logprobs=LOGPROBS), "usage": USAGE, "system_fingerprint": "fp"}
    response = parse_response(body)
    assert response.usage == TokenCounts(3, 2, raw=USAGE)
    assert build_response(response) == body
    assert "system_fingerprint" not in build_response(response, strict=True)
    assert dialect("openai_completions").parse_response(body).choices[0].stop_reason == "end"


def test_pieces_of_logprobs_are_joined() -> None:
    events = read(stream(chunk("a", logprobs=LOGPROBS, content_filter_results={"x": 1}), chunk("a", "stop", logprobs=LOGPROBS)))
    body = build_response(collect([*events[:-1], Extra("other", {}), events[-1]]))
    assert body["choices"][0]["logprobs"]["tokens"] == ["a", "a"]
    assert body["choices"][0]["content_filter_results"] == {"x": 1}
    assert "content_filter_results" not in build_response(collect(events), strict=True)["choices"][0]


def test_responses_that_were_truncated() -> None:
    error = StreamError("x", "it broke")
    assert build_response(Response(error=error)) == error_body(error)
    partial = Response(choices=[ResponseChoice(0, [TextPart("Ha"), RefusalPart("lf")])], error=error, extensions={"x": []})
    body = build_response(partial)
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"], body["extensions"]) == ("Half", None, {"x": []})
    assert body["error"]["message"] == "it broke"
    assert "extensions" not in build_response(partial, strict=True)


# --- requests

BODY = {
    "model": "m", "prompt": "Once upon", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 5,
    "stop": ["x"], "temperature": 0.0, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "frequency_penalty": 0.1, "presence_penalty": 0.2,
    "repetition_penalty": 1.1, "logit_bias": {"5": -100}, "seed": 7, "n": 2, "user": "u", "logprobs": 3, "echo": True,
    "suffix": "end", "best_of": 2,
}  # fmt: skip


def test_a_request_survives_a_round_trip() -> None:
    request = parse(BODY)
    assert request.messages == [Message("user", [TextPart("Once upon")])]
    assert (request.logprobs, request.top_logprobs, request.include_usage) == (True, 3, True)
    assert request.extra == {"echo": True, "suffix": "end", "best_of": 2}
    assert request.essential == ["echo", "suffix"]
    assert build(request).body == BODY


def test_prompts_of_every_form() -> None:
    for prompt, wanted in (("a", "a"), (["a"], "a"), ([1, 2], [1, 2]), ([[1, 2]], [1, 2])):
        request = parse({"prompt": prompt, "stream": True, "logprobs": 0})
        assert not request.include_usage
        assert build(request).body["prompt"] == wanted
        assert build(request).body["logprobs"] == 0
    with pytest.raises(Unsupported, match="2 prompts"):
        parse({"prompt": ["a", "b"]})
    for wrong in (None, [], 3, [1, "a"], [None]):
        with pytest.raises(RequestError, match="prompt must be"):
            parse({"prompt": wrong})


def test_a_prompt_with_text_put_around_it_and_one_that_is_not_text() -> None:
    request = parse({"prompt": "a"})
    request.messages.insert(0, Message("system", [TextPart("Rules. ")]))
    assert build(request).body == {"model": "", "prompt": "Rules. a"}
    request.messages.append(Message("user", [MediaPart("image/png", "x")]))
    with pytest.raises(Unsupported, match="one text"):
        build(request)


def test_a_conversation_as_one_prompt() -> None:
    messages = [
        Message("developer", [TextPart("Be kind.", cache="")]),
        Message("user", [TextPart("Hi")], name="Ann"),
        Message("assistant", [ReasoningPart("hm"), RefusalPart("Well, "), ToolCallPart("c", "f", '{"a":1}')]),
        Message("tool", [ToolResultPart("c", [TextPart("no")], is_error=True), ToolResultPart("d", [TextPart("yes")], name="g")]),
        Message("assistant", [ReasoningPart("so")]),
        Message("user", [TextPart("And?")]),
    ]
    request = Request(messages=messages, dialect="other", reasoning=Reasoning(effort="low"), stop=["x"], output=OutputFormat())
    built = build(request, max_tokens=100)
    assert built.body == {
        "model": "",
        "prompt": 'Be kind.\n\nUser: Hi\n\nAssistant: Well, [calls f({"a":1})]\n\nResult of f: Error: no\n\n'
        "Result of g: yes\n\nUser: And?\n\nAssistant:",
        "stop": ["x", "\n\nUser:"],
        "max_tokens": 100,
    }
    assert built.dropped == ["cache_control", "messages.reasoning", "reasoning", "messages.name"]
    words = PromptTemplate(system="<s>{text}", user="<u>{text}", assistant="<a>{text}", cue="<a>", stop=("<u>",))
    assert build(Request(messages=messages[:2]), template=words).body["prompt"] == "<s>Be kind.<u>Hi<a>"
    assert build(Request(messages=messages[:2], max_tokens=7), template=words, max_tokens=9).body["max_tokens"] == 7


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(messages=[Message("user", [MediaPart("image/png", "x")])]), "image/png"),
        (Request(messages=[Message("user", [NativePart("other", {})])]), "another dialect"),
        (Request(messages=[Message("tool", [ToolResultPart("c", [MediaPart("image/png", "x")])])]), "tool result"),
        (Request(tools=[ToolSpec("f")]), "tools"),
        (Request(output=OutputFormat("json_object")), "JSON"),
        (Request(audio={"voice": "x"}), "audio"),
        (Request(dialect="other", extra={"web": {}}, essential=["web"]), "web"),
    ],
)
def test_unsupported_requests_are_refused(request_: Request, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        build(request_)


def test_tools_that_may_not_be_called_are_not_missed() -> None:
    assert "tools" not in build(Request(tools=[ToolSpec("f")], tool_choice=ToolChoice("none"))).body
