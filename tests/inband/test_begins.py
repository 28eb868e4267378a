"""Answers of which nobody knows whether they begin in the reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from inband.readings import WEATHER, put_together, stream
from streamglot.events import BareEvent, ReasoningEnd, ReasoningStart, StreamEnd, TextDelta
from streamglot.grammar import check
from streamglot.inband import FORMATS, InBand
from streamglot.inband.box import Begins

ROWS = ("glm4x", "minimax_m2", "nemotron_v3", "step3p5", "ernie45")
PLAIN, THOUGHT = "A plain answer.", "I think so.</think>Hello"


def answer(row: str, begins: Begins, *pieces: str, end: str = "end") -> tuple[dict[str, Any], list[tuple[bool, int]]]:
    told: list[tuple[bool, int]] = []
    box = InBand(FORMATS[row], [WEATHER], begins=begins, ended=lambda closed, late: told.append((closed, late)))
    events: list[BareEvent] = []
    for event in stream(*pieces, end=StreamEnd(end)):  # type: ignore[arg-type]  # a reason
        events += box.feed(event)  # type: ignore[arg-type]  # one choice
    check(events)
    return put_together(events), told


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("size", [1, 3, 99])
def test_the_first_mark_shows_where_the_answer_began(row: str, size: int) -> None:
    def pieces(text: str) -> list[str]:
        return [text[at : at + size] for at in range(0, len(text), size)]

    expected: dict[tuple[Begins, str], tuple[str, str, bool, int]] = {
        ("unknown", PLAIN): ("", PLAIN, False, 0),
        ("unknown", THOUGHT): ("I think so.", "Hello", True, 0),
        ("text", PLAIN): ("", PLAIN, False, 0),
        ("text", THOUGHT): ("", "I think so.Hello", True, 1),
        ("reasoning", PLAIN): (PLAIN, PLAIN, False, 0),
        ("reasoning", THOUGHT): ("I think so.", "Hello", True, 0),
        ("unknown", f"<think>{THOUGHT}"): ("I think so.", "Hello", False, 0),
        ("text", f"<think>{THOUGHT}"): ("I think so.", "Hello", False, 0),
    }
    for (begins, text), (reasoning, content, closed, late) in expected.items():
        found, told = answer(row, begins, *pieces(text))
        assert (found["reasoning"], found["text"].strip(), told) == (reasoning, content, [(closed, late)]), (begins, text)


@pytest.mark.parametrize("row", ROWS)
def test_text_flows_if_the_last_answer_had_no_mark(row: str) -> None:
    box = InBand(FORMATS[row], [WEATHER], begins="text")
    assert [box.feed(event) for event in stream("Well", " then")][2][-1] == TextDelta("Well")


def test_an_answer_that_was_cut_inside_its_reasoning_shows_nothing() -> None:
    found, told = answer("glm4x", "reasoning", "I think", end="length")
    assert (found["reasoning"], found["text"], told) == ("I think", "", [])


def test_a_server_that_separates_reasoning_is_not_waited_for() -> None:
    box = InBand(FORMATS["glm4x"], [WEATHER], begins="unknown")
    begun, *rest = stream("Hello")
    for event in (begun, ReasoningStart(), ReasoningEnd(), rest[0]):
        box.feed(event)
    assert TextDelta("Hello") in box.feed(rest[1])


def test_an_answer_with_only_a_call_is_no_repeated_reasoning() -> None:
    call = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"
    found, told = answer("glm4x", "reasoning", "I look. ", call)
    assert (found["reasoning"], found["text"], len(found["calls"]), told) == ("I look.", "", 1, [(False, 0)])
