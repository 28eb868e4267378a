"""The box over events: events that are not text pass through in their place."""

from __future__ import annotations

from inband.readings import CALL, WEATHER, put_together, read_all_ways, run, stream
from streamglot.events import BareEvent
from streamglot.grammar import check
from streamglot.inband import inband, parse_text
from vocabulary import *


def test_everything_else_passes_through_in_its_place() -> None:
    events: list[BareEvent] = [
        StreamStart("id", "model"),
        KeepAlive(),
        ReasoningStart(),
        ReasoningDelta("native <tool_call>"),
        ReasoningEnd(Echo("p", {"s": 1})),
        TextStart(),
        TextDelta("a "),
        Usage(input_tokens=1),
        TextDelta(CALL[:20]),
        KeepAlive("inside"),
        TextDelta(CALL[20:]),
        TextEnd(),
        ToolCallStart("native", "other"),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        Usage(output_tokens=2),
        StreamEnd("stop_sequence", "stop"),
    ]
    given = run(inband("hermes", [WEATHER], starts_in_reasoning=True), events)
    check(given)
    assert [type(event).__name__ for event in given] == [
        "StreamStart", "KeepAlive", "ReasoningStart", "ReasoningDelta", "ReasoningEnd", "TextStart", "TextDelta", "Usage",
        "KeepAlive", "TextEnd", "ToolCallStart", "ToolCallDelta", "ToolCallEnd", "ToolCallStart", "ToolCallDelta", "ToolCallEnd",
        "Usage", "StreamEnd",
    ]  # fmt: skip
    assert given[-1] == StreamEnd("tool_calls", "stop")


def test_refusals_and_untouched_formats() -> None:
    events: list[BareEvent] = [StreamStart(), TextStart(refusal=True), TextDelta(CALL), TextEnd(), StreamEnd("refusal")]
    assert run(inband("hermes", [WEATHER]), events) == events
    given = run(inband("none", [WEATHER]), stream("a ", "<think>", CALL))
    assert put_together(given)["text"] == "a <think>" + CALL


def test_an_error_of_the_upstream_comes_after_what_was_held() -> None:
    error = StreamError("upstream_truncated", "cut")
    events: list[BareEvent] = [StreamStart(), TextStart(), TextDelta("a <tool_"), TextEnd(), error]
    assert run(inband("hermes"), events)[-3:] == [TextDelta(" <tool_"), TextEnd(), error]


def test_citations_and_echoes_stay_with_the_text() -> None:
    echo = Echo("p", {"id": 1})
    events: list[BareEvent] = [StreamStart(), TextStart(), TextDelta("a"), Citation(url="u"), TextEnd(echo), StreamEnd()]
    assert run(inband("hermes"), events) == events


def test_white_space_alone_makes_no_block() -> None:
    found = parse_text(f"<think>a</think>\n\n{CALL}\n\n{CALL}\n", "hermes", [WEATHER])
    assert not [event for event in found if isinstance(event, TextStart)]
    assert read_all_ways("  plain \n", "hermes")["text"] == "  plain \n"


def test_a_block_of_the_upstream_does_not_end_the_answer() -> None:
    native: list[BareEvent] = [ToolCallStart("native", "other"), ToolCallDelta("{}"), ToolCallEnd()]
    events: list[BareEvent] = [StreamStart(), TextStart(), TextDelta("<think>a</think>\n\nOne \n"), TextEnd(), *native]
    events += [TextStart(), TextDelta(" Two<think>b"), TextEnd(), *native, TextStart(), TextDelta(f"{CALL}\nThree\n"), TextEnd()]
    given = run(inband("hermes", [WEATHER]), [*events, StreamEnd("end")])
    check(given)
    found = put_together(given)
    assert (found["text"], found["reasoning"]) == ("One \n Two\nThree", "ab")


def test_every_turn_of_a_tool_loop_starts_fresh() -> None:
    events: list[BareEvent] = [StreamStart(), TextStart(), TextDelta(f"a</think>{CALL}"), TextEnd(), StepEnd(1, "end")]
    events += [TextStart(), TextDelta("b</think>c"), TextEnd(), StreamEnd("end")]
    given = run(inband("hermes", [WEATHER], starts_in_reasoning=True), events)
    check(given)
    found = put_together(given)
    assert (found["reasoning"], found["text"], found["end"]) == ("ab", "c", "end")
    assert StepEnd(1, "tool_calls") in given
