"""Lines of /api/chat and /api/generate: read, written, and read by the vendor's client."""

from __future__ import annotations

import json
from typing import Any

import ollama
import pytest
from hypothesis import given
from hypothesis import strategies as st

from response_server import serve_response
from split_checks import every_cut
from streamglot import check, collect
from streamglot.dialects.ollama.read import OllamaReader
from streamglot.dialects.ollama.wire import error_body, read_time, write_time
from streamglot.dialects.ollama.write import OllamaWriter
from vocabulary import *

HEAD = {"model": "m", "created_at": "2026-02-03T04:05:06.789Z"}
START = StreamStart("", "m", 1770091506)
THOUGHT = Echo("ollama", {"field": "thinking"})
PNG = "iVBORw0KGgo="
COUNTS: dict[str, Any] = {
    "total_duration": 9,
    "load_duration": 1,
    "prompt_eval_count": 3,
    "prompt_eval_duration": 2,
    "eval_count": 4,
    "eval_duration": 5,
}
TIMES = {name: value for name, value in COUNTS.items() if "duration" in name}


def lines(*bodies: dict[str, Any]) -> bytes:
    return b"".join(json.dumps({**HEAD, **body}).encode() + b"\n" for body in bodies)


def message_line(content: str = "", **more: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": content, **more}, "done": False}


def last(reason: str | None = "stop", **more: Any) -> dict[str, Any]:
    return {**message_line(), "done": True, **({} if reason is None else {"done_reason": reason}), **more}


def read(data: bytes) -> list[Event]:
    return every_cut(OllamaReader, data)


def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {**more, "function": {"name": name, "arguments": arguments}}


# --- the reader


def test_thinking_text_calls_and_counters() -> None:
    events = read(
        lines(
            message_line(thinking="hm"),
            message_line(thinking=" so"),
            message_line("I look"),
            message_line(" it up."),
            message_line(tool_calls=[call("weather", {"city": "Łódź"}, id="call_a"), call("clock", {})]),
            last(**COUNTS),
        )
    )
    assert events == [
        START,
        ReasoningStart(),
        ReasoningDelta("hm"),
        ReasoningDelta(" so"),
        ReasoningEnd(THOUGHT),
        TextStart(),
        TextDelta("I look"),
        TextDelta(" it up."),
        TextEnd(),
        ToolCallStart("call_a", "weather"),
        ToolCallDelta('{"city": "\\u0141\\u00f3d\\u017a"}'),
        ToolCallEnd(),
        ToolCallStart("call_20260203040506789_2", "clock"),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        Usage(3, 4, raw=COUNTS),
        Extra("ollama", TIMES),
        StreamEnd("tool_calls", "stop"),
    ]


def test_generate_lines() -> None:
    events = read(
        lines({"thinking": "so", "response": "", "done": False}, {"response": "4", "done": False}, {"response": "", "done": True,
              "done_reason": "length", "context": [1, 2]})
    )  # fmt: skip
    assert events == [
        START,
        ReasoningStart(),
        ReasoningDelta("so"),
        ReasoningEnd(THOUGHT),
        TextStart(),
        TextDelta("4"),
        TextEnd(),
        Extra("ollama", {"context": [1, 2]}),
        StreamEnd("length", "length"),
    ]


def test_numbers_of_arguments_keep_their_digits() -> None:
    arguments = '{"n":12345678901234567890123,"zip":"02139"}'
    data = f'{{"message":{{"tool_calls":[{{"function":{{"name":"f","arguments":{arguments}}}}}]}},"done":true}}\n'
    assert ToolCallDelta(arguments) in read(data.encode())


@pytest.mark.parametrize(
    ("arguments", "text"), [(None, "{}"), ("", "{}"), ('{"a": 1}', '{"a": 1}'), ("\ud83d\ude00", "\U0001f600"), ([1], "[1]")]
)
def test_arguments_of_any_form(arguments: Any, text: str) -> None:
    assert ToolCallDelta(text) in read(lines(message_line(tool_calls=[call("f", arguments)]), last()))


def test_arguments_with_bytes_that_are_not_text() -> None:
    data = b'{"message":{"tool_calls":[{"function":{"name":"f","arguments":{"a":"\xff","b":"\\ud83d"}}}]},"done":true}\n'
    assert collect(read(data)).choices[0].stop_reason == "tool_calls"


def test_the_same_tool_twice_on_two_lines_is_two_calls() -> None:
    events = read(lines(message_line(tool_calls=[call("f", {"a": 1})]), message_line(tool_calls=[call("f", {"a": 1})]), last()))
    assert [event.call_id for event in events if isinstance(event, ToolCallStart)] == [
        "call_20260203040506789_1",
        "call_20260203040506789_2",
    ]


def test_text_calls_and_the_end_on_one_line() -> None:
    events = read(lines({**last(), "message": {"content": "Yes.", "tool_calls": [call("f", {})]}}))
    assert [type(event).__name__ for event in events][1:4] == ["TextStart", "TextDelta", "TextEnd"]
    assert events[-1] == StreamEnd("tool_calls", "stop")


@pytest.mark.parametrize(
    ("word", "reason"), [("stop", "end"), ("length", "length"), ("load", "other"), ("", "other"), (None, "end"), ("STOP", "end")]
)
def test_done_reasons(word: str | None, reason: str) -> None:
    assert read(lines(message_line("x"), last(word)))[-1] == StreamEnd(reason, word)  # type: ignore[arg-type]  # a reason of the table above


def test_a_limit_inside_an_answer_with_calls_is_still_a_limit() -> None:
    assert read(lines(message_line(tool_calls=[call("f", {})]), last("length")))[-1] == StreamEnd("length", "length")


def test_an_empty_line_of_content_is_a_keep_alive_and_a_blank_line_is_nothing() -> None:
    assert read(lines(message_line()) + b"\r\n\n" + lines(message_line("x"), last())) == [
        START,
        KeepAlive(),
        TextStart(),
        TextDelta("x"),
        TextEnd(),
        StreamEnd("end", "stop"),
    ]


def test_extras_of_this_dialect_are_kept_once() -> None:
    more = {"remote_model": "big", "remote_host": "there", "_debug_info": {"a": 1}}
    events = read(lines({**message_line("x"), **more, "logprobs": [{"token": "x"}]}, {**message_line("y"), **more}, last()))
    extras = [event.data for event in events if isinstance(event, Extra)]
    assert extras == [
        {"remote_model": "big"},
        {"remote_host": "there"},
        {"_debug_info": {"a": 1}},
        {"logprobs": [{"token": "x"}]},
    ]


def test_images_and_their_progress() -> None:
    events = read(
        lines(
            {"completed": 1, "total": 2, "done": False},
            {"total": 2, "done": False},
            message_line(images=["/9j/4A"]),
            {**last(), "image": PNG},
        )
    )
    assert Extra("ollama", {"completed": 1, "total": 2}) in events
    assert [event for event in events if isinstance(event, Media)] == [Media("image/jpeg", "/9j/4A"), Media("image/png", PNG)]


def test_an_error_line_keeps_the_partial_answer() -> None:
    events = read(lines(message_line("Hel")) + b'{"error":"the runner died"}\n')
    assert events[:4] == [START, TextStart(), TextDelta("Hel"), TextEnd(complete=False)]
    assert isinstance(events[-1], StreamError)
    assert (events[-1].code, events[-1].message, events[-1].status) == ("upstream", "the runner died", 502)


def test_an_error_with_a_status() -> None:
    event = read(b'{"error":"slow down","status_code":429}')[-1]
    assert isinstance(event, StreamError)
    assert (event.status, event.retryable) == (429, True)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "upstream_empty"),
        (lines(message_line("x")), "upstream_truncated"),
        (lines(message_line("x")) + b'{"model":"m","mess', "upstream_truncated"),
        (lines(message_line("x")) + b"<html>\n", "not_json"),
        (lines(message_line("x")) + b"[1]\n", "upstream_protocol_error"),
        (b"<html>bad gateway</html>", "upstream_truncated"),
        (lines(message_line(tool_calls=[{"id": "a"}])), "tool_call_without_name"),
        (lines(message_line(tool_calls=[call("", {})])), "tool_call_without_name"),
    ],
)
def test_a_body_that_is_not_an_answer_is_an_error(data: bytes, code: str) -> None:
    event = read(data)[-1]
    assert isinstance(event, StreamError)
    assert event.code == code


def test_lines_after_the_end_are_ignored() -> None:
    assert read(lines(message_line("x"), last(), message_line("y")))[-1] == StreamEnd("end", "stop")


def test_an_array_instead_of_lines_and_a_line_without_an_end() -> None:
    whole = read(lines(message_line("x"), last()))
    assert read(b"[" + lines(message_line("x")).strip() + b",\n " + lines(last()).strip() + b"]") == whole
    assert read(lines(message_line("x"), last()).rstrip()) == whole
    assert read(lines(message_line("x"), last()).replace(b"\n", b"\r\n")) == whole


def test_mistyped_fields_are_left_out() -> None:
    data = lines(
        {"model": 4, "created_at": 7, "message": {"content": ["x"], "thinking": 3}, "eval_count": "many", "done": "yes"}, last()
    )
    assert read(data)[-1] == StreamEnd("end", "stop")


def test_a_surrogate_pair_cut_by_two_lines() -> None:
    data = b'{"message":{"content":"\\ud83d"}}\n{"message":{"content":"\\ude00"}}\n{"done":true}\n'
    assert collect(read(data)).choices[0].text == "\U0001f600"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["message", "content", "tool_calls", "function", "name", "arguments", "done", "done_reason", "error", "images",
         "response", "thinking", "logprobs", "context", "created_at", "model", "eval_count"]), inner, max_size=5),
    max_leaves=12,
)  # fmt: skip


@given(st.lists(JSON, max_size=4), st.binary(max_size=12))
def test_anything_gives_events_or_an_error(values: list[Any], tail: bytes) -> None:
    data = b"".join(json.dumps(value).encode() + b"\n" for value in values) + tail
    reader = OllamaReader()
    check(reader.feed(data) + reader.close())


def test_times() -> None:
    assert (read_time("1970-01-01T00:00:09.123456789Z"), read_time("1970-01-01T00:00:09"), read_time("0001-01-01T00:00:00Z")) == (
        9,
        9,
        0,
    )
    assert (read_time("x"), read_time(None)) == (0, 0)
    assert (write_time(9), write_time(10**18)) == ("1970-01-01T00:00:09Z", "1970-01-01T00:00:00Z")


# --- the writer

ANSWER: list[Event] = [
    StreamStart("r1", "m", 9),
    ReasoningStart(),
    ReasoningDelta("hm"),
    ReasoningEnd(THOUGHT),
    TextStart(),
    TextDelta("Hi\n"),
    TextEnd(),
    ToolCallStart("call_a", "f"),
    ToolCallDelta('{\n "a":'),
    ToolCallDelta(" 1e2}"),
    ToolCallEnd(),
    StepEnd(0),
    Usage(3, 4, raw=COUNTS),
    Extra("ollama", TIMES),
    StreamEnd("tool_calls", "stop"),
]


def write(events: list[Event], **options: Any) -> bytes:
    writer = OllamaWriter(**options)
    return b"".join(writer.feed([event]) for event in events) + writer.close()


def test_written_lines() -> None:
    head = b'{"model":"m","created_at":"1970-01-01T00:00:09Z","message":{"role":"assistant","content":'
    assert write(ANSWER) == (
        head + b'"","thinking":"hm"},"done":false}\n'
        + head + b'"Hi\\n"},"done":false}\n'
        + head + b'"","tool_calls":[{"id":"call_a","function":{"index":0,"name":"f","arguments":{"a":1e2}}}]},"done":false}\n'
        + head + b'""},"done":true,"done_reason":"stop","total_duration":9,"load_duration":1,"prompt_eval_duration":2,'
        b'"eval_duration":5,"prompt_eval_count":3,"eval_count":4}\n'
    )  # fmt: skip


def test_written_lines_read_back() -> None:
    events = [event for event in every_cut(OllamaReader, write(ANSWER)) if not isinstance(event, StepEnd)]
    kept = [event for event in ANSWER[1:] if not isinstance(event, (StepEnd, ToolCallDelta))]
    wanted: list[Event] = [StreamStart("", "m", 9), *kept]
    wanted.insert(8, ToolCallDelta('{"a":1e2}'))
    assert events == wanted


def test_written_generate_lines() -> None:
    writer = OllamaWriter(generate=True, model="m", created=9)
    written = writer.feed(
        [*ANSWER[:9], ToolCallEnd(), Media("image/png", PNG), Extra("ollama", {"context": [1]}), StreamEnd("length")]
    )
    head = b'{"model":"m","created_at":"1970-01-01T00:00:09Z","response":'
    assert written == (
        head + b'"","thinking":"hm","done":false}\n'
        + head + b'"Hi\\n","done":false}\n'
        + head + b'"","image":"' + PNG.encode() + b'","done":false}\n'
        + head + b'"","done":true,"done_reason":"length","context":[1]}\n'
    )  # fmt: skip
    assert dict(writer.lost) == {"ToolCallStart": 1}


def test_events_that_the_dialect_cannot_express_are_counted() -> None:
    writer = OllamaWriter()
    writer.feed(
        [
            StreamStart(),
            ReasoningStart(),
            ReasoningEnd(Echo("other", {"signature": "s"}), redacted=True),
            TextStart(refusal=True),
            TextDelta("no"),
            Citation("https://a"),
            TextEnd(Echo("other", {"s": 1})),
            ToolCallStart("s", "search", "server"),
            ToolCallDelta("{}"),
            ToolCallEnd(),
            ToolResult("s", "found"),
            ToolCallStart("c", "cut"),
            ToolCallDelta('{"a'),
            ToolCallEnd(complete=False),
            Media("image/png", PNG),
            Extra("other", {"x": 1}),
            Choice(1, TextStart()),
            StreamEnd(),
        ]
    )
    assert dict(writer.lost) == {
        "ReasoningEnd": 1,
        "Citation": 1,
        "TextEnd": 1,
        "ToolCallStart": 1,
        "ToolResult": 1,
        "ToolCallEnd": 1,
        "Media": 1,
        "Extra": 1,
        "TextStart": 1,
    }


@pytest.mark.parametrize(
    ("kind", "text", "arguments"),
    [
        ("function", "", {}),
        ("function", "[1]", {"input": [1]}),
        ("function", "{broken", {"input": "{broken"}),
        ("custom", "ls -l", {"input": "ls -l"}),
    ],
)
def test_arguments_are_always_an_object_on_one_line(kind: Any, text: str, arguments: dict[str, Any]) -> None:
    written = write([StreamStart(), ToolCallStart("c", "f", kind), ToolCallDelta(text), ToolCallEnd(), StreamEnd("tool_calls")])
    assert written.count(b"\n") == 2
    assert json.loads(written.splitlines()[0])["message"]["tool_calls"][0]["function"]["arguments"] == arguments


def test_keep_alive_before_and_inside_is_never_a_blank_line() -> None:
    written = write([KeepAlive(), StreamStart("", "m"), KeepAlive("judging"), StreamEnd("other", "load")], model="early")
    bodies = [json.loads(line) for line in written.split(b"\n")[:-1]]
    assert [body["model"] for body in bodies] == ["early", "m", "m"]
    assert [body["message"]["content"] for body in bodies] == ["", "", ""]
    assert bodies[-1]["done_reason"] == "load"


def test_logprobs_go_onto_a_line() -> None:
    written = write([StreamStart("", "m"), Extra("ollama", {"logprobs": [{"token": "x"}], "unknown": 1}), StreamEnd()])
    assert json.loads(written.splitlines()[0])["logprobs"] == [{"token": "x"}]


def test_an_error_ends_the_lines_and_a_half_call_is_never_written() -> None:
    written = write([StreamStart("", "m"), ToolCallStart("c", "f"), ToolCallDelta('{"a"'), StreamError("x", "it broke")])
    assert written == b'{"error":"it broke"}\n'
    assert b"the events stopped" in write([StreamStart("", "m"), TextStart(), TextDelta("x")])


# --- the vendor's client over a socket


def test_the_client_reads_what_is_written() -> None:
    body = write([ANSWER[0], KeepAlive(), *ANSWER[1:]])
    with serve_response(body, "application/x-ndjson") as address:
        client = ollama.Client(host=address)
        parts = list(client.chat(model="m", messages=[{"role": "user", "content": "q"}], stream=True))
    assert "".join(part.message.content or "" for part in parts) == "Hi\n"
    assert "".join(part.message.thinking or "" for part in parts) == "hm"
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert [(call.function.name, call.function.arguments) for call in calls] == [("f", {"a": 100})]
    assert (parts[-1].done, parts[-1].done_reason, parts[-1].eval_count, parts[-1].total_duration) == (True, "stop", 4, 9)


def test_the_client_reads_generate_lines() -> None:
    with serve_response(write([*ANSWER[:7], *ANSWER[11:]], generate=True), "application/x-ndjson") as address:
        parts = list(ollama.Client(host=address).generate(model="m", prompt="q", stream=True))
    assert "".join(part.response or "" for part in parts) == "Hi\n"
    assert parts[0].thinking == "hm"
    assert parts[-1].done_reason == "stop"


def test_the_client_raises_what_is_written_as_an_error() -> None:
    body = write([*ANSWER[:6], StreamError("x", "it broke")])
    with serve_response(body, "application/x-ndjson") as address, pytest.raises(ollama.ResponseError, match="it broke"):
        list(ollama.Client(host=address).chat(model="m", messages=[], stream=True))
    error = json.dumps(error_body(StreamError("not_found", "no such model", status=404))).encode()
    with (
        serve_response(error, "application/json", 404) as address,
        pytest.raises(ollama.ResponseError, match="no such model") as caught,
    ):
        ollama.Client(host=address).chat(model="m", messages=[])
    assert caught.value.status_code == 404
