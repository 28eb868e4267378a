"""Collect, replay, and one chain for each choice."""

from __future__ import annotations

import msgspec
import pytest

from streamglot import check, collect, replay
from streamglot.events import BareEvent
from streamglot.messages import Part, Step
from streamglot.stages import Collect, PerChoice
from vocabulary import *

ECHO = Echo("p", {"s": 1})
CITE = Citation("http://a")
STREAM: list[Event] = [
    StreamStart("r", "m", 7),
    KeepAlive(),
    ReasoningStart(),
    ReasoningDelta("h"),
    ReasoningDelta("m"),
    ReasoningEnd(ECHO),
    TextStart(),
    TextDelta("He"),
    CITE,
    TextDelta("llo"),
    TextEnd(),
    TextStart(refusal=True),
    TextDelta("no"),
    TextEnd(),
    ToolCallStart("a", "f", "server", ECHO),
    ToolCallDelta('{"x":'),
    ToolCallDelta("1}"),
    ToolCallEnd(ECHO),
    ToolResult("a", "sunny", native=ECHO),
    StepEnd(1),
    Media("audio/wav", "AA", id="x", transcript="he"),
    Media("audio/wav", "BB", id="x", transcript="llo"),
    Media("image/png", url="http://b"),
    Extra("openai_chat", {"k": 1}),
    Usage(1, 2, 3, 4, 5, {"raw": 1}),
    StreamEnd("tool_calls", "tool_use", "##"),
]
PARTS: list[Part] = [
    ReasoningPart("hm", echo=ECHO),
    TextPart("Hello", [CITE]),
    RefusalPart("no"),
    ToolCallPart("a", "f", '{"x":1}', "server", echo=ECHO, native=ECHO),
    ToolResultPart("a", [TextPart("sunny")], native=ECHO),
    MediaPart("audio/wav", "AABB", id="x", transcript="hello"),
    MediaPart("image/png", url="http://b"),
]


def test_events_one_by_one_add_up_to_the_same() -> None:
    box = Collect()
    assert all(box.feed(event) == [] for event in STREAM)
    assert box.close() == [collect(STREAM)]


def test_a_stream_adds_up() -> None:
    response = collect(STREAM)
    assert response == Response(
        "r",
        "m",
        7,
        [
            ResponseChoice(
                0,
                PARTS,
                "tool_calls",
                "tool_use",
                "##",
                steps=[Step(5, 1, "tool_calls"), Step(7, usage=TokenCounts(1, 2, 3, 4, 5, {"raw": 1}))],
            )
        ],
        TokenCounts(1, 2, 3, 4, 5, {"raw": 1}),
        extras=[Extra("openai_chat", {"k": 1})],
    )
    assert response.choices[0].text == "Hello"


def test_the_answer_as_json() -> None:
    body = msgspec.json.decode(msgspec.json.encode(collect([*STREAM[:14], StreamError("c", "m")])))
    assert body["choices"][0]["parts"][1] == {
        "type": "text",
        "text": "Hello",
        "citations": [{"type": "citation", "url": "http://a"}],
    }
    assert body["choices"][0]["stop_reason"] is None
    assert body["usage"]["input_tokens"] is None
    assert (body["error"]["code"], body["error"]["message"]) == ("c", "m")


def test_extensions_note_every_piece() -> None:
    assert collect(STREAM, extensions=True).extensions == {
        "reasoning_chunks": ["h", "m"],
        "reasoning_summaries": [],
        "tool_call_chunks": [
            {"type": "start", "tool_call_id": "a", "tool_name": "f"},
            {"type": "args", "tool_call_id": "a", "delta": '{"x":'},
            {"type": "args", "tool_call_id": "a", "delta": "1}"},
            {"type": "end", "tool_call_id": "a"},
            {"type": "result", "tool_call_id": "a", "content": "sunny"},
        ],
    }


def test_extensions_have_each_summary_whole() -> None:
    summary: list[Event] = [ReasoningStart(summary=True), ReasoningDelta("so"), ReasoningDelta(" it is"), ReasoningEnd(ECHO)]
    hidden: list[Event] = [ReasoningStart(summary=True), ReasoningEnd(ECHO, redacted=True)]
    extensions = collect([*STREAM[:6], *summary, *hidden, StreamEnd()], extensions=True).extensions
    assert extensions is not None
    assert extensions["reasoning_summaries"] == ["so it is"]
    assert extensions["reasoning_chunks"] == ["h", "m", "so", " it is"]


def test_extensions_end_no_call_that_broke_off() -> None:
    for end in ([], [ToolCallEnd(complete=False)]):
        extensions = collect([StreamStart(), ToolCallStart("a", "f"), ToolCallDelta("{"), *end], extensions=True).extensions
        assert extensions is not None
        assert [chunk["type"] for chunk in extensions["tool_call_chunks"]] == ["start", "args"]


def test_an_open_block_at_the_end_is_kept_and_marked() -> None:
    assert collect([StreamStart(), ToolCallStart("a", "f"), ToolCallDelta("{")]).choices[0].parts == [
        ToolCallPart("a", "f", "{", complete=False)
    ]


def test_a_citation_outside_of_text() -> None:
    assert collect([StreamStart(), TextStart(), TextDelta("a"), TextEnd(), ReasoningStart(), ReasoningEnd(), CITE]).choices[
        0
    ].parts == [
        TextPart("a", [CITE]),
        ReasoningPart(""),
    ]
    assert collect([StreamStart(), CITE]).choices[0].parts == [TextPart("", [CITE])]


def test_empty_events_create_no_choice() -> None:
    silent: list[Event] = [Choice(1, StepEnd(1)), Choice(1, Usage(1)), Choice(1, KeepAlive())]
    assert collect([StreamStart(), *silent, StreamEnd("end")]).choices == [ResponseChoice(0, [], "end")]


def test_a_response_replayed_adds_up_to_itself() -> None:
    response = collect(STREAM)
    extras = [Extra("openai_chat", {"choice": {"k": 2}})]
    response.choices.append(ResponseChoice(1, [TextPart("other")], "length", "length", extras=extras))
    events = replay(response)
    check(events)
    assert collect(events) == response


def test_replaying_fewer_choices() -> None:
    assert replay(Response("r")) == [StreamStart("r"), StreamEnd("other")]
    failed = Response(choices=[ResponseChoice(0, [TextPart(""), RefusalPart(""), ReasoningPart(""), ToolCallPart("a", "f", "")])])
    failed.error = StreamError("c", "m")
    events = replay(failed)
    check(events)
    assert events[-1] == StreamError("c", "m")
    native = Response(choices=[ResponseChoice(0, [NativePart("d", {"k": 1})], None), ResponseChoice(1)])
    assert replay(native)[1:] == [Extra("d", {"k": 1}), Choice(1, StreamEnd("other")), StreamEnd("other")]


def test_messages_and_parts_have_their_text() -> None:
    assert Message("user", [TextPart("a"), RefusalPart("x"), TextPart("b")]).text == "ab"
    assert ToolResultPart("a", [TextPart("a"), MediaPart("image/png"), TextPart("b")]).text == "ab"


class Shout:
    """A box that shouts, and says how many texts it heard when the stream is over."""

    def __init__(self) -> None:
        self.texts = 0

    def feed(self, item: BareEvent) -> list[BareEvent]:
        if isinstance(item, TextDelta):
            self.texts += 1
            return [TextDelta(item.text.upper())]
        return [item]

    def close(self) -> list[BareEvent]:
        return [KeepAlive(f"{self.texts}"), Extra("shout", {"texts": self.texts})]


def test_each_choice_has_a_box_of_its_own() -> None:
    box = PerChoice(Shout)
    events: list[Event] = [StreamStart(), TextStart(), TextDelta("a"), Choice(1, TextStart()), Choice(1, TextDelta("b"))]
    out = [given for event in events for given in box.feed(event)]
    assert out == [StreamStart(), TextStart(), TextDelta("A"), Choice(1, TextStart()), Choice(1, TextDelta("B"))]
    assert box.feed(StreamError("c", "m")) == [StreamError("c", "m")]
    assert box.close() == [Choice(1, Extra("shout", {"texts": 1})), KeepAlive("1"), Extra("shout", {"texts": 1})]


def test_a_choice_before_the_start() -> None:
    assert PerChoice(Shout).feed(Choice(1, TextDelta("b"))) == [Choice(1, TextDelta("B"))]


@pytest.mark.parametrize("kind", [TextPart, ReasoningPart])
def test_parts_have_their_type_in_json(kind: type) -> None:
    assert b'"type":' in msgspec.json.encode(kind("a"))


def test_a_broken_answer_is_replayed_as_one() -> None:
    error = StreamError("upstream_truncated", "it broke off")
    choices = [
        ResponseChoice(0, [TextPart("a"), ToolCallPart("c", "f", "{}")]),
        ResponseChoice(1, [TextPart("whole")], "end"),
        ResponseChoice(2, [ReasoningPart("half")]),
        ResponseChoice(3),
    ]
    events = replay(Response("r", "m", 0, choices, error=error))
    assert [event.event for event in events if isinstance(event, Choice) and event.index == 1][-2:] == [
        TextEnd(),
        StreamEnd("end"),
    ]
    assert [event.event for event in events if isinstance(event, Choice) and event.index == 2][-1] == ReasoningEnd(complete=False)
    assert TextEnd() in events, "a part that another one follows was whole"
    assert ToolCallEnd() in events, "a call says itself whether it is"
    assert events[-1] == error
    check(events)


def test_extensions_have_results_and_their_failures() -> None:
    results: list[Event] = [ToolResult("a", "ok"), ToolResult("b", "no", is_error=True)]
    extensions = collect([StreamStart(), *results, StreamEnd()], extensions=True).extensions
    assert extensions is not None
    assert extensions["tool_call_chunks"] == [
        {"type": "result", "tool_call_id": "a", "content": "ok"},
        {"type": "result", "tool_call_id": "b", "content": "no", "is_error": True},
    ]
