"""Calls in an object notation with bare keys and tokens for quotes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inband.readings import WEATHER, arguments, outcome, read_all_ways
from streamglot.inband import FORMATS
from streamglot.inband.engines import WrittenCall

CALL = "<|tool_call>call:{}<tool_call|>"
Q = '<|"|>'


@pytest.mark.parametrize(
    ("inside", "value"),
    [
        (f"{{city:{Q}Paris{Q}}}", {"city": "Paris"}),
        (f"{{city:{Q}Paris{Q},}}", {"city": "Paris"}),
        (f"{{{Q}city{Q} : {Q}Paris{Q} , days : 2 }}", {"city": "Paris", "days": 2}),
        ('{"city":"Paris"}', {"city": "Paris"}),
        ("{city:02139,days:007}", {"city": "02139", "days": 7}),
        ("{days:123456789012345678901234567890}", {"days": 123456789012345678901234567890}),
        (f"{{o:{{k:true,{Q}q q{Q}:[1,{Q}x{Q},two words]}}}}", {"o": {"k": True, "q q": [1, "x", "two words"]}}),
        ("{o:{},l:[]}", {"o": {}, "l": []}),
        (f'{{city:{Q}a "b" \\n {{x}}{Q}}}', {"city": 'a "b" \\n {x}'}),
        ("{}", {}),
    ],
)
def test_objects(inside: str, value: Any) -> None:
    found = read_all_ways(CALL.format(f"get_weather{inside}"), "gemma4")
    assert arguments(found) == [("get_weather", value)]
    assert (found["text"], found["complete"]) == ("", [True])


@pytest.mark.parametrize(
    ("inside", "written", "left"),
    [
        ("{city:1 days:2}", '{"city": "1 days:2"}', ""),
        (f"{{city:{Q}Paris{Q} days:2}}", '{"city": "Paris"', "days:2}"),
        ("{" + f"{Q}city{Q} 5}}", "", f"{Q}city{Q} 5}}"),
        ("{city:", '{"city": ', ""),
        ("{city:{:1}}", '{"city": {', ":1}}"),
        ("{city:[" + "x" * 5000 + "]}", '{"city": [', None),
    ],
)
def test_objects_that_break(inside: str, written: str, left: str | None) -> None:
    text = f"<|tool_call>call:get_weather{inside}"
    found = read_all_ways(text, "gemma4", [WEATHER])
    assert found["calls"] == [["get_weather", written]]
    assert left is None or found["text"].strip() == left
    assert found["complete"] == [written.endswith("}")]


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<|channel>thought\n<channel|>Hi.", "", "Hi."),
        ("<|channel>thought<channel|>Hi.", "", "Hi."),
        ("<|channel><channel|>Hi.", "", "Hi."),
        ("<|channel>thought\r\nHm.<channel|>Hi.", "Hm.", "Hi."),
        ("thought<channel|>Hi.", "", "Hi."),
        ("thought\nHm.<channel|>Hi.", "Hm.", "Hi."),
        ("<channel|>Hi.", "", "Hi."),
        ("<|channel>thoughts are free<channel|>Hi.", "thoughts are free", "Hi."),
        ("thoughtful", "", "thoughtful"),
    ],
)
def test_the_label_of_reasoning(text: str, reasoning: str, answer: str) -> None:
    found = read_all_ways(text, "gemma4")
    assert (found["reasoning"], found["text"]) == (reasoning, answer)


def test_reasoning_that_the_template_opened() -> None:
    found = read_all_ways("Hm.<channel|>Hi.", "gemma4", starts_in_reasoning=True)
    assert (found["reasoning"], found["text"]) == ("Hm.", "Hi.")


def test_markup_around_a_call() -> None:
    call = f"call:get_weather{{city:{Q}Paris{Q}}}"
    assert outcome(f"<|tool_call><bos>{call}<eos>{call}<tool_call|>", "gemma4")[1] == [("get_weather", '{"city": "Paris"}')] * 2
    assert outcome("<|tool_call><tool_call|>", "gemma4") == ("", [], [])
    assert outcome("<|tool_call>no", "gemma4") == ("<|tool_call>no", [], [])
    assert outcome("<|tool_call>call:no name{", "gemma4") == ("<|tool_call>call:no name{", [], [])
    assert outcome("<|tool_call>call:get_weather", "gemma4") == ("<|tool_call>call:get_weather", [], [])


def test_the_thinking_may_lack_its_token() -> None:
    found = read_all_ways("thought\nI look.<channel|>Sunny.", "gemma4")
    assert (found["reasoning"], found["text"]) == ("I look.", "Sunny.")
    found = read_all_ways("<|channel><bos>thought\nI look.<channel|>Sunny.", "gemma4")
    assert (found["reasoning"], found["text"]) == ("I look.", "Sunny.")


def test_lists_and_objects_are_written_in_the_notation() -> None:
    text = FORMATS["functiongemma"].write([WrittenCall("get_weather", '{"l": [1, "a", {"k": null}]}')])
    assert text == "<start_function_call>call:get_weather{l:[1,<escape>a<escape>,{k:null}]}<end_function_call>"
    assert arguments(read_all_ways(text, "functiongemma")) == [("get_weather", {"l": [1, "a", {"k": None}]})]


@pytest.mark.parametrize("value", ['<|"|>', 'a<|"|>', '<|"|>a', 'a<|"|> <|"', "<tool_call|>", "<|tool_call>call:f{"])
def test_a_value_may_hold_the_quote(value: str) -> None:
    text = FORMATS["gemma4"].write([WrittenCall("f", json.dumps({"a": value, "b": [{"k": value}]}))])
    assert arguments(read_all_ways(text, "gemma4", None)) == [("f", {"a": value, "b": [{"k": value}]})]


@pytest.mark.parametrize("format", ["gemma4", "functiongemma"])
def test_a_missing_value_is_never_invented(format: str) -> None:
    head, end = {
        "gemma4": ("<|tool_call>call:f", "<tool_call|>"),
        "functiongemma": ("<start_function_call>call:f", "<end_function_call>"),
    }[format]
    kinds: dict[str, Any] = {"n": "integer", "b": "boolean", "o": "object", "s": "string", "m": ["integer", "null"]}
    tool = {"name": "f", "parameters": {"type": "object", "properties": {key: {"type": kind} for key, kind in kinds.items()}}}
    for key in ("n", "b", "o"):
        for text in (f"{head}{{s:x,{key}:}}{end}", f"{head}{{s:x,{key}: ,s:y}}{end}"):
            assert outcome(text, format, [tool])[2] == [False]
            assert outcome(text, format, [tool], bad_call="text") == (text, [], [])
    assert outcome(f"{head}{{m:,s:}}{end}", format, [tool]) == ("", [("f", '{"m": null, "s": ""}')], [True])
