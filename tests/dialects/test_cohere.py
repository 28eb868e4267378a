"""Cohere chat: events, endings, complete responses, requests in both directions."""

from __future__ import annotations

import json
from typing import Any

import pytest

import streamglot
from split_checks import every_cut
from streamglot import RequestError, Unsupported
from streamglot.dialects import dialect
from streamglot.dialects.cohere.read import CohereReader
from streamglot.dialects.common.state import pack
from vocabulary import *

COHERE = dialect("cohere")
COUNTS = {"billed_units": {"input_tokens": 5.0}, "tokens": {"input_tokens": 500.0, "output_tokens": 4.0}, "cached_tokens": 464.0}
START = {"type": "message-start", "id": "a-1", "delta": {"message": {"role": "assistant", "content": [], "tool_calls": []}}}
END = {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": COUNTS}}
TOTAL = Usage(500, 4, 464, raw=COUNTS)
PLAN = Echo("cohere", {"field": "tool_plan"})
THINKING = Echo("cohere", {"field": "thinking"})


def content(index: int, kind: str = "content-delta", **found: Any) -> dict[str, Any]:
    return {"type": kind, "index": index, "delta": {"message": {"content": found}}}


def stop(index: int, kind: str = "content-end") -> dict[str, Any]:
    return {"type": kind, "index": index}


def call(index: int, kind: str = "tool-call-delta", call_id: str | None = None, **function: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"function": function}
    if call_id is not None:
        body |= {"id": call_id, "type": "function"}
    return {"type": kind, "index": index, "delta": {"message": {"tool_calls": body}}}


def plan(text: str) -> dict[str, Any]:
    return {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": text}}}


def wire(*events: Any, named: bool = True) -> bytes:
    lines = []
    for event in events:
        name = f"event: {event['type']}\n" if named and isinstance(event, dict) and "type" in event else ""
        lines.append(f"{name}data: {event if isinstance(event, str) else json.dumps(event)}\n\n")
    return "".join(lines).encode()


def read(*events: Any) -> list[Event]:
    found = every_cut(CohereReader, wire(*events))
    assert every_cut(CohereReader, wire(*events, named=False)) == found
    return found


def inner(*events: Any) -> list[Event]:
    found = read(START, *events, END, "[DONE]")
    assert found[0] == StreamStart("a-1")
    assert found[-2] == TOTAL
    return found[1:-2]


def failure(events: list[Event]) -> StreamError:
    assert isinstance(events[-1], StreamError)
    return events[-1]


# --- the stream


def test_text() -> None:
    assert read(
        START, content(0, "content-start", type="text", text=""), content(0, text="Good"), content(0, text=" day"), stop(0), END
    ) == [StreamStart("a-1"), TextStart(), TextDelta("Good"), TextDelta(" day"), TextEnd(), TOTAL, StreamEnd("end", "COMPLETE")]


def test_thinking_and_text_keep_their_order() -> None:
    assert inner(
        content(0, "content-start", type="thinking", thinking=""),
        content(0, thinking="Hm."),
        stop(0),
        content(1, "content-start", type="text", text="Y"),
        content(1, text="es"),
        content(1, text=""),
        stop(1),
    ) == [
        ReasoningStart(),
        ReasoningDelta("Hm."),
        ReasoningEnd(THINKING),
        TextStart(),
        TextDelta("Y"),
        TextDelta("es"),
        TextEnd(),
    ]


def test_blocks_that_nobody_begins_or_ends() -> None:
    found = inner(content(0, thinking="a"), content(0, text="b"), content(1, "content-start"), stop(7), {"type": "content-start"})
    assert [type(event).__name__ for event in found] == [
        *("ReasoningStart", "ReasoningDelta", "ReasoningEnd"),
        *("TextStart", "TextDelta", "TextEnd"),
    ]


def test_a_plan_is_reasoning_and_calls_follow_it() -> None:
    found = read(
        START,
        plan("I"),
        plan(" look."),
        plan(""),
        call(0, "tool-call-start", "w1", name="weather", arguments=""),
        call(0, arguments='{"city":'),
        call(0, arguments=' "Rome"}'),
        stop(0, "tool-call-end"),
        call(1, "tool-call-start", "c1", name="clock", arguments=""),
        stop(1, "tool-call-end"),
        call(2, "tool-call-start", "c2", name="whole", arguments={"a": 1}),
        {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL"}},
    )
    assert found[1:] == [
        ReasoningStart(),
        ReasoningDelta("I"),
        ReasoningDelta(" look."),
        ReasoningEnd(PLAN),
        ToolCallStart("w1", "weather"),
        ToolCallDelta('{"city":'),
        ToolCallDelta(' "Rome"}'),
        ToolCallEnd(),
        ToolCallStart("c1", "clock"),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        ToolCallStart("c2", "whole"),
        ToolCallDelta('{"a":1}'),
        ToolCallEnd(),
        StreamEnd("tool_calls", "TOOL_CALL"),
    ]


def test_a_plan_ends_where_text_begins_and_at_the_end() -> None:
    assert [type(event).__name__ for event in inner(plan("a"), content(0, text="b"), plan("c"))] == [
        *("ReasoningStart", "ReasoningDelta", "ReasoningEnd"),
        *("TextStart", "TextDelta", "TextEnd"),
        *("ReasoningStart", "ReasoningDelta", "ReasoningEnd"),
    ]


def test_the_reason_is_derived_from_the_blocks() -> None:
    started = call(0, "tool-call-start", "w1", name="weather", arguments="{}")
    assert read(START, started, END)[-1] == StreamEnd("tool_calls", "COMPLETE")


def test_a_call_that_was_cut_off_is_marked() -> None:
    found = read(
        START,
        call(0, "tool-call-start", "w1", name="weather", arguments='{"a":'),
        stop(0, "tool-call-end"),
        {"type": "message-end", "delta": {"finish_reason": "MAX_TOKENS"}},
    )
    assert found[-2:] == [ToolCallEnd(complete=False), StreamEnd("length", "MAX_TOKENS")]


@pytest.mark.parametrize(
    "event",
    [
        call(0, "tool-call-start", "w1"),
        {"type": "tool-call-start"},
        call(0, arguments="{}"),
        {"type": "tool-call-start", "delta": 3},
    ],
)
def test_calls_that_make_no_sense_are_faults(event: dict[str, Any]) -> None:
    assert failure(read(START, event)).origin == "upstream"


def test_empty_pieces_of_calls_are_skipped() -> None:
    assert inner({"type": "tool-call-delta"}, call(0, arguments=None), stop(4, "tool-call-end")) == []


def test_citations() -> None:
    document = {"title": "facts", "text": "It is so.", "url": "https://a.example"}
    first = {"start": 0, "end": 3, "text": "So.", "sources": [{"type": "document", "id": "d", "document": document}]}
    second = {"start": 0, "end": 3, "sources": [{"type": "tool", "tool_output": {"content": "15"}}]}
    third: dict[str, Any] = {"start": "x", "sources": [3]}
    cited = {"type": "citation-start", "index": 0, "delta": {"message": {"citations": first}}}
    more = {"type": "citation-start", "index": 1, "delta": {"message": {"citations": [second, third, 4]}}}
    assert inner(content(0, text="So."), cited, stop(0, "citation-end"), more, {"type": "citation-start"}, stop(0)) == [
        TextStart(),
        TextDelta("So."),
        Citation("https://a.example", "facts", "It is so.", 0, 3, Echo("cohere", first)),
        Citation("", "", "15", 0, 3, Echo("cohere", second)),
        Citation(native=Echo("cohere", third)),
        TextEnd(),
    ]


def test_log_probabilities_and_unknown_events_are_kept() -> None:
    logged = {**content(0, text="a"), "logprobs": {"text": "a", "logprobs": [-0.1]}}
    assert Extra("cohere", {"logprobs": {"text": "a", "logprobs": [-0.1]}}) in inner(logged)
    assert inner({"type": "debug", "prompt": "p"}) == [Extra("cohere", {"debug": {"type": "debug", "prompt": "p"}})]
    assert Extra("cohere", {"event": {"a": 1}}) in every_cut(CohereReader, b'data: {"a": 1}\n\n' + wire(END))


def test_comments_are_keep_alives() -> None:
    assert every_cut(CohereReader, b": wait\n\n" + wire(START, END))[0] == KeepAlive("wait")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [("COMPLETE", "end"), ("STOP_SEQUENCE", "stop_sequence"), ("MAX_TOKENS", "length"), ("NEW", "other"), (None, "other")],
)
def test_finish_reasons(raw: str | None, reason: Any) -> None:
    assert read(START, {"type": "message-end", "delta": {"finish_reason": raw}})[-1] == StreamEnd(reason, raw)


@pytest.mark.parametrize(
    ("delta", "status", "message"),
    [
        ({"finish_reason": "ERROR", "error": "it broke"}, 500, "it broke"),
        ({"finish_reason": "TIMEOUT"}, 504, "the upstream ended its answer with the reason 'TIMEOUT'"),
        ({"finish_reason": "COMPLETE", "error": "odd"}, 502, "odd"),
    ],
)
def test_an_error_end_keeps_the_partial_answer(delta: dict[str, Any], status: int, message: str) -> None:
    found = read(START, content(0, text="Half"), {"type": "message-end", "delta": {**delta, "usage": COUNTS}})
    assert found[1:5] == [TextStart(), TextDelta("Half"), TextEnd(), TOTAL]
    assert (failure(found).status, failure(found).message) == (status, message)


def test_errors_in_the_stream() -> None:
    assert failure(read(START, {"type": "error", "message": "too many requests", "status_code": 429})).status == 429
    assert failure(every_cut(CohereReader, b'data: {"message": "invalid token"}\n\n')).message == "invalid token"
    assert failure(every_cut(CohereReader, b'data: {"error": {"message": "x", "code": "server_error"}}\n\n')).status == 500


def test_the_end_of_the_input_before_the_end_is_a_truncation() -> None:
    for events in ((START, content(0, text="Half")), (START, content(0, text="Half"), "[DONE]")):
        found = read(*events)
        assert found[1:4] == [TextStart(), TextDelta("Half"), TextEnd(complete=False)]
        assert failure(found).code == "upstream_truncated"
    assert failure(every_cut(CohereReader, wire(START)[:-12])).code == "upstream_truncated"


def test_usage_falls_back_to_what_is_billed() -> None:
    raw = {"billed_units": {"input_tokens": 5, "output_tokens": 2}, "tokens": 3}
    found = read(START, {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": raw}})
    assert found[-2] == Usage(5, 2, raw=raw)
    raw = {"tokens": {"input_tokens": 5, "output_tokens": 2, "reasoning_tokens": 1}}
    found = read(START, {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": raw}})
    assert found[-2] == Usage(5, 2, reasoning_tokens=1, raw=raw)


def test_mistyped_fields_are_left_out() -> None:
    odd = [
        content(0, text=3),
        {"type": "content-delta", "index": "x", "delta": {"message": 4}},
        {"type": "content-delta", "delta": []},
    ]
    assert inner(*odd) == []
    assert isinstance(failure(every_cut(CohereReader, b"data: [1]\n\n")), StreamError)


def test_a_pair_of_surrogates_may_be_cut() -> None:
    found = inner(content(0, text="\ud83d"), content(0, text="\ude00"))
    assert [event.text for event in found if isinstance(event, TextDelta)] == ["😀"]


# --- whole responses

WHOLE: dict[str, Any] = {
    "id": "a-1",
    "finish_reason": "TOOL_CALL",
    "message": {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "So."}],
        "tool_plan": "I look.",
        "tool_calls": [{"id": "w1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}],
        "citations": [{"start": 0, "end": 2, "text": "So", "sources": []}],
    },
    "usage": COUNTS,
    "logprobs": [{"text": "So", "token_ids": [1]}],
}


def test_a_whole_response_is_read_and_written_again() -> None:
    response = COHERE.parse_response(WHOLE)
    assert response.choices[0].parts == [
        ReasoningPart("I look.", echo=PLAN),
        ReasoningPart("Hm.", echo=THINKING),
        TextPart("So.", [Citation("", "", "", 0, 2, Echo("cohere", WHOLE["message"]["citations"][0]))]),
        ToolCallPart("w1", "weather", '{"city":"Rome"}'),
    ]
    assert COHERE.build_response(response) == WHOLE
    assert streamglot.collect(every_cut(CohereReader, json.dumps(WHOLE).encode())).choices == response.choices


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"message": "invalid token", "id": "x"}, "invalid token"),
        ({"id": "x"}, "the upstream sent a JSON body without a message"),
    ],
)
def test_bodies_that_are_errors(body: dict[str, Any], message: str) -> None:
    assert failure(every_cut(CohereReader, json.dumps(body).encode())).message.startswith(message)
    assert COHERE.parse_response({"id": 3, "message": {"content": 4}, "finish_reason": "COMPLETE"}).id == ""


def test_responses_of_other_dialects_are_written() -> None:
    echo = Echo("elsewhere", {"signature": "x"})
    parts: list[Any] = [
        ReasoningPart("Hm.", echo=echo),
        ReasoningPart("Plain"),
        TextPart("a", [Citation("https://a.example")]),
        RefusalPart("No."),
        ToolCallPart("s", "theirs", "{}", "server"),
    ]
    response = Response("r", choices=[ResponseChoice(0, parts, "length", "length")], usage=TokenCounts(10, 4, 3))
    response.extras = [Extra("elsewhere", {"logprobs": 1}), Extra("cohere", {"debug": 1})]
    body = COHERE.build_response(response)
    assert body["message"]["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": pack(echo)},
        {"type": "thinking", "thinking": "Plain"},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "No."},
    ]
    assert body["finish_reason"] == "MAX_TOKENS"
    assert body["usage"]["tokens"] == {"input_tokens": 10, "output_tokens": 4}
    assert body["usage"]["cached_tokens"] == 3
    assert COHERE.parse_request({"messages": [body["message"]]}).messages[0].parts[0] == ReasoningPart("Hm.", echo=echo)
    assert "signature" not in COHERE.build_response(response, strict=True)["message"]["content"][0]


def test_responses_with_errors() -> None:
    error = StreamError("rate_limit", "slow down", status=429)
    assert COHERE.build_response(Response(error=error)) == {"message": "slow down"}
    partial = COHERE.build_response(Response("r", choices=[ResponseChoice(0, [TextPart("Half")])], error=error))
    assert (partial["finish_reason"], "usage" in partial) == ("ERROR", False)
    counted = Response("r", choices=[ResponseChoice(0, [TextPart("a")])], usage=TokenCounts(1, 2))
    assert "cached_tokens" not in COHERE.build_response(counted)["usage"]


# --- requests

ASKED: dict[str, Any] = {
    "model": "command-x",
    "stream": True,
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look:"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD", "detail": "low"}},
            ],
        },
        {
            "role": "assistant",
            "tool_plan": "I look.",
            "tool_calls": [{"id": "w1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}],
        },
        {"role": "tool", "tool_call_id": "w1", "content": [{"type": "document", "document": {"id": "d", "data": {"a": "b"}}}]},
        {"role": "tool", "tool_call_id": "w2", "content": "Rain"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "It rains."}]},
        {"role": "user", "content": "And?"},
    ],
    "tools": [{"type": "function", "function": {"name": "weather", "description": "Tells it", "parameters": {"type": "object"}}}],
    "strict_tools": True,
    "tool_choice": "REQUIRED",
    "thinking": {"type": "enabled", "token_budget": 500},
    "response_format": {"type": "json_object", "json_schema": {"type": "object"}},
    "max_tokens": 100,
    "stop_sequences": ["END"],
    "temperature": 0.5,
    "p": 0.9,
    "k": 4,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.2,
    "seed": 7,
    "logprobs": True,
    "documents": ["a"],
    "safety_mode": "STRICT",
}


def test_a_request_survives_a_round_trip() -> None:
    request = COHERE.parse_request(ASKED)
    assert request.essential == ["documents"]
    assert [message.role for message in request.messages] == ["system", "user", "assistant", "tool", "assistant", "user"]
    built = COHERE.build_request(request)
    assert (built.body, built.dropped) == (ASKED, [])


def test_parameters_unknown_to_the_upstream_are_refused_or_reported() -> None:
    assert COHERE.build_request(Request("m", user="me", n=1)).dropped == ["user"]
    with pytest.raises(Unsupported):
        COHERE.build_request(Request("m", n=2))


def test_tools_and_choices() -> None:
    tools = [ToolSpec("a"), ToolSpec("b", kind="custom", strict=True)]

    def body(choice: ToolChoice | None) -> dict[str, Any]:
        return COHERE.build_request(Request("m", tools=tools, tool_choice=choice)).body

    assert "tool_choice" not in body(None)
    assert "strict_tools" not in body(None)
    assert body(ToolChoice("none"))["tool_choice"] == "NONE"
    only = body(ToolChoice("required", ["b"]))
    assert (only["tool_choice"], len(only["tools"]), only["strict_tools"]) == ("REQUIRED", 1, True)
    assert only["tools"][0]["function"]["parameters"]["required"] == ["input"]
    assert "tools" not in body(ToolChoice("auto", ["c"]))
    assert COHERE.build_request(Request("m", tools=[ToolSpec("x", kind="server")])).dropped == ["tools.x"]
    assert COHERE.parse_request({"tool_choice": "none"}).tool_choice == ToolChoice("none")
    with pytest.raises(RequestError, match="tool_choice"):
        COHERE.parse_request({"tool_choice": "any"})
    with pytest.raises(RequestError, match="function"):
        COHERE.parse_request({"tools": [{}]})


@pytest.mark.parametrize(
    ("reasoning", "wanted"),
    [
        (None, None),
        (Reasoning(effort="none"), {"type": "disabled"}),
        (Reasoning(enabled=False), {"type": "disabled"}),
        (Reasoning(enabled=True), {"type": "enabled"}),
        (Reasoning(effort="low"), {"type": "enabled", "token_budget": 1024}),
        (Reasoning(budget_tokens=9), {"type": "enabled", "token_budget": 9}),
    ],
)
def test_reasoning(reasoning: Reasoning | None, wanted: Any) -> None:
    assert COHERE.build_request(Request("m", reasoning=reasoning)).body.get("thinking") == wanted


def test_forms_of_output() -> None:
    for output, wanted in (
        (OutputFormat("text"), None),
        (OutputFormat("json_object"), {"type": "json_object"}),
        (OutputFormat("json_schema", schema={"a": 1}), {"type": "json_object", "json_schema": {"a": 1}}),
    ):
        assert COHERE.build_request(Request("m", output=output)).body.get("response_format") == wanted
    assert COHERE.parse_request({"response_format": {"type": "text"}}).output == OutputFormat("text")
    assert COHERE.parse_request({"response_format": {"type": "json_object"}}).output == OutputFormat("json_object")
    with pytest.raises(RequestError, match="type"):
        COHERE.parse_request({"response_format": {"type": "xml"}})


def test_messages_of_other_dialects() -> None:
    picture = MediaPart("image/png", "QUJD")
    messages = [
        Message("developer", [TextPart("Rules")]),
        Message("assistant", [ReasoningPart("x", echo=Echo("elsewhere", {})), ReasoningPart("y")]),
        Message(
            "assistant",
            [
                RefusalPart("No."),
                ToolCallPart("c1", "free", "text", "custom"),
                ToolCallPart("c2", "none", " "),
                ToolCallPart("c3", "theirs", "{}", "server"),
            ],
        ),
        Message(
            "tool",
            [
                ToolResultPart("c1", [TextPart("a"), TextPart("b")], is_error=True),
                ToolResultPart("c2", [picture]),
                ToolResultPart("c3", [TextPart("x")], native=Echo("elsewhere", {})),
                ToolResultPart("c4", []),
            ],
        ),
        Message("tool", [ToolResultPart("c5", [picture]), TextPart("see")]),
        Message("user", []),
    ]
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    assert COHERE.build_request(Request("m", messages)).body["messages"] == [
        {"role": "system", "content": "Rules"},
        {"role": "assistant", "content": ""},
        {
            "role": "assistant",
            "content": "No.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "free", "arguments": '{"input":"text"}'}},
                {"id": "c2", "type": "function", "function": {"name": "none", "arguments": "{}"}},
            ],
        },
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [{"type": "text", "text": "Error: a"}, {"type": "text", "text": "b"}],
        },
        {"role": "tool", "tool_call_id": "c2", "content": "(see the next message)"},
        {"role": "tool", "tool_call_id": "c4", "content": "(the tool gave no output)"},
        {"role": "user", "content": [{"type": "text", "text": "The tool call c2 returned:"}, url]},
        {"role": "tool", "tool_call_id": "c5", "content": "(see the next message)"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "The tool call c5 returned:"}, url, {"type": "text", "text": "see"}],
        },
        {"role": "user", "content": ""},
    ]


@pytest.mark.parametrize(
    "part",
    [
        MediaPart("audio/wav", "QQ=="),
        MediaPart("image/png", file_id="f"),
        NativePart("elsewhere", {}),
        ToolCallPart("a", "b", "{}"),
    ],
)
def test_parts_that_cannot_be_expressed_are_refused(part: Any) -> None:
    with pytest.raises(Unsupported):
        COHERE.build_request(Request("m", [Message("user", [part])]))


def test_messages_that_are_parsed() -> None:
    def parsed(**message: Any) -> list[Any]:
        return list(COHERE.parse_request({"messages": [message]}).messages[0].parts)

    cited = {"start": 0, "end": 1}
    assert parsed(role="assistant", content="a", citations=[cited]) == [
        TextPart("a", [Citation(start=0, end=1, native=Echo("cohere", cited))])
    ]
    assert parsed(role="assistant", citations=[cited]) == []
    assert parsed(role="user", content="") == []
    assert parsed(role="user", content=[{"type": "new", "a": 1}]) == [NativePart("cohere", {"type": "new", "a": 1})]
    empty = {"id": "x", "function": {"name": "f"}}
    assert parsed(role="assistant", tool_calls=[empty]) == [ToolCallPart("x", "f", "{}")]
    for wrong in ({"role": "robot"}, {"role": "user", "content": 3}, {"role": "assistant", "tool_calls": [{"id": "x"}]}):
        with pytest.raises(RequestError):
            parsed(**wrong)


def test_opaque_state_goes_to_the_provider_that_made_it() -> None:
    """Plain text has no signature: whoever speaks the format gets it."""
    for maker in ("cohere", "cohere@mine", "cohere@other"):
        thought = Message("assistant", [ReasoningPart("a", echo=Echo(maker, {"field": "thinking"})), TextPart("b")])
        sent = COHERE.build_request(Request("m", [thought]), provider="mine").body["messages"][0]["content"]
        assert sent[0] == {"type": "thinking", "thinking": "a"}
    foreign = Message("assistant", [ReasoningPart("a", echo=Echo("ollama@mine", {"field": "thinking"})), TextPart("b")])
    built = COHERE.build_request(Request("m", [foreign]), provider="mine")
    assert built.body["messages"][0]["content"] == "b"
    assert built.dropped == ["messages.reasoning"]


def test_the_official_client_reads_what_we_build() -> None:
    types = pytest.importorskip("cohere.types")
    parse = pytest.importorskip("cohere.core.unchecked_base_model").construct_type
    for message in COHERE.build_request(COHERE.parse_request(ASKED)).body["messages"]:
        assert parse(type_=types.ChatMessageV2, object_=message).role == message["role"]
