"""The text around calls: fences, reasoning, calls that are switched off, and limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from inband.readings import WEATHER, arguments, outcome, put_together, read_all_ways
from streamglot.events import BareEvent
from streamglot.grammar import check
from streamglot.inband import FORMATS, Buffering, InBand, inband, parse_text
from streamglot.inband.engines import FormatEngine, WrittenCall
from streamglot.inband.scan import Malformed, Markers, Source
from vocabulary import *

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
XML = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
GLM = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"


# --- fences


@pytest.mark.parametrize(
    "text",
    [
        f"```\n{CALL}",
        f"````\n```\n{CALL}\n```\n````",
        f"```\n{CALL} ``` \n{CALL}\n```",
        f"  ```\n{CALL}\n  ```",
    ],
)
def test_a_fence_ends_only_with_its_own_kind(text: str) -> None:
    found = read_all_ways(text, "hermes")
    assert (found["text"], found["calls"]) == (text, [])


def test_three_ticks_inside_a_line_are_not_a_fence() -> None:
    found = read_all_ways(f"Use ``` here. {CALL}", "hermes")
    assert (found["text"], len(found["calls"])) == ("Use ``` here.", 1)


# --- thinking


@pytest.mark.parametrize(
    ("format", "text", "reasoning", "left"),
    [
        ("qwen3_coder", f"<think>I call.{XML}", "I call.", XML),
        ("glm4x", f"<think>I call.{GLM}", "I call.", GLM),
        ("qwen3_coder", "<think>The <tool_call> tag</think>So.", "The <tool_call> tag", "So."),
        ("hermes", f"<think>a</think>{CALL}", "a", CALL),
    ],
)
def test_calls_that_are_not_wanted_are_text(format: str, text: str, reasoning: str, left: str) -> None:
    found = read_all_ways(text, format, calls=False)
    assert (found["reasoning"], found["text"], found["calls"]) == (reasoning, left, [])


@pytest.mark.parametrize("text", ["The `<think>` tag.", 'A "</think>" so.', "Write (<tool_call>) or ‘<eos>’.", "“<think>”"])
def test_a_marker_in_quotes_is_text(text: str) -> None:
    found = read_all_ways(text, "hermes")
    assert (found["text"], found["reasoning"], found["end"]) == (text, "", "end")


def test_thinking_that_is_not_wanted_is_text() -> None:
    found = read_all_ways(f"<think>a</think>{CALL}", "hermes", reasoning=False)
    assert (found["reasoning"], found["text"], len(found["calls"])) == ("", "<think>a</think>", 1)


def test_text_in_the_thinking_that_is_not_a_call_stays_thinking() -> None:
    found = read_all_ways("<think>The <tool_call> tag</think>So.", "qwen3_coder", bad_call="error")
    assert (found["reasoning"], found["text"], found["end"]) == ("The <tool_call> tag", "So.", "end")
    long = f'<|content_invoke_tool_json|>{{"args": {{"a": "{"x" * 3000}"}}, "name": "other"}}'
    found = read_all_ways(f"<|content_thinking|>Hm. {long}", "inkling")
    assert (found["reasoning"], found["calls"]) == (f"Hm. {long}", [])
    long = f'<tool_call>{{"arguments": {{"a": "{"x" * 3000}"}}, "name": "other"}}'
    assert outcome(f"So: {long}", "hermes") == (f"So: {long}", [], [])


def test_a_list_of_calls_in_the_thinking_that_breaks_has_ended_it() -> None:
    text = '<|inner_prefix|>Hm. <|tools_prefix|>[{"get_weather": {"city": "Paris"}}, oops] and more'
    found = read_all_ways(text, "apertus")
    assert (found["reasoning"], found["text"], found["complete"]) == ("Hm.", ", oops] and more", [True])


def test_a_lone_closing_tag() -> None:
    found = read_all_ways("</mm:think>a</mm:think>b", "minimax_m3")
    assert found["text"] == "a</mm:think>b"
    assert read_all_ways("I think.</think>So.", "minimax_m2_append_think")["text"] == "<think>I think.</think>So."


def test_thinking_with_wide_gaps() -> None:
    gap = " " * 5000
    found = read_all_ways(f"<think>a{gap}b</think>c{gap}d", "hermes")
    assert (found["reasoning"], found["text"]) == (f"a{gap}b", f"c{gap}d")


# --- events around the text


def fed(box: InBand, events: Sequence[Event]) -> list[Event]:
    return [given for event in events for given in box.feed(event)] + box.close()


def test_a_citation_waits_until_the_call_is_over() -> None:
    events: list[BareEvent] = [StreamStart(), TextStart(), TextDelta(CALL[:60]), Citation(url="u"), TextDelta(CALL[60:] + " So.")]
    given = fed(inband("hermes", [WEATHER]), [*events, TextEnd(), StreamEnd()])
    check(given)
    kinds = [type(event) for event in given]
    assert kinds.index(Citation) > kinds.index(ToolCallEnd)


def test_an_echo_without_text_gets_a_block() -> None:
    events: list[BareEvent] = [StreamStart(), TextStart(), TextEnd(Echo("p", {"a": 1})), StreamEnd()]
    assert fed(inband("hermes"), events) == events


def test_empty_pieces() -> None:
    for format in ("functionary_v32", "hermes"):
        events: list[BareEvent] = [StreamStart(), TextStart(), TextDelta(""), TextEnd(), StreamEnd()]
        assert fed(inband(format), events) == [StreamStart(), StreamEnd()]
    assert put_together(parse_text(["", "a", ""], "hermes"))["text"] == "a"


@pytest.mark.parametrize("last", [StreamEnd("end"), StreamError("upstream_truncated", "cut"), StepEnd(1, "end")])
def test_a_call_that_only_the_end_shows_to_be_broken(last: BareEvent) -> None:
    events: list[BareEvent] = [StreamStart(), TextStart(), TextDelta('a <tool_call>{"na'), TextEnd(), last]
    given = fed(inband("hermes", [WEATHER], bad_call="error"), events)
    check(given)
    assert [event.code for event in given if isinstance(event, StreamError)] == ["tool_call_parse_error"]
    assert given[-1] is not last
    box = inband("hermes", [WEATHER], bad_call="error")
    fed(box, events)
    assert box.feed(TextDelta("more")) == []


def test_a_turn_without_a_call_ends_as_it_says() -> None:
    events: list[BareEvent] = [StreamStart(), TextStart(), TextDelta("a"), TextEnd(), StepEnd(1, "end"), StreamEnd()]
    assert fed(inband("hermes"), events) == events


def test_pieces_by_sentence_and_by_block() -> None:
    pieces = ["<think>One. ", "Two", ", three.", "</think>Four", " five! ", "Six"]
    events = parse_text(pieces, "hermes", buffering=Buffering(text="sentence", reasoning="whole"))
    check(events)
    deltas = [event for event in events if type(event).__name__.endswith("Delta")]
    assert [event.text for event in deltas] == ["One. Two, three.", "Four five!", " Six"]  # type: ignore[union-attr]  # text deltas


# --- the base


def steps(source: Source, grammar: Iterator[None]) -> None:
    source.closed = True
    for _ in grammar:
        raise AssertionError("it waits for ever")


def test_the_longest_word_counts_and_wide_gaps_are_not_crossed() -> None:
    read: list[Any] = []

    def grammar(source: Source) -> Any:
        read.append((yield from source.literal(("abc", "ab"))))
        read.append((yield from source.spaced(("ab", "abc", "a"))))
        read.append((yield from source.spaced(("x",))))
        read.append((yield from source.ahead(("x",))))

    source = Source()
    source.push("abc abc" + " " * 5000 + "x")
    running = grammar(source)
    next(running, None)
    steps(source, running)
    assert read == ["abc", "abc", "", False]
    read.clear()
    source = Source()
    source.push("abc abc" + " " * 5000)
    running = grammar(source)
    next(running, None)
    steps(source, running)
    assert read == ["abc", "abc", "", False]


def test_a_header_that_is_too_long_is_malformed() -> None:
    source = Source()
    source.push("x" * 600)
    with pytest.raises(Malformed, match="within 512 characters"):
        next(source.upto(Markers((">",))), None)


def test_complete_calls() -> None:
    assert WrittenCall("f", "").members() == {}
    assert WrittenCall("f", "oops").members() == {"arguments": "oops"}
    assert WrittenCall("f", "[1]").members() == {"arguments": [1]}
    assert FORMATS["none"].write([WrittenCall("f", "")]) == '{"name": "f", "arguments": {}}'
    assert FormatEngine().write([]) is None
    with pytest.raises(NotImplementedError):
        FormatEngine().read(None, "")  # type: ignore[arg-type]  # it raises before it reads


def test_prose_after_a_call_is_read_like_any_other() -> None:
    found = read_all_ways(f"{CALL}\n```\n{CALL}\n```\n{CALL}", "hermes")
    assert arguments(found) == [("get_weather", {"city": "Paris"})] * 2


@pytest.mark.parametrize("size", [250, 300, 5000])
@pytest.mark.parametrize(
    ("format", "head", "tail"),
    [
        ("lfm2", "<|tool_call_start|>[get_weather(city='a'", ")]<|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>[get_weather(city='a'", "b')]<|tool_call_end|>"),
        ("gemma4", '<|tool_call>call:get_weather{city:<|"|>a<|"|>', "}<tool_call|>"),
        ("gemma4", '<|tool_call>call:get_weather{city:<|"|>a<|"|>', 'b<|"|>}<tool_call|>'),
        ("qwen3_coder", "<tool_call><function=get_weather><parameter=city>a</parameter>", "</function></tool_call>"),
    ],
)
def test_endless_white_space_reads_the_same_in_any_cut(format: str, head: str, tail: str, size: int) -> None:
    text = head + " " * size + tail
    found = read_all_ways(text, format, starts_in_reasoning=False)
    if found["calls"]:
        assert found["calls"][0][1].startswith('{"city": "a')
    else:
        assert found["text"] == text
