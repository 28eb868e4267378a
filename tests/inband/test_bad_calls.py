"""Calls that cannot be parsed: none of them ends as a success, and none can be run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from each import each
from inband.readings import READ, WEATHER, outcome, put_together, read, read_all_ways, run
from streamglot import PerChoice
from streamglot.errors import ToolCallParseError
from streamglot.events import BareEvent
from streamglot.grammar import check
from streamglot.inband import FORMATS, inband, parse_text
from streamglot.inband.scan import MAX_TRAIL_CHARS
from vocabulary import *

HALF = 'Ok. <tool_call>{"name": "get_weather", "arguments": {"city": "Pa</tool_call>'
LIMITED = {"name": "read", "parameters": {"properties": {"filePath": {"type": "string"}, "limit": {"type": "integer"}}}}
PARSE_ERROR = "tool_call_parse_error"


def stream(text: str, end: BareEvent) -> list[BareEvent]:
    return [StreamStart(), TextStart(), TextDelta(text), TextEnd(), end]


def given(events: Sequence[Event], **more: Any) -> list[Event]:
    box = inband("hermes", [WEATHER], **more)
    found = [event for one in events for event in box.feed(one)] + box.close()
    check(found)
    return found


def test_half_a_call_ends_the_stream_with_an_error() -> None:
    found = read_all_ways(HALF, "hermes")
    assert (found["text"], found["complete"], found["end"]) == ("Ok.", [False], PARSE_ERROR)
    last = parse_text(HALF, "hermes", [WEATHER])[-1]
    assert isinstance(last, StreamError)
    assert (last.code, last.status, last.origin, last.retryable) == (ToolCallParseError.code, 502, "upstream", True)
    assert "Tool call parsing failed: the text ended inside a string" in last.message
    assert "in the call of 'get_weather'" in last.message


def test_half_a_call_can_be_text() -> None:
    found = read_all_ways(HALF, "hermes", bad_call="text")
    assert (found["text"], found["calls"], found["end"]) == (HALF, [], "end")


def test_whole_calls_are_calls_for_every_setting_of_bad_call() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call> Well.'
    for bad_call in ("incomplete", "text", "error"):
        found = read_all_ways(text, "hermes", bad_call=bad_call)
        assert (found["calls"], found["complete"]) == ([["get_weather", '{"city": "Paris"}']], [True])
        assert (found["text"], found["end"]) == (" Well.", "tool_calls")


def test_a_held_call_starts_only_when_it_is_whole() -> None:
    box = inband("hermes", [WEATHER], bad_call="text")
    pieces = ['<tool_call>{"name": "get_weather", "arguments": {"city": "', "x" * 2000, '"}', "}</tool_call>"]
    found = [box.feed(TextDelta(piece)) for piece in pieces]
    assert found[:3] == [[], [], []]
    assert isinstance(found[3][0], ToolCallStart)


def test_a_call_that_is_too_long_to_hold_is_text() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "' + "x" * 2**20 + '"}}</tool_call>'
    found = put_together(parse_text(text, "hermes", [WEATHER], bad_call="text"))
    assert (found["text"].removesuffix("</tool_call>"), found["calls"]) == (text.removesuffix("</tool_call>"), [])


def test_the_undelivered_rest_of_a_call_is_text() -> None:
    text = "x <read><filePath>/a</filePath><limit>5</read> y"
    found = read_all_ways(text, "tool_tags", [LIMITED])
    assert found["calls"] == [["read", '{"filePath": "/a", "limit": ']]
    assert (found["text"], found["complete"], found["end"]) == ("x 5</read> y", [False], PARSE_ERROR)
    found = read_all_ways(text, "tool_tags", [LIMITED], bad_call="text")
    assert (found["text"], found["calls"], found["end"]) == (text, [], "end")


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("hermes", 'a <tool_call>{"na'),
        ("qwen3_coder", "a <function=get_wea"),
        ("kimi_k2", "a <|tool_calls_section_begin|><|tool_call_begin|>functions.get_w"),
        ("harmony", "<|channel|>commentary to=functions.get_weather"),
        ("kimi_k3", '<|open|>tools<|sep|><|open|>call tool="get_weather"'),
    ],
)
def test_a_text_that_ends_inside_a_call_is_not_a_success(format: str, text: str) -> None:
    found = read_all_ways(text, format, starts_in_reasoning=False)
    assert (found["calls"], found["end"]) == ([], PARSE_ERROR)
    assert found["text"].strip() in text
    assert "get_w" not in text or "get_w" in found["text"], "what was written of the call is text"


WEAK = """
hermes_loose phi4_mini firefunction_v2 cohere_command_r_plus llama3_json xlam json_array generic_json pythonic tool_tags
""".split()
"""Notations without a strong marker: half a call cannot be told from prose."""


@each(format=sorted(name for name, row in FORMATS.items() if "get_weather" in row.example and name not in WEAK))
def test_no_part_of_a_call_after_its_name_is_a_success(format: str) -> None:
    example = FORMATS[format].example
    for at in range(example.index("get_weather") + len("get_weather"), len(example)):
        for lead in ("", "I look.\n"):
            text = lead + example[:at]
            found = read(text, format, starts_in_reasoning=False)
            assert read(list(text), format, starts_in_reasoning=False) == found
            assert found["end"] == PARSE_ERROR or found["complete"] == [True], text


@pytest.mark.parametrize(
    ("text", "answer", "end"),
    [
        ("<|start|>assistant to=get_weather<|message|>", "", PARSE_ERROR),
        ("<|start|>assistant to=get_weather<|message|>Paris", "Paris", PARSE_ERROR),
        ("<|start|>assistant to=get_weather<|message|>Paris<|eom|>", "Paris", "end"),
        ("<|start|>assistant to=get_weather<|message|><|start|>assistant to=user<|message|>Sunny.", "Sunny.", "end"),
        ("<|start|>assistant to=rm_rf<|message|>Paris", "Paris", "end"),
    ],
)
def test_a_message_to_a_tool_that_breaks_off_before_its_call_is_not_a_success(text: str, answer: str, end: str) -> None:
    found = read_all_ways(text, "muse_glimmer")
    assert (found["text"], found["calls"], found["end"]) == (answer, [], end)
    whole = read_all_ways(text, "muse_glimmer", bad_call="text")
    assert (whole["text"], whole["end"]) == (answer, "end")


@pytest.mark.parametrize("format", WEAK)
def test_part_of_a_call_without_a_strong_marker_is_text(format: str) -> None:
    example = FORMATS[format].example
    for at in range(1, example.index("Paris") + len("Paris")):
        found = read_all_ways(example[:at], format, starts_in_reasoning=False)
        assert (found["text"], found["calls"], found["end"]) == (example[:at], [], "end")


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("hermes", "Write a <tool_call>"),
        ("hermes", "Write a <tool_call> tag."),
        ("hermes", '<tool_call>{"name": "rm_rf", "arguments": {}}</tool_call>'),
        ("tool_tags", "Let me read it.\n\n<read>\n<filePath>/test"),
        ("tool_tags", "Use <read>"),
        ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Par'),
    ],
)
def test_markup_that_never_became_a_call_is_text_and_not_an_error(format: str, text: str) -> None:
    found = read_all_ways(text, format, [WEATHER, READ], starts_in_reasoning=False)
    assert (found["text"], found["calls"], found["end"]) == (text, [], "end")


@pytest.mark.parametrize(
    "end", [StreamEnd("length"), StreamEnd("cancelled"), StreamEnd("content_filter"), StreamError("cut", "")]
)
def test_a_stream_that_was_cut_keeps_its_own_end(end: BareEvent) -> None:
    found = given(stream(HALF, end))
    assert found[-1] == end
    assert put_together(found)["complete"] == [False]


BROKEN = '<tool_call>{"name": "get_weather", "arguments": {"city": oops}}</tool_call> Well.'


@pytest.mark.parametrize(
    ("end", "code"), [(StreamEnd("length"), PARSE_ERROR), (StreamEnd("tool_calls"), PARSE_ERROR), (StreamEnd("cancelled"), None)]
)
def test_a_call_that_broke_before_the_cut_is_an_error(end: BareEvent, code: str | None) -> None:
    last = given(stream(BROKEN, end))[-1]
    assert (last.code if isinstance(last, StreamError) else None) == code


def test_the_text_after_a_broken_call_and_the_usage_come_before_the_error() -> None:
    events = stream(BROKEN, Usage(5, 2))
    found = given([*events, StreamEnd("end")])
    assert put_together(found)["text"] == "oops}} Well."
    assert Usage(5, 2) in found
    assert isinstance(found[-1], StreamError)


def test_the_first_broken_call_is_named() -> None:
    last = given(stream(BROKEN + HALF, StreamEnd("end")))[-1]
    assert isinstance(last, StreamError)
    assert "oops" in last.message


def test_a_step_with_a_broken_call_ends_the_stream() -> None:
    events = [*stream(BROKEN, StepEnd(1, "end")), TextStart(), TextDelta("more"), TextEnd(), StreamEnd("end")]
    found = given(events)
    assert isinstance(found[-1], StreamError)
    assert "more" not in put_together(found)["text"]


# --- several choices


def through(events: list[Event], **more: Any) -> list[Event]:
    box = PerChoice(lambda: inband("hermes", [WEATHER], **more))
    found = [event for one in events for event in box.feed(one)] + box.close()
    check(found)
    return found


def choices(first: str, second: str, *, more: str = "") -> list[Event]:
    """Two answers, the end of choice 0 last; ``more`` is text of the second one after the first has ended."""
    other: list[BareEvent] = [TextStart(), TextDelta(second)]
    ends: list[BareEvent] = [TextDelta(more), TextEnd(), StreamEnd("end")]
    return [
        StreamStart(),
        *(Choice(1, event) for event in other),
        TextStart(),
        TextDelta(first),
        TextEnd(),
        *(Choice(1, event) for event in ends),
        StreamEnd("end"),
    ]


@pytest.mark.parametrize("bad_call", ["incomplete", "error"])
@pytest.mark.parametrize(("first", "second"), [(HALF, "Two"), ("One", HALF), (BROKEN, HALF)])
def test_an_error_of_one_choice_is_the_end_of_the_stream(first: str, second: str, bad_call: str) -> None:
    found = through(choices(first, second, more=" more"), bad_call=bad_call)
    errors = [event for event in found if isinstance(event, StreamError)]
    assert [error.code for error in errors] == [PARSE_ERROR]
    assert found[-1] is errors[0]
    assert not [event for event in found if isinstance(event, StreamEnd)]
    if second == "Two":
        texts = [event.event.text for event in found if isinstance(event, Choice) and isinstance(event.event, TextDelta)]
        assert "".join(texts) == "Two more", "the other choice is whole"


def test_nothing_follows_the_error_of_a_single_choice() -> None:
    box = PerChoice(lambda: inband("hermes", [WEATHER], bad_call="error"))
    found = [event for one in stream(BROKEN, StreamEnd("end")) for event in box.feed(one)]
    assert isinstance(found[-1], StreamError)
    assert box.feed(Choice(1, TextStart())) == []
    assert box.close() == []


@pytest.mark.parametrize(
    ("format", "before", "behind"),
    [
        ("hermes", '<tool_call>{"name": "get_weather", "arguments": ', "}</tool_call>"),
        ("xlam", '[TOOL_CALLS][{"name": "get_weather", "arguments": ', "}]"),
        ("mistral", "[TOOL_CALLS]get_weather[ARGS]", ""),
        ("kimi_k2", "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>", ""),
    ],
)
@pytest.mark.parametrize(
    ("string", "given", "left"),
    [
        (r'"{\"city\": \"Paris\", junk}"', '{"city": "Paris", ', 'junk}"'),
        (r'"{\"city\": \"Paris\", \"days\": 12a}"', '{"city": "Paris", "days": ', '12a}"'),
        (r'"{\"city\": \"Pa\nris\"} \"a\" \\ b\n"', '{"city": "Pa\\nris"}', r' \"a\" \\ b\n"'),
        (r'"{\"city\": \"Paris\""', '{"city": "Paris"', '"'),
        ('"junk"', "", 'junk"'),
    ],
)
def test_the_rest_of_arguments_that_break_in_a_string_is_text(
    format: str, before: str, behind: str, string: str, given: str, left: str
) -> None:
    found = read_all_ways(f"So: {before}{string}{behind} Well.", format, bad_call="incomplete")
    assert (found["calls"], found["complete"]) == ([["get_weather", given]], [False])
    assert found["text"].removesuffix(" Well.").removesuffix("</tool_call>") == f"So: {left}{behind}".removesuffix("</tool_call>")
    assert outcome(f"So: {before}{string}{behind} Well.", format, bad_call="text")[1:] == ([], [])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 500])
def test_the_error_of_arguments_in_a_string_does_not_depend_on_the_split(size: int) -> None:
    text = r'<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Paris\", junk \"a\"}"}</tool_call>'
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    (error,) = [
        event
        for event in run(inband("hermes", [WEATHER]), [*map(TextDelta, pieces), StreamEnd("end")])
        if isinstance(event, StreamError)
    ]
    assert "a key begins with 'j' (format hermes, in the call of 'get_weather')" in error.message


def test_a_string_after_the_arguments_may_be_too_long_to_wait_for() -> None:
    text = '<tool_call>{"name": "get_weather", "arguments": "{} ' + "x" * (MAX_TRAIL_CHARS + 10) + '"}</tool_call>'
    found = read(text, "hermes", [WEATHER], starts_in_reasoning=False)
    assert (found["calls"], found["complete"]) == ([["get_weather", "{}"]], [False])
    assert found["text"].removesuffix("</tool_call>") == text[text.index(" x") :].removesuffix("</tool_call>")
