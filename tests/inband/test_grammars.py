"""Calls written by the grammar of each notation, as models write them: in every way that the grammar allows, with one slip
that models make, and damaged in ways that no grammar foresees."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from inband.generator import PARSED, Choose, Writer
from inband.notations import PROSE
from inband.readings import arguments, cut, read
from streamglot.inband import FORMATS
from streamglot.inband.engines import WrittenCall
from streamglot.inband.scan import SPECIAL_TOKENS

WITH_CALLS = sorted(name for name, row in FORMATS.items() if row.engines)
BAD_CALLS = ("incomplete", "text")
SCHEMAS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "string"},
    {"type": "integer"},
    {"type": "boolean"},
    {"type": "array", "items": {"type": "string"}},
    {"type": "object", "properties": {"deep": {"type": "string"}}},
]
THINKING_IS_NO_PART = ("functionary_v32",)
"""Notations that begin with a header, and have no reasoning."""
GAPS = (" ", ", ", ".\n", ' "', "' ", " (", ") ", ": ", " & ", "\n\n", " = ")


class Answer(NamedTuple):
    """``text`` is what the model wrote; ``thought``, ``before`` and ``behind`` are the thinking and the text around the
    calls, as they are to be read."""

    tools: list[dict[str, Any]]
    calls: list[WrittenCall]
    text: str
    thought: str
    before: str
    behind: str


class Words:
    """Words that occur nowhere else in the text."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> str:
        self._count += 1
        return f"w{self._count:04}q"


def written_answer(format: str, choose: Choose, slips: bool) -> Answer:
    """An answer with calls and text around them. ``choose`` makes all decisions."""
    words = Words()

    def sentence() -> str:
        return "".join(words.next() + GAPS[choose(len(GAPS))] for _ in range(choose(3))) + words.next()

    def value(schema: dict[str, Any]) -> Any:
        match schema["type"]:
            case "integer":
                return choose(10**20) - 1000
            case "boolean":
                return choose(2) == 1
            case "array":
                return [sentence() for _ in range(1 + choose(2))]
            case "object":
                return {"deep": sentence()}
        return sentence()

    tools: list[dict[str, Any]] = []
    calls = []
    for number in range(1 + choose(2)):
        properties = {f"p{number}{place}x": SCHEMAS[choose(len(SCHEMAS))] for place in range(choose(4))}
        tools.append({"name": f"tool_{number}", "parameters": {"type": "object", "properties": properties}})
    for number in range(1 + choose(2)):
        tool = tools[choose(len(tools))]
        members = {key: value(schema) for key, schema in tool["parameters"]["properties"].items()}
        calls.append(WrittenCall(tool["name"], json.dumps(members), f"id{number:07}"))
    written = Writer(format, calls, choose, choose(12) if slips else -1).write()
    head, tail = PROSE.get(format, ("{} ", " {}"))
    thought, before, behind = (sentence() if choose(2) else "" for _ in range(3))
    text = (head.format(before) if before else "") + written + (tail.format(behind) if behind else "")
    think = FORMATS[format].think
    if not think.openers or format in THINKING_IS_NO_PART:
        thought = ""
    elif thought:
        text = f"{think.openers[0]}{thought}{think.closers[0]}{text}"
    return Answer(tools, calls, text, thought, before, behind)


@some.composite
def answers(draw: Any, format: str, slips: bool) -> Answer:
    return written_answer(format, lambda count: int(draw(some.integers(0, count - 1))), slips)


def joined(text: str) -> str:
    return "".join(text.split())


def test_every_notation_has_its_grammar() -> None:
    assert sorted(PARSED) == WITH_CALLS


@pytest.mark.parametrize("slips", [False, True])
@pytest.mark.parametrize("format", WITH_CALLS)
@settings(suppress_health_check=list(HealthCheck))
@given(data=some.data(), seed=some.integers(0, 9999))
def test_calls_that_the_grammar_allows_are_read(format: str, slips: bool, data: Any, seed: int) -> None:
    answer = data.draw(answers(format, slips))
    for pieces in (answer.text, cut(answer.text, seed)):
        for bad_call in BAD_CALLS:
            found = read(pieces, format, answer.tools, starts_in_reasoning=False, bad_call=bad_call)
            assert arguments(found) == [(call.name, call.members()) for call in answer.calls]
            assert found["complete"] == [True] * len(answer.calls)
            assert joined(found["text"]) == joined(answer.before + answer.behind)
            assert found["reasoning"] == answer.thought
            assert found["end"] == "tool_calls"


MARKUP = re.compile(r"<[^<>\s]*>|\[[A-Z_]+\]|[{}\[\],();]|```|>>>")
PIECES = re.compile(MARKUP.pattern + r"|[\"':=]|\w+")
WORD = re.compile(r"w\d{4}q")
STRAY = " w9999q "


def damaged(text: str, choose: Choose) -> str:
    """The text with one fault: cut off, or a piece of it lost, doubled or swapped, a special token or a stray word."""
    kind = choose(6)
    pieces = [found.span() for found in (MARKUP if kind in (3, 5) else PIECES).finditer(text)] or [(0, 0)]
    start, end = pieces[choose(len(pieces))]
    if kind == 0:
        return text[: choose(len(text) + 1)]
    if kind == 1:
        return text[:start] + text[end:]
    if kind == 2:
        return text[:end] + text[start:]
    if kind == 3:
        first, second = sorted([(start, end), pieces[choose(len(pieces))]])
        if first == second:
            return text
        swapped = text[second[0] : second[1]] + text[first[1] : second[0]] + text[first[0] : first[1]]
        return text[: first[0]] + swapped + text[second[1] :]
    if kind == 4:
        return text[:start] + SPECIAL_TOKENS[choose(len(SPECIAL_TOKENS))] + text[start:]
    return text[:start] + STRAY + text[start:]


DROPS_UNDECLARED = ("minicpm5",)
"""Notations that drop parameters which the tool does not have, as their own parsers do."""


@pytest.mark.parametrize("bad_call", BAD_CALLS)
@pytest.mark.parametrize("format", WITH_CALLS)
@settings(suppress_health_check=list(HealthCheck))
@given(data=some.data(), seed=some.integers(0, 9999))
def test_damage_loses_no_word_and_runs_no_half_call(format: str, bad_call: str, data: Any, seed: int) -> None:
    def choose(count: int) -> int:
        return int(data.draw(some.integers(0, count - 1)))

    answer = written_answer(format, choose, slips=True)
    text = damaged(answer.text, choose)
    found = read(text, format, answer.tools, starts_in_reasoning=False, bad_call=bad_call)
    assert read(list(text), format, answer.tools, starts_in_reasoning=False, bad_call=bad_call) == found
    assert read(cut(text, seed), format, answer.tools, starts_in_reasoning=False, bad_call=bad_call) == found
    for (_, written), complete in zip(found["calls"], found["complete"], strict=True):
        assert not complete or isinstance(json.loads(written), dict)
    if bad_call == "text":
        assert all(found["complete"]), "a call is whole, or text"
    elif not all(found["complete"]):
        assert found["end"] == "tool_call_parse_error"
    if format not in DROPS_UNDECLARED:
        delivered = "".join((found["text"], found["reasoning"], *(part for call in found["calls"] for part in call)))
        assert set(WORD.findall(text)) <= set(WORD.findall(delivered))
