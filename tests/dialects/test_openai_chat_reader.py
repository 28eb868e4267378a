"""Chat chunks of every kind of server, read by one reader."""

from __future__ import annotations

import json
from typing import Any

import pytest

from split_checks import every_cut
from streamglot import Limits, collect, reader
from streamglot.framing import Frame
from vocabulary import *

START = StreamStart("c1", "m", 7)
DONE = b"data: [DONE]\n\n"


def frame(payload: object) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def chunk(delta: Any = None, finish: str | None = None, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish, **more.pop("choice", {})}
    return frame({"id": "c1", "created": 7, "model": "m", "choices": [choice], **more})


def call(index: int | None = 0, id: str | None = None, name: str | None = None, args: Any = None) -> dict[str, Any]:
    fragment: dict[str, Any] = {"index": index, "id": id, "function": {"name": name, "arguments": args}}
    return {"tool_calls": [fragment]}


def read(*frames: bytes) -> list[Event]:
    return every_cut(lambda: reader("openai_chat"), b"".join(frames))


def answer(*frames: bytes) -> Response:
    return collect(read(*frames))


def inner_events(*frames: bytes) -> list[Event]:
    """The events between start and end."""
    events = read(*frames, chunk({}, "stop"), DONE)
    assert events[0] == START
    return events[1:-1]


# --- fields that few servers have


@pytest.mark.parametrize("field", ["thinking", "thought"])
def test_other_names_of_reasoning(field: str) -> None:
    parts = (
        answer(chunk({field: "hm"}), chunk({field: " so"}), chunk({"content": "Hi"}), chunk({}, "stop"), DONE).choices[0].parts
    )
    assert [(type(part).__name__, part.text) for part in parts] == [("ReasoningPart", "hm so"), ("TextPart", "Hi")]  # type: ignore[union-attr]  # parts with text
    assert answer(chunk({field: True, "content": "Hi"}), chunk({}, "stop"), DONE).choices[0].text == "Hi", "a flag is no text"
    body = {"choices": [{"message": {field: "hm", "content": "Hi"}, "finish_reason": "stop"}]}
    assert [type(part).__name__ for part in answer(json.dumps(body).encode()).choices[0].parts] == ["ReasoningPart", "TextPart"]


def unread(*frames: bytes) -> dict[str, int] | None:
    box = reader("openai_chat")
    for one in frames:
        box.feed(one)
    box.close()
    return box.unread


def test_text_in_a_field_that_nobody_knows_is_counted() -> None:
    plain = (chunk({"role": "assistant", "content": ""}), chunk({"content": "Hi"}), chunk({}, "stop"), DONE)
    assert unread(*plain) is None
    assert unread(*plain[:2], chunk({"musing": "hm"}), chunk({"musing": "x", "content": ""}), *plain[2:]) == {"delta.musing": 2}
    assert unread(chunk({"content": "Hi", "musing": "hm"}), *plain[2:]) == {"delta.musing": 1}
    assert unread(*plain[:2], chunk({"content": " you", "musing": "hm"}), *plain[2:]) == {"delta.musing": 1}, (
        "late, beside content"
    )
    thought = chunk({"reasoning_content": "so", "musing": "hm"})
    assert unread(*plain[:2], thought, thought, *plain[1:]) == {"delta.musing": 2}, "beside reasoning"
    call = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}
    assert unread(*plain[:2], chunk({"tool_calls": [call], "musing": "hm"}), *plain[2:]) == {"delta.musing": 1}, "beside a call"
    labels = {"role": "assistant", "channel": "analysis", "token_id": 1, "provider_metadata": {"a": "b"}}
    assert unread(*plain[:2], chunk({**labels, "reasoning": "so"}), *plain[2:]) is None, "these have no text for a client"
    assert unread(chunk({"musing": "", "flag": True, "number": 1, "none": None}), *plain) is None
    assert unread(*plain[:2], chunk({f"field {number}": "x" for number in range(99)}), *plain[2:]) == {"delta.*": 99}
    many = unread(*plain[:2], chunk({f"field{number}": "x" for number in range(99)}), *plain[2:])
    assert many is not None
    assert (len(many), sum(many.values())) == (17, 99)
    body = {"choices": [{"message": {"content": "Hi", "musing": "hm"}, "finish_reason": "stop"}]}
    assert unread(json.dumps(body).encode()) == {"delta.musing": 1}


def test_a_whole_answer_whose_finish_reason_is_null_is_incomplete() -> None:
    body = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": None}]}
    given = answer(json.dumps(body).encode())
    assert given.error is not None
    assert (given.error.code, given.choices[0].text) == ("upstream_truncated", "Hi")
    assert "finish_reason" in given.error.message
    del body["choices"][0]["finish_reason"]
    assert answer(json.dumps(body).encode()).error is None, "some servers never send one"
    half = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}
    body["choices"][0]["message"] = {"content": None, "tool_calls": [half]}
    error = answer(json.dumps(body).encode()).error
    assert error is not None
    assert ("inside the arguments" in error.message, "[DONE]" in error.message) == (True, False)


# --- text and endings


def test_text() -> None:
    assert read(chunk({"role": "assistant", "content": ""}), chunk({"content": "Hi"}), chunk({}, "stop"), DONE) == [
        START,
        TextStart(),
        TextDelta("Hi"),
        TextEnd(),
        StreamEnd("end", "stop"),
    ]


def test_everything_in_one_chunk() -> None:
    delta = {"role": "assistant", "content": "Hi", **call(0, "a", "f", "{}")}
    assert read(chunk(delta, "tool_calls"), DONE)[1:] == [
        TextStart(),
        TextDelta("Hi"),
        TextEnd(),
        ToolCallStart("a", "f"),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        StreamEnd("tool_calls", "tool_calls"),
    ]


def test_text_in_and_after_the_finish_chunk_is_kept() -> None:
    assert answer(chunk({"content": "a"}, "stop"), chunk({"content": "b"}), DONE).choices[0].text == "ab"


@pytest.mark.parametrize("end", [b"", DONE, b'data: "[DONE]"\n\n', b"data:[DONE]", DONE + chunk({"content": "ignored"})])
def test_done_may_be_missing_quoted_or_followed(end: bytes) -> None:
    assert answer(chunk({"content": "a"}), chunk({}, "stop"), end).choices[0].text == "a"


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("stop", "end"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "tool_calls"),
        ("abort", "cancelled"),
        ("STOP", "end"),
        ("weird", "other"),
    ],
)
def test_finish_words(word: str, reason: str) -> None:
    assert read(chunk({"content": "a"}, word), DONE)[-1] == StreamEnd(reason, word)  # type: ignore[arg-type]  # a reason of the table above


def test_a_call_that_ends_with_stop_is_still_a_tool_call() -> None:
    assert read(chunk(call(0, "a", "f", "{}")), chunk({}, "stop"), DONE)[-1] == StreamEnd("tool_calls", "stop")


@pytest.mark.parametrize("field", ["stop_reason", "matched_stop"])
def test_the_stop_sequence_that_servers_send(field: str) -> None:
    assert read(chunk({"content": "a"}, "stop", choice={field: "###"}), DONE)[-1] == StreamEnd("stop_sequence", "stop", "###")
    assert read(chunk({"content": "a"}, "stop", choice={field: 151645}), DONE)[-1] == StreamEnd("end", "stop")


def test_refusal() -> None:
    assert read(chunk({"refusal": "No."}), chunk({}, "stop"), DONE)[1:] == [
        TextStart(refusal=True),
        TextDelta("No."),
        TextEnd(),
        StreamEnd("refusal", "stop"),
    ]


def test_done_without_a_finish_reason_is_an_end_without_a_reason() -> None:
    assert read(chunk({"content": "a"}), DONE)[-1] == StreamEnd("other", None)
    assert read(chunk(call(0, "a", "f", "{}")), DONE)[-1] == StreamEnd("tool_calls", None)


def error_of(*frames: bytes) -> StreamError:
    last = read(*frames)[-1]
    assert isinstance(last, StreamError)
    return last


def test_cut_streams_are_never_finished() -> None:
    assert error_of(chunk({"content": "a"})).code == "upstream_truncated"
    assert error_of(chunk({"content": "a"}), b'data: {"id": "c1", "cho').code == "upstream_truncated"
    assert error_of(chunk(call(0, "a", "f", '{"x": ')), DONE).code == "upstream_truncated"
    assert error_of(chunk({"content": "a"}), chunk({"content": "b"}, index=1), chunk({}, "stop")).code == "upstream_truncated"
    assert error_of().code == "upstream_empty"
    assert error_of(chunk({"role": "assistant"}), DONE).code == "upstream_empty"
    assert error_of(b"<html>502 Bad Gateway</html>\n").message.endswith("it sent b'<html>502 Bad Gateway</html>'")


def test_half_a_call_is_marked_and_kept() -> None:
    events = read(chunk(call(0, "a", "f", '{"x": ')))
    assert events[1:4] == [ToolCallStart("a", "f"), ToolCallDelta('{"x": '), ToolCallEnd(complete=False)]


def test_a_call_that_the_token_limit_cut_is_marked() -> None:
    assert read(chunk(call(0, "a", "f", '{"x": ')), chunk({}, "length"), DONE)[3] == ToolCallEnd(complete=False)


# --- errors


@pytest.mark.parametrize(
    "frames",
    [
        [frame({"error": {"message": "boom", "type": "server_error", "code": None}})],
        [b'error: {"error": {"message": "boom", "code": 500, "type": "server_error"}}\n\n'],
        [b'{"error": {"message": "boom", "type": "server_error"}}\n'],
        [b'event: error\ndata: {"message": "boom", "type": "server_error"}\n\n'],
        [frame({"object": "error", "message": "boom", "type": "server_error"})],
        [chunk({}, "error", error={"message": "boom", "type": "server_error"})],
    ],
)
def test_errors_in_the_stream(frames: list[bytes]) -> None:
    events = read(chunk({"content": "partial"}), *frames, DONE)
    assert events[1:-1] == [TextStart(), TextDelta("partial"), TextEnd(complete=False)]
    error = events[-1]
    assert isinstance(error, StreamError)
    assert (error.code, error.message, error.status) == ("server_error", "boom", 500)


def test_the_finish_reason_error_alone_is_an_error() -> None:
    assert error_of(chunk({"content": "a"}, "error"), DONE).code == "upstream_refused"


def test_a_call_that_an_error_cut_off_is_marked() -> None:
    cut = chunk(call(0, "a", "f", '{"x": '), "error", error={"message": "boom"})
    assert read(cut, DONE)[3] == ToolCallEnd(complete=False)
    assert read(chunk(call(0, "a", "f", '{"x": ')), chunk({}, "error"), DONE)[3] == ToolCallEnd(complete=False)


def test_lines_that_are_not_errors_are_ignored() -> None:
    assert answer(b"what\n\n", b"{broken\n\n", b'{"error": null}\n\n', chunk({"content": "a"}, "stop")).error is None


def test_not_json() -> None:
    assert error_of(chunk({"content": "a"}), b"data: {oops}\n\n", DONE).code == "not_json"
    assert error_of(b"data: 5\n\n", DONE).code == "upstream_protocol_error"


def test_limits_of_the_wire() -> None:
    box = reader("openai_chat", limits=Limits(response_bytes=300))
    events = [event for _ in range(9) for event in box.feed(chunk({"content": "a"}))]
    assert events[-1].code == "limit_response_bytes"  # type: ignore[union-attr]  # a StreamError
    box = reader("openai_chat", limits=Limits(line_bytes=200))
    events = box.feed(chunk({"content": "a"}) + chunk({"content": "b" * 500}))
    assert events[2] == TextDelta("a")
    assert events[-1].code == "limit_line_bytes"  # type: ignore[union-attr]  # a StreamError
    assert box.feed(DONE) == box.close() == []


# --- bodies that are no stream


def test_a_whole_response_instead_of_a_stream() -> None:
    message = {"role": "assistant", "content": "Hi", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}
    body = {"id": "c1", "created": 7, "model": "m", "choices": [{"message": message, "finish_reason": "tool_calls"}]}
    assert read(json.dumps(body, indent=1).encode())[1:] == [
        TextStart(),
        TextDelta("Hi"),
        TextEnd(),
        ToolCallStart("a", "f"),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        StreamEnd("tool_calls", "tool_calls"),
    ]


_CALL = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
_MORE: list[dict[str, Any]] = [
    {"content": ""},
    {"content": None},
    {"content": [{"type": "text", "text": "Hi"}]},
    {"content": "x" * 1001},
    {"refusal": None, "annotations": [], "tool_calls": []},
    {"refusal": "No."},
    {"reasoning": "Hm."},
    {"reasoning_content": "Hm."},
    {"reasoning_details": [{"type": "reasoning.text", "text": "Hm."}]},
    {"tool_calls": [_CALL]},
    {"function_call": _CALL["function"]},
    {"annotations": [{"url_citation": {"url": "u"}}]},
    {"audio": {"id": "a", "data": "AA=="}},
    {"images": [{"image_url": {"url": "u"}}]},
    {"executed_tools": [1]},
    {"is_reasoning": True},
]
"""Fields of a message beside, or in place of, its text."""


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"index": 0, "logprobs": None, "finish_reason": "length"},
        {"finish_reason": "tool_calls"},
        {"finish_reason": "STOP"},
        {"finish_reason": "invented"},
        {"finish_reason": "error"},
        {"finish_reason": None},
        {"index": 1},
        {"index": -1},
        {"is_reasoning": True},
        {"stop_reason": "END"},
        {"matched_stop": "END"},
        {"logprobs": {"content": [{"token": "Hi"}]}},
        {"content_filter_results": {"hate": {"filtered": False}}},
        {"native_finish_reason": "STOP"},
        {"delta": {"content": "Ho"}},
        *({"message": {"content": "Hi", **more}} for more in _MORE),
    ],
)
@pytest.mark.parametrize("rest", [{}, {"usage": {"prompt_tokens": 1}, "citations": ["u"], "provider": "p"}, {"choices": 2}])
def test_a_whole_answer_is_read_alike_with_and_without_the_short_way(choice: dict[str, Any], rest: dict[str, Any]) -> None:
    """The reader has a short way for bytes of an answer that is one text. A decoded answer always takes the long way."""
    choices = [{"message": {"content": "Hi"}, "finish_reason": "stop", **choice}]
    if "choices" in rest:
        choices.append({"index": 2, "message": {"content": "Ho"}, "finish_reason": "stop"})
    body: dict[str, Any] = {"id": "c1", "created": 7, "model": "m", **rest, "choices": choices}
    limits = Limits(block_chars=1000)
    short, long = (reader("openai_chat", limits=limits, call_prefix="call") for _ in range(2))
    assert short.feed(json.dumps(body).encode()) + short.close() == long.read_whole(body)


@pytest.mark.parametrize("before", [b"\n" * 5000, b" \r\n\t" * 2000, b"\xef\xbb\xbf" + b" " * 3000, b" \xef\xbb\xbf"])
def test_white_space_before_an_answer_is_skipped_however_long_it_is(before: bytes) -> None:
    """Some servers send it while the model works."""
    message = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
    if not before.endswith(b"\xbf"):
        assert answer(before + json.dumps(message).encode() + b"\n").choices[0].text == "Hi"
    assert answer(before + chunk({"content": "Hi"}, "stop")).choices[0].text == "Hi"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'\xef\xbb\xbf {"error": {"message": "m", "code": 401}}', "authentication"),
        (b'[{"error": {"message": "m", "code": 429}}]', "rate_limit"),
        (b'{"error": {"message": ', "upstream_truncated"),
        (b'{"hello": 1}', "upstream_protocol_error"),
        (b"[1, 2]", "upstream_protocol_error"),
        (b" \n\t ", "upstream_truncated"),
        (b" " * 2000 + chunk({"content": "a"}), "upstream_truncated"),
    ],
)
def test_other_bodies(body: bytes, code: str) -> None:
    assert error_of(body).code == code


# --- tool calls


def test_calls_in_fragments() -> None:
    frames = [
        chunk(call(0, "a", "f", "")),
        chunk(call(0, args='{"x":')),
        chunk(call(0, args=" 1}")),
        chunk(call(1, "b", "g", "{}")),
    ]
    assert inner_events(*frames) == [
        ToolCallStart("a", "f"),
        ToolCallDelta('{"x":'),
        ToolCallDelta(" 1}"),
        ToolCallEnd(),
        ToolCallStart("b", "g"),
        ToolCallDelta("{}"),
        ToolCallEnd(),
    ]


def test_arguments_as_an_object_or_null() -> None:
    assert inner_events(chunk(call(None, "a", "f", {"x": [1]})), chunk(call(None, "b", "f")))[1] == ToolCallDelta('{"x":[1]}')


def test_a_fragment_with_an_id_only_and_one_with_nothing() -> None:
    assert inner_events(chunk({"tool_calls": [{"index": 0, "id": "a"}, {}]}), chunk(call(0, name="f")))[0] == ToolCallStart(
        "a", "f"
    )


def test_a_custom_tool() -> None:
    first = {"tool_calls": [{"index": 0, "id": "a", "type": "custom", "custom": {"name": "sql", "input": ""}}]}
    events = inner_events(chunk(first), chunk({"tool_calls": [{"index": 0, "custom": {"input": "select 1"}}]}))
    assert events == [ToolCallStart("a", "sql", "custom"), ToolCallDelta("select 1"), ToolCallEnd()]


def test_the_old_function_call() -> None:
    frames = [chunk({"function_call": {"name": "f", "arguments": ""}}), chunk({"function_call": {"arguments": "{}"}})]
    assert read(*frames, chunk({}, "function_call"), DONE)[1:] == [
        ToolCallStart("call_c1_1", "f"),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        StreamEnd("tool_calls", "function_call"),
    ]


def test_state_that_a_call_must_take_back() -> None:
    signed = call(0, "a", "f", "{}")
    signed["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "s"}}
    echo = Echo("openai_chat", {"extra_content": {"google": {"thought_signature": "s"}}})
    assert inner_events(chunk(signed))[-1] == ToolCallEnd(echo)


# --- reasoning


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_in_a_field(field: str) -> None:
    assert inner_events(chunk({field: "hm"}), chunk({"content": "a"})) == [
        ReasoningStart(),
        ReasoningDelta("hm"),
        ReasoningEnd(Echo("openai_chat", {"field": field})),
        TextStart(),
        TextDelta("a"),
        TextEnd(),
    ]


def test_reasoning_in_several_fields_is_emitted_once() -> None:
    delta = {
        "reasoning": "hm",
        "reasoning_content": "hm",
        "reasoning_details": [{"type": "reasoning.text", "text": "hm", "index": 0}],
    }
    assert inner_events(chunk(delta))[1:2] == [ReasoningDelta("hm")]
    assert inner_events(chunk({"reasoning": "hm", "reasoning_content": "hm"}))[1] == ReasoningDelta("hm")


def test_details_are_merged_and_go_back_as_they_were() -> None:
    frames = [
        chunk({"reasoning_details": [{"type": "reasoning.text", "text": "a", "index": 0, "format": "f"}, 5]}),
        chunk({"reasoning_details": [{"type": "reasoning.text", "text": "b", "index": 0, "format": None}]}),
        chunk({"reasoning_details": [{"type": "reasoning.text", "signature": "s", "index": 0}]}),
        chunk({"reasoning_details": [{"type": "reasoning.encrypted", "data": "x", "id": "r"}]}),
        chunk({"reasoning_details": [{"type": "reasoning.encrypted", "data": "y", "id": "r"}]}),
    ]
    merged = [
        {"type": "reasoning.text", "index": 0, "format": "f", "signature": "s", "text": "ab"},
        {"type": "reasoning.encrypted", "id": "r", "data": "xy"},
    ]
    assert inner_events(*frames) == [
        ReasoningStart(),
        ReasoningDelta("a"),
        ReasoningDelta("b"),
        ReasoningEnd(Echo("openai_chat", {"reasoning_details": merged})),
    ]


def test_a_summary_and_hidden_reasoning() -> None:
    summary = {"type": "reasoning.summary", "summary": "short", "index": 0}
    assert inner_events(chunk({"reasoning_details": [summary]}))[:2] == [ReasoningStart(summary=True), ReasoningDelta("short")]
    hidden = {"type": "reasoning.encrypted", "data": "x"}
    events = inner_events(chunk({"reasoning_details": [hidden], "reasoning": None}), chunk({"content": "a"}))
    assert events[:2] == [ReasoningStart(), ReasoningEnd(Echo("openai_chat", {"reasoning_details": [hidden]}), redacted=True)]


def test_text_of_the_plain_field_beside_details_that_have_none() -> None:
    delta = {"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}], "reasoning": "hm"}
    assert inner_events(chunk(delta))[1] == ReasoningDelta("hm")


def test_content_as_a_list_of_parts() -> None:
    parts: list[Any] = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}], "signature": "s"},
        {"type": "text", "text": "a"},
        {"type": "text", "text": ""},
        "b",
        7,
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "reference", "reference_ids": [1]},
    ]
    assert inner_events(chunk({"content": parts}), chunk({"content": [{"type": "thinking", "thinking": "x"}]})) == [
        ReasoningStart(),
        ReasoningDelta("hm"),
        ReasoningEnd(Echo("openai_chat", {"thinking": {"signature": "s"}})),
        TextStart(),
        TextDelta("a"),
        TextDelta("b"),
        Media("image/png", "AA=="),
        Extra("openai_chat", {"content": [{"type": "reference", "reference_ids": [1]}]}),
        TextEnd(),
        ReasoningStart(),
        ReasoningDelta("x"),
        ReasoningEnd(Echo("openai_chat", {"thinking": {}})),
    ]


# --- annotations and media


def test_annotations_images_and_links() -> None:
    note = {"type": "url_citation", "url_citation": {"url": "http://a", "title": "A", "start_index": 1, "end_index": 2}}
    delta = {"content": "a", "annotations": [note, 1], "images": [{"image_url": {"url": "http://b"}}, {"image_url": 3}, 4]}
    assert inner_events(chunk(delta)) == [
        TextStart(),
        TextDelta("a"),
        Citation("http://a", "A", "", 1, 2, Echo("openai_chat", note)),
        Media("image/*", url="http://b"),
        TextEnd(),
    ]


def test_addresses_that_are_cited_in_every_chunk_come_once() -> None:
    frames = [chunk({"content": "a"}, citations=["http://a", 1]), chunk({"content": "b"}, citations=["http://a", "http://b"])]
    assert [event for event in inner_events(*frames) if isinstance(event, Citation)] == [
        Citation("http://a"),
        Citation("http://b"),
    ]


def test_audio() -> None:
    frames = [
        chunk({"audio": {"id": "x", "transcript": "He"}}),
        chunk({"audio": {"data": "AAAA"}}),
        chunk({"audio": {"expires_at": 9}}),
        chunk({"audio": "odd"}),
    ]
    assert inner_events(*frames) == [
        Media("audio/*", id="x", transcript="He"),
        Media("audio/*", "AAAA"),
        Extra("openai_chat", {"audio": {"expires_at": 9}}),
    ]


def test_extras_of_this_dialect_are_emitted_once() -> None:
    logprobs = {"content": [{"token": "a"}], "refusal": None}
    frames = [
        chunk({"content": "a"}, system_fingerprint="fp", choice={"logprobs": logprobs}),
        chunk({"executed_tools": [{"name": "x"}]}, system_fingerprint="fp", choice={"logprobs": {"content": None}}),
        chunk({}, timings={"n": 1}, choice={"logprobs": -0.5}),
    ]
    assert [event.data for event in inner_events(*frames) if isinstance(event, Extra)] == [
        {"choice": {"logprobs": logprobs}},
        {"system_fingerprint": "fp"},
        {"executed_tools": [{"name": "x"}]},
        {"timings": {"n": 1}},
    ]


def test_events_before_the_first_choice_wait_for_the_start() -> None:
    early = frame({"id": "", "model": "", "choices": [], "prompt_filter_results": [{"a": 1}]})
    assert read(early, chunk({"content": "a"}, "stop"))[:2] == [
        START,
        Extra("openai_chat", {"prompt_filter_results": [{"a": 1}]}),
    ]


def test_keep_alives() -> None:
    events = read(b": PROCESSING\n\n", chunk({"content": "a"}), b":\n\n", chunk({}, "stop"), DONE)
    assert [event for event in events if isinstance(event, KeepAlive)] == [KeepAlive("PROCESSING"), KeepAlive()]


# --- usage


def test_the_last_usage_counts() -> None:
    first = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2}}
    last = {"completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 3}}
    events = read(
        chunk({"content": "a"}, usage=first), chunk({}, "stop", usage=first), frame({"choices": [], "usage": last}), DONE
    )
    assert [event for event in events if isinstance(event, Usage)] == [
        Usage(9, 1, 4, 2, None, first),
        Usage(9, 5, 4, 2, 3, last),
    ]


def test_usage_in_other_places() -> None:
    assert (
        answer(
            chunk({"content": "a"}, "stop", x_groq={"usage": {"prompt_tokens": 2, "completion_tokens": 3}})
        ).usage.output_tokens
        == 3
    )
    assert answer(chunk({"content": "a"}, "stop", x_groq={"id": "x"})).usage.output_tokens is None
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "prompt_cache_hit_tokens": 1, "reasoning_tokens": 2}
    response = answer(chunk({"content": "a"}, "stop", usage=usage))
    assert (response.usage.cached_tokens, response.usage.reasoning_tokens) == (1, 2)
    assert answer(frame({"usage": usage}), chunk({"content": "a"}, "stop")).usage.input_tokens == 2


# --- several answers


def test_several_choices() -> None:
    frames = [chunk({"content": "a"}), chunk({"content": "b"}, index=1), chunk({}, "stop"), chunk({}, "length", index=1)]
    assert read(*frames, DONE) == [
        START,
        TextStart(),
        TextDelta("a"),
        Choice(1, TextStart()),
        Choice(1, TextDelta("b")),
        TextEnd(),
        Choice(1, TextEnd()),
        Choice(1, StreamEnd("length", "length")),
        StreamEnd("end", "stop"),
    ]


def test_only_a_later_choice() -> None:
    response = answer(chunk({"content": "b"}, "stop", index=1), DONE)
    assert [(choice.index, choice.text) for choice in response.choices] == [(0, ""), (1, "b")]


# --- wrong types


def test_wrong_types_cost_only_the_field_that_has_them() -> None:
    odd = {"id": 5, "created": "soon", "model": None, "choices": [{"index": 0, "delta": {"content": "a", "refusal": 7}}, "x"]}
    assert answer(frame(odd), chunk({"tool_calls": "none", "content": "b"}), chunk({}, "stop")).choices[0].text == "ab"


def test_bytes_that_are_not_text() -> None:
    assert answer(b'data: {"choices":[{"delta":{"content":"a\xff"},"finish_reason":"stop"}]}\n\n').choices[0].text == "a�"


def test_a_surrogate_pair_cut_between_two_chunks() -> None:
    def half(text: str, index: int = 0) -> bytes:
        return b'data: {"id":"\\udc00","choices":[{"index":%d,"delta":{"content":"%b"}}]}\n\n' % (index, text.encode())

    events = read(half("a\\ud83d"), half("\\ude00"), half("b", 1), chunk({}, "stop"), chunk({}, "stop", index=1))
    assert collect(events).choices[0].text == "a😀"
    assert events[0] == StreamStart("�", "", 0)
    assert Choice(1, TextDelta("b")) in events
    signed = (
        b'data: {"choices":[{"delta":{"tool_calls":[{"id":"a","function":{"name":"f"},"extra_content":{"x":"\\ud83d"}}]}}]}\n\n'
    )
    assert read(signed, chunk({}, "stop"))[-2] == ToolCallEnd(Echo("openai_chat", {"extra_content": {"x": "�"}}))


def test_a_pair_that_is_cut_after_blocks_were_opened() -> None:
    events = read(
        chunk({"content": "x"}), b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\n\n', chunk({"content": "y"}, "stop")
    )
    assert collect(events).choices[0].text == "x�y"


def test_indexes_of_choices_that_lie() -> None:
    assert answer(chunk({"content": "a"}, "stop", index=-1)).choices[0].text == "a"
    assert error_of(chunk({"content": "a"}, index=10**9)).code == "limit_choices"


def test_a_choice_without_a_delta_and_details_without_text() -> None:
    empty = frame({"id": "c1", "choices": [{"index": 0, "finish_reason": None}]})
    detail = {"type": "reasoning.text", "signature": "s"}
    events = read(empty, chunk({"reasoning_details": [detail]}), chunk({"content": "a"}, "stop"))
    assert events[2] == ReasoningEnd(Echo("openai_chat", {"reasoning_details": [detail]}), redacted=True)


def test_nothing_is_read_after_the_end_of_a_stream_inside_another() -> None:
    box = reader("openai_chat")
    box.feed_frames([Frame(chunk({"content": "a"}, "stop")[6:]), Frame(b"[DONE]")])
    assert box.feed_frames([Frame(b"{}")]) == []


def test_an_event_without_data_is_ignored() -> None:
    assert answer(chunk({"content": "a"}), b"data: \n\n", chunk({"content": "b"}, "stop")).choices[0].text == "ab"
