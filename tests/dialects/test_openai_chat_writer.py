"""Chat chunks that every client accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamglot import accumulate_delta, collect, dialect, reader, writer
from streamglot.dialects import DIALECTS
from streamglot.dialects.common.state import pack, unpack
from streamglot.events import BareEvent
from vocabulary import *

START, END = StreamStart("c1", "m", 7), StreamEnd("end", "stop")
TEXT: list[BareEvent] = [TextStart(), TextDelta("Hi"), TextEnd()]
CALL: list[BareEvent] = [ToolCallStart("a", "f"), ToolCallDelta('{"x":'), ToolCallDelta("1}"), ToolCallEnd()]


def write(*events: Event, **options: Any) -> list[Any]:
    """The payloads of the frames; comments and [DONE] as strings."""
    box = writer("openai_chat", **options)
    data = box.feed(events) + box.close()
    assert data.endswith(b"\n\n")
    payloads: list[Any] = []
    for frame in data.decode().removesuffix("\n\n").split("\n\n"):
        body = frame.removeprefix("data: ")
        payloads.append(json.loads(body) if body.startswith("{") else body)
    return payloads


def deltas(*events: Event, **options: Any) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in write(START, *events, END, **options)[:-1] if chunk["choices"]]


def test_text() -> None:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    assert write(START, *TEXT, END) == [
        {**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        "[DONE]",
    ]


def test_one_read_is_one_write_and_nothing_waits() -> None:
    box = writer("openai_chat")
    assert box.feed([START]) == b""
    assert box.feed([TextStart(), TextDelta("a"), TextDelta("b")]).count(b"data: ") == 2


def test_defaults_for_missing_names() -> None:
    chunk = write(StreamStart(), *TEXT, END, id="x", model="y", created=3)[0]
    assert (chunk["id"], chunk["model"], chunk["created"]) == ("x", "y", 3)
    assert write(StreamStart(), *TEXT, END)[0]["id"] == "chatcmpl-0", "chunks without an id lose their usage in a client"


def test_an_empty_answer_still_has_a_role() -> None:
    assert deltas() == [{"role": "assistant", "content": ""}]


def test_calls_have_dense_indexes_and_say_id_and_name_once() -> None:
    assert deltas(*CALL, *CALL)[:-1] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}],
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {"tool_calls": [{"index": 1, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": '{"x":'}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "1}"}}]},
    ]


def test_a_custom_tool_and_one_that_the_provider_ran() -> None:
    custom: list[Event] = [ToolCallStart("a", "sql", "custom"), ToolCallDelta("select"), ToolCallEnd()]
    assert deltas(*TEXT, *custom)[1:3] == [
        {"tool_calls": [{"index": 0, "id": "a", "type": "custom", "custom": {"name": "sql", "input": ""}}]},
        {"tool_calls": [{"index": 0, "custom": {"input": "select"}}]},
    ]
    box = writer("openai_chat")
    box.feed([START, ToolCallStart("s", "search", "server"), ToolCallDelta("{}"), ToolCallEnd(), ToolResult("s", "found"), END])
    assert box.lost == {"ToolCallStart": 1, "ToolResult": 1}


def test_the_old_functions() -> None:
    assert deltas(*CALL, functions=True)[:2] == [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}},
        {"function_call": {"arguments": '{"x":'}},
    ]
    assert write(START, *CALL, StreamEnd("tool_calls"), functions=True)[-2]["choices"][0]["finish_reason"] == "function_call"


def test_refusal() -> None:
    assert deltas(TextStart(refusal=True), TextDelta("No."), TextEnd())[0] == {"role": "assistant", "refusal": "No."}


def test_reasoning_in_the_field_that_the_client_reads() -> None:
    thought: list[Event] = [ReasoningStart(), ReasoningDelta("hm"), ReasoningEnd(Echo("openai_chat", {"field": "reasoning"}))]
    assert deltas(*thought)[0] == {"role": "assistant", "reasoning_content": "hm"}
    plain: dict[str, Any] = {"reasoning": "hm", "reasoning_content": "hm"}
    details: dict[str, Any] = {"reasoning_details": [{"type": "reasoning.text", "text": "hm", "index": 0}]}
    each = {"reasoning_details": details, "all": plain | details, **{name: {name: "hm"} for name in plain}}
    for field, fields in each.items():
        assert deltas(*thought, reasoning_field=field)[0] == {"role": "assistant", **fields}
    short: list[Event] = [ReasoningStart(summary=True), ReasoningDelta("s"), ReasoningEnd()]
    summary = deltas(*short, reasoning_field="reasoning_details")[0]["reasoning_details"]
    assert summary == [{"type": "reasoning.summary", "summary": "s", "index": 0}]


THOUGHTS: list[BareEvent] = [
    *(ReasoningStart(), ReasoningDelta("One, "), ReasoningDelta("two."), ReasoningEnd(Echo("maker", {"signature": "a"}))),
    *(ReasoningStart(), ReasoningDelta("unsigned"), ReasoningEnd()),
    *(ReasoningStart(summary=True), ReasoningDelta("three"), ReasoningEnd(Echo("maker", {"signature": "b"}))),
    *(ReasoningStart(), ReasoningEnd(Echo("maker", {"data": "c"}), redacted=True)),
]
OWN = [
    {"type": "reasoning.text", "text": "One, two.", "signature": "s", "format": "f", "index": 0},
    {"type": "reasoning.summary", "summary": "three", "id": "q", "index": 1},
    {"type": "reasoning.encrypted", "data": "d", "id": "r", "index": 2},
]
OWN_THOUGHT: list[BareEvent] = [
    *(ReasoningStart(), ReasoningDelta("One, two."), ReasoningDelta("three")),
    ReasoningEnd(Echo("openai_chat", {"reasoning_details": OWN})),
]


def reasoning_of(message: dict[str, Any]) -> list[Any]:
    """The reasoning in a message that a client returns."""
    request = DIALECTS["openai_chat"].parse_request({"model": "m", "messages": [message]})
    return [part for part in request.messages[0].parts if isinstance(part, ReasoningPart)]


def returned(events: list[BareEvent], whole: bool, field: Any) -> tuple[dict[str, Any], list[Any]]:
    """The message that a client puts together, and the reasoning in it after it came back."""
    answered = [START, *events, *TEXT, END]
    if whole:
        message = DIALECTS["openai_chat"].build_response(collect(answered), reasoning_field=field)["choices"][0]["message"]
    else:
        message = {}
        for delta in deltas(*events, *TEXT, reasoning_field=field):
            accumulate_delta(message, delta)
    return message, reasoning_of(message)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
def test_state_finds_its_text_in_the_field_of_the_client(whole: bool, field: str) -> None:
    message, parts = returned(THOUGHTS, whole, field)
    assert message[field] == "One, two.unsignedthree"
    assert {"reasoning", "reasoning_content"} & message.keys() == {field}
    assert not any(entry.get("text") or entry.get("summary") for entry in message["reasoning_details"])
    assert [(part.text, part.echo.data) for part in parts] == [
        ("One, two.", {"signature": "a"}),
        ("three", {"signature": "b"}),
        ("", {"data": "c"}),
    ]
    message, [own] = returned(OWN_THOUGHT, whole, field)
    assert (own.text, own.echo.data) == ("One, two.three", {"reasoning_details": OWN})
    for changed in ({**message, field: "cut"}, {"role": "assistant", "reasoning_details": message["reasoning_details"]}):
        [own] = reasoning_of(changed)
        assert (own.text, own.echo.data) == ("One, two.three", {"reasoning_details": OWN})


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
def test_details_have_their_text_where_the_client_reads_them(whole: bool) -> None:
    message, parts = returned(THOUGHTS, whole, "reasoning_details")
    assert {"reasoning", "reasoning_content"} & message.keys() == set()
    assert "".join(entry.get("text") or entry.get("summary") or "" for entry in message["reasoning_details"])
    assert [part.text for part in parts if part.echo is not None][:2] == ["One, two.", "three"]


def test_strict_writes_the_specification_only() -> None:
    own = Echo("openai_chat", {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]})
    thought: list[Event] = [
        ReasoningStart(),
        ReasoningDelta("hm"),
        ReasoningEnd(own),
        ReasoningStart(),
        ReasoningEnd(own, redacted=True),
    ]
    extras: list[Event] = [
        Extra("openai_chat", {"timings": {}}),
        Extra("openai_chat", {"service_tier": "x", "provider": "p"}),
        Extra("openai_chat", {"choice": {"native_finish_reason": "x"}}),
        Extra("openai_chat", {"choice": {"logprobs": {"content": []}, "stop_reason": 1}}),
    ]
    chunks = write(START, *thought, Media("image/png", "AA"), *extras, *TEXT, END, strict=True)
    allowed = {"id", "object", "created", "model", "choices", "service_tier"}
    assert all(set(chunk) <= allowed for chunk in chunks[:-1])
    assert [set(chunk["choices"][0]["delta"]) for chunk in chunks[:-1]] == [{"role", "content"}, set(), {"content"}, set()]
    box = writer("openai_chat", strict=True)
    box.feed([START, *thought, Media("image/png", "AA")])
    assert box.lost == {"ReasoningDelta": 1, "ReasoningEnd": 1, "Media": 1}


def test_details_of_this_dialect_are_not_written_twice() -> None:
    entries = [
        {"type": "reasoning.text", "text": "hm", "signature": "s", "format": "f", "index": 0},
        {"type": "reasoning.text", "text": "x", "index": 1},
        {"type": "reasoning.encrypted", "data": "d", "id": "r"},
    ]
    thought: list[Event] = [
        ReasoningStart(),
        ReasoningDelta("hm"),
        ReasoningEnd(Echo("openai_chat", {"reasoning_details": entries})),
    ]
    assert [delta["reasoning_details"] for delta in deltas(*thought, *thought[:2], reasoning_field="all")[:-1]] == [
        [{"type": "reasoning.text", "text": "hm", "index": 0}],
        [{"type": "reasoning.text", "signature": "s", "format": "f", "index": 0}],
        [{"type": "reasoning.encrypted", "data": "d", "id": "r", "index": 1}],
        [{"type": "reasoning.encrypted", "data": pack(Echo("openai_chat", {"more": [], "indexes": [0, 1, None]})), "index": 2}],
        [{"type": "reasoning.text", "text": "hm", "index": 3}],
    ]


def test_hidden_details_of_this_dialect_alone() -> None:
    entries = [{"type": "reasoning.encrypted", "data": "d"}, {"type": "reasoning.encrypted", "data": "e"}]
    hidden = ReasoningEnd(Echo("openai_chat", {"reasoning_details": entries}), redacted=True)
    given = deltas(ReasoningStart(), hidden)[:2]
    assert [delta["reasoning_details"][0]["index"] for delta in given] == [0, 1]


def test_state_of_another_provider_is_packed_and_comes_back() -> None:
    echo = Echo("other", {"signature": "s"})
    shown: list[Event] = [ReasoningStart(), ReasoningDelta("hm"), ReasoningEnd(echo)]
    hidden: list[Event] = [ReasoningStart(), ReasoningEnd(echo, redacted=True)]
    signed: list[Event] = [TextStart(), TextDelta("a"), TextEnd(echo)]
    written = deltas(*shown, *hidden, *signed, reasoning_field="all")
    details = [delta["reasoning_details"][0] for delta in written if "reasoning_details" in delta]
    assert details[:3] == [
        {"type": "reasoning.text", "text": "hm", "index": 0},
        {"type": "reasoning.text", "signature": pack(echo), "index": 0},
        {"type": "reasoning.encrypted", "data": pack(echo), "index": 1},
    ]
    assert (details[3]["type"], details[3]["index"]) == ("reasoning.encrypted", 2)
    assert unpack(pack(echo)) == echo
    assert unpack("other") is None
    assert unpack("sglot1.***") == Echo("streamglot", {"unreadable": True})
    hidden_only: list[Event] = [ReasoningStart(), ReasoningEnd(redacted=True)]
    box = writer("openai_chat")
    box.feed([START, *hidden_only])
    assert box.lost == {"ReasoningEnd": 1}


def test_state_of_a_named_provider_of_this_dialect_is_packed_with_its_name() -> None:
    echo = Echo("router", {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]})
    assert deltas(ReasoningStart(), ReasoningEnd(echo, redacted=True))[0]["reasoning_details"] == [
        {"type": "reasoning.encrypted", "data": pack(echo), "index": 0}
    ]


def test_state_of_a_call() -> None:
    own = Echo("openai_chat", {"extra_content": {"k": 1}})
    other = Echo("other", {"signature": "s"})
    calls: list[Event] = [ToolCallStart("a", "f"), ToolCallEnd(own), ToolCallStart("b", "f"), ToolCallEnd(other)]
    contents = [delta["tool_calls"][0].get("extra_content") for delta in deltas(*calls)[:-1]]
    assert contents == [None, {"k": 1}, None, {"streamglot": pack(other)}]


def test_citations_leave_in_one_chunk_before_the_finish() -> None:
    native = {"type": "file_citation", "file_id": "f"}
    cites: list[Event] = [
        TextStart(),
        Citation("http://a", "A", start=1, end=2),
        Citation(native=Echo("openai_chat", native)),
        Citation(title="book"),
        TextDelta("x"),
        TextEnd(),
    ]
    place = {"url": "http://a", "title": "A", "start_index": 1, "end_index": 2}
    assert deltas(*cites)[1] == {"annotations": [{"type": "url_citation", "url_citation": place}, native]}


def test_media() -> None:
    given = deltas(
        Media("image/png", "AA"),
        Media("image/png", url="http://b"),
        Media("audio/wav", "BB", id="x", transcript="he"),
        Media("audio/wav", "CC", id="x"),
    )
    assert given[:-1] == [
        {"role": "assistant", "images": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}, "index": 0}]},
        {"images": [{"type": "image_url", "image_url": {"url": "http://b"}, "index": 1}]},
        {"audio": {"id": "x", "data": "BB", "transcript": "he"}},
        {"audio": {"data": "CC"}},
    ]
    box = writer("openai_chat")
    box.feed([START, Media("video/mp4", "AA")])
    assert box.lost == {"Media": 1}


def test_extras_of_this_dialect_are_written_and_others_lost() -> None:
    logprobs = {"content": [{"token": "a"}]}
    chunks = write(
        START,
        Extra("openai_chat", {"system_fingerprint": "fp", "timings": {"n": 1}}),
        Extra("openai_chat", {"choice": {"logprobs": logprobs}}),
        Extra("openai_chat", {"audio": {"expires_at": 3}}),
        END,
    )
    assert [chunk.get("timings") for chunk in chunks[:-1]] == [{"n": 1}, None, None, None]
    assert all(chunk["system_fingerprint"] == "fp" for chunk in chunks[:-1])
    assert [chunk["choices"][0].get("logprobs") for chunk in chunks[:2]] == [None, logprobs]
    assert chunks[2]["choices"][0]["delta"] == {"audio": {"expires_at": 3}}
    box = writer("openai_chat")
    box.feed([START, Extra("other", {"a": 1})])
    assert box.lost == {"Extra": 1}


def test_extras_ride_on_a_chunk_with_a_choice() -> None:
    found, timed = Extra("openai_chat", {"search_results": [1]}), Extra("openai_chat", {"timings": {"n": 1}})
    chunks = write(START, found, *TEXT, timed, Usage(9, 5), END)
    assert [(chunk["choices"][0]["finish_reason"], set(chunk) & {"search_results", "timings"}) for chunk in chunks[:-1]] == [
        (None, {"search_results"}),
        ("stop", {"timings"}),
    ]
    broken = write(START, *TEXT, timed, StreamError("x", "it broke"))[-2]
    assert (broken["timings"], broken["choices"][0]["finish_reason"], "error" in broken) == ({"n": 1}, "error", True)
    activity = Extra("openai_chat", {"extensions": {"tool_call_chunks": [1]}})
    box = writer("openai_chat")
    shown = box.feed([START, TextStart(), TextDelta("a"), timed, activity])
    assert json.loads(shown.split(b"\n\n")[1].removeprefix(b"data: "))["choices"] == [
        {"index": 0, "delta": {}, "finish_reason": None}
    ], "activity is shown at once"
    assert b"tool_call_chunks" in shown


def test_state_of_a_call_stands_in_the_chunk_with_the_last_piece_of_its_arguments() -> None:
    own = Echo("openai_chat", {"extra_content": {"google": {"thought_signature": "s"}}})
    pieces: list[Event] = [ToolCallStart("a", "f"), ToolCallDelta('{"x":'), ToolCallDelta("1}"), ToolCallEnd(own)]
    given = [delta["tool_calls"][0] for delta in deltas(*pieces, *CALL) if "tool_calls" in delta]
    assert [(call["function"]["arguments"], call.get("extra_content")) for call in given] == [
        ("", None),
        ('{"x":', None),
        ("1}", own.data["extra_content"]),
        ("", None),
        ('{"x":', None),
        ("1}", None),
    ]
    without = [delta["tool_calls"][0] for delta in deltas(ToolCallStart("a", "f"), ToolCallEnd(own)) if "tool_calls" in delta]
    assert without[-1]["extra_content"] == own.data["extra_content"], "a call without arguments has it, too"


def test_the_last_piece_of_a_broken_call_is_written() -> None:
    half: list[Event] = [ToolCallStart("a", "f"), ToolCallDelta('{"x":'), ToolCallDelta("1")]
    own = Echo("openai_chat", {"extra_content": {"a": 1}})
    for end in ([StreamError("x", "it broke")], [ToolCallEnd(own, complete=False), StreamError("x", "it broke")]):
        chunks = write(START, *half, *end)
        calls = [call for chunk in chunks[:-1] for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
        assert "".join(call["function"]["arguments"] for call in calls) == '{"x":1'


def test_a_request_decides_about_usage_and_the_form_of_calls() -> None:
    body = {"model": "of the request", "messages": [{"role": "user", "content": "q"}], "stream": True}
    events = [StreamStart(), *CALL, Usage(9, 5), StreamEnd("tool_calls")]
    for more, usage, form in (
        ({}, False, "tool_calls"),
        ({"stream_options": {"include_usage": True}}, True, "tool_calls"),
        ({"functions": [{"name": "f"}]}, False, "function_call"),
    ):
        chunks = write(*events, request=dialect("openai_chat").parse_request({**body, **more}))
        assert {chunk["model"] for chunk in chunks[:-1]} == {"of the request"}
        assert ("usage" in chunks[-2], chunks[-2]["choices"] == []) == (usage, usage)
        assert form in chunks[0]["choices"][0]["delta"]


def test_usage_comes_last_with_no_choices_for_a_client_that_asked_for_it() -> None:
    chunk = write(START, *TEXT, Usage(9, 5, 4, 2, 3), END, include_usage=True)[-2]
    assert chunk["choices"] == []
    assert chunk["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 5,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    cached = write(START, Usage(9, 5, 4), END, include_usage=True)[-2]["usage"]
    assert cached["prompt_tokens_details"] == {"cached_tokens": 4}
    raw = {"prompt_tokens": 9, "completion_tokens": 5, "cost": 0.1}
    assert write(START, Usage(9, 5, raw=raw), END, include_usage=True)[-2]["usage"] == raw
    assert write(START, Usage(9), END, include_usage=True)[-2]["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 0,
        "total_tokens": 9,
    }
    assert "usage" not in write(START, Usage(9, 5), END)[-2]


def test_a_keep_alive_is_a_comment() -> None:
    assert write(KeepAlive("OPENROUTER"), START, KeepAlive(), StepEnd(1), END)[:2] == [": OPENROUTER", ": ping"]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_request", "invalid_request_error"),
        (401, "x", "authentication_error"),
        (404, "model_not_found", "invalid_request_error"),
        (429, "rate_limit", "rate_limit_error"),
        (502, "upstream_truncated", "server_error"),
        (504, "timeout", "server_error"),
        (502, "tool_call_parse_error", "tool_call_parse_error"),
    ],
)
def test_an_error_has_the_object_and_the_finish_reason(status: int, code: str, kind: str) -> None:
    chunks = write(START, *TEXT, StreamError(code, "boom", status=status))
    assert chunks[-2]["error"] == {"message": "boom", "type": kind, "param": None, "code": code}
    assert chunks[-2]["choices"] == [{"index": 0, "delta": {}, "finish_reason": "error"}]
    assert chunks[-1] == "[DONE]"


def test_an_error_in_strict_mode_or_before_the_start_is_the_object_alone() -> None:
    assert set(write(StreamError("x", "boom"))[0]) == {"error"}
    assert set(write(START, StreamError("x", "boom"), strict=True)[0]) == {"error"}


def test_events_that_stop_in_the_middle_end_in_an_error() -> None:
    assert write(START, *TEXT)[-2]["error"]["code"] == "upstream_truncated"


def test_nothing_is_written_after_the_end() -> None:
    box = writer("openai_chat")
    box.feed([START, END])
    assert box.feed([*TEXT]) == box.close() == b""


def test_several_choices_start_at_zero_and_end_each() -> None:
    other = [Choice(2, event) for event in (*TEXT, Extra("openai_chat", {"choice": {"logprobs": {"content": [1]}}}))]
    chunks = write(START, *other, Choice(2, ToolResult("a", "b")), Choice(2, StreamEnd("length")), *TEXT, END)
    places = [(chunk["choices"][0]["index"], chunk["choices"][0]["finish_reason"]) for chunk in chunks[:-1]]
    assert places == [(0, None), (1, None), (2, None), (2, None), (2, "length"), (0, None), (0, "stop"), (1, "stop")]


def test_written_events_are_read_back_unchanged() -> None:
    events: list[Event] = [
        START,
        ReasoningStart(),
        ReasoningDelta("hm"),
        ReasoningEnd(),
        *TEXT,
        *CALL,
        Usage(9, 5, raw={"prompt_tokens": 9, "completion_tokens": 5}),
        StreamEnd("tool_calls", "tool_calls"),
    ]
    box, back = writer("openai_chat", include_usage=True), reader("openai_chat")
    again = collect(back.feed(box.feed(events)) + back.close())
    wanted = collect(events)
    again.choices[0].parts[0].echo = None  # type: ignore[union-attr]  # a part with an echo
    assert again == wanted
