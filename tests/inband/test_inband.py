"""The in-band box: what is emitted at once, what waits, what passes through, and what happens to a call that is not one."""

from __future__ import annotations

from typing import Any

import pytest

from inband.readings import CALL, READ, WEATHER, arguments, put_together, read, read_all_ways, run, stream
from streamglot.errors import ConfigError
from streamglot.grammar import check
from streamglot.inband import FORMATS, Buffering, inband, parse_text
from vocabulary import *

# --- live


def test_prose_flows_at_once_and_only_what_may_be_a_marker_waits() -> None:
    box = inband("hermes", [WEATHER])
    assert box.feed(StreamStart()) == [StreamStart()]
    assert box.feed(TextStart()) == []
    assert box.feed(TextDelta("Hello")) == [TextStart(), TextDelta("Hello")]
    assert box.feed(TextDelta(" there")) == [TextDelta(" there")]
    assert box.feed(TextDelta(", a <")) == [TextDelta(", a")]
    assert box.feed(TextDelta("tool")) == []
    assert box.feed(TextDelta("s")) == [TextDelta(" <tools")]


@pytest.mark.parametrize(
    ("format", "up_to_the_name", "value", "rest"),
    [
        ("hermes", '<tool_call>{"name": "get_weather",', ' "arguments": {"city": "Par', 'is"}}</tool_call>'),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>", "\n<parameter=city>\nPar",
         "is\n</parameter>\n</function>\n</tool_call>"),
        ("mistral", "[TOOL_CALLS]get_weather[ARGS]", '{"city": "Par', 'is"}'),
        ("gemma4", "<|tool_call>call:get_weather{", 'city:<|"|>Par', 'is<|"|>}<tool_call|>'),
        ("deepseek_v32", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">',
         '\n<｜DSML｜parameter name="city" string="true">Par',
         "is</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"),
    ],
)  # fmt: skip
def test_a_call_starts_with_its_name_and_its_arguments_stream(format: str, up_to_the_name: str, value: str, rest: str) -> None:
    box = inband(format, [WEATHER], starts_in_reasoning=False, buffering=Buffering(arguments="piece"))
    assert box.feed(TextDelta(up_to_the_name)) == [ToolCallStart("call_1", "get_weather")]
    given = box.feed(TextDelta(value))
    assert "".join(event.args for event in given if isinstance(event, ToolCallDelta)) == '{"city": "Par'
    given = box.feed(TextDelta(rest)) + box.feed(StreamEnd("end"))
    assert "".join(event.args for event in given if isinstance(event, ToolCallDelta)) == 'is"}'
    assert given[-2:] == [ToolCallEnd(), StreamEnd("tool_calls")]


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("lfm2", '<|tool_call_start|>[get_weather(city="Paris", days=2{}'),
        ("pythonic", '[get_weather(city="Paris", days=2{}'),
        ("llama3_json", '{{"name": "get_weather", "parameters": {{"city": "Paris", "days": 2{}'),
        ("llama3_json", '<|python_tag|>{{"name": "get_weather", "parameters": {{"city": "Paris", "days": 2{}'),
        ("llama3_json", '<|python_tag|>get_weather.call(city="Paris", days=2{}'),
        ("minicpm5", '<function name="get_weather"><param name="city">Paris</param><param name="days">2{}'),
    ],
)
def test_a_call_that_looks_like_prose_starts_when_it_is_whole(format: str, text: str) -> None:
    ends = {"lfm2": ")", "pythonic": ")", "minicpm5": "</param></function>"}
    end = ends.get(format, ")" if ".call(" in text else "}}")
    box = inband(format, [WEATHER], starts_in_reasoning=False)
    assert box.feed(TextDelta(text.format(""))) == []
    given = box.feed(TextDelta(end + " ")) + box.feed(StreamEnd("end"))
    assert given[0] == ToolCallStart("call_1", "get_weather")
    assert "".join(event.args for event in given if isinstance(event, ToolCallDelta)) == '{"city": "Paris", "days": 2}'
    for wrong in (" oops", "; oops"):
        found = read_all_ways(text.format(wrong) + end, format, starts_in_reasoning=False)
        if format != "minicpm5":
            assert (found["text"], found["calls"]) == (text.format(wrong) + end, [])


def test_arguments_wait_for_the_border_of_a_fragment() -> None:
    pieces = ['<tool_call>{"name": "get_weather", "arguments": {"ci', "ty", '": "Pa', 'ris"}}', "</tool_call>"]
    deltas = [event.args for event in parse_text(pieces, "hermes", [WEATHER]) if isinstance(event, ToolCallDelta)]
    assert deltas == ['{"city": "Paris"}'] or all(delta[-1] in '"{}[],:' for delta in deltas)
    whole = parse_text(pieces, "hermes", [WEATHER], buffering=Buffering(arguments="whole"))
    assert [event.args for event in whole if isinstance(event, ToolCallDelta)] == ['{"city": "Paris"}']


# --- correct


def test_several_calls_and_the_text_between_and_after_them() -> None:
    found = read_all_ways(f"One. {CALL} Two. {CALL} Three.", "hermes")
    assert found["text"] == "One.  Two.  Three."
    assert arguments(found) == [("get_weather", {"city": "Paris"})] * 2
    assert found["ids"] == ["call_1", "call_2"]
    assert found["end"] == "tool_calls"


def test_only_declared_tools_open_a_call() -> None:
    text = CALL.replace("get_weather", "rm_rf")
    found = read_all_ways(text, "hermes")
    assert found["calls"] == []
    assert found["text"] == text
    assert found["end"] == "end"
    assert read_all_ways(text, "hermes", None)["calls"] == [["rm_rf", '{"city": "Paris"}']]


def test_no_call_in_a_code_fence() -> None:
    text = f"Write it so:\n```xml\n{CALL}\n```\nThat is all. {CALL}"
    found = read_all_ways(text, "hermes")
    assert len(found["calls"]) == 1
    assert found["text"] == f"Write it so:\n```xml\n{CALL}\n```\nThat is all."


def test_no_call_in_the_thinking_unless_the_format_says_so() -> None:
    found = read_all_ways(f"<think>I could write {CALL} but no.</think>No.", "hermes")
    assert found["calls"] == []
    assert found["reasoning"] == f"I could write {CALL} but no."
    xml = "<think>I call.<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
    found = read_all_ways(xml, "qwen3_coder")
    assert arguments(found) == [("get_weather", {"city": "Paris"})]
    assert found["reasoning"] == "I call."


@pytest.mark.parametrize(
    ("text", "more", "reasoning", "answer"),
    [
        ("<think>a</think>b", {}, "a", "b"),
        ("a</think>b", {"starts_in_reasoning": True}, "a", "b"),
        ("<think>never closed", {}, "never closed", ""),
        ("<think>a</think>b<think>c</think>d", {}, "ac", "bd"),
        ("<think><think>a</think>b", {}, "a", "b"),
        ("<think>a <think> b</think>c", {}, "a <think> b", "c"),
        ("</think>b", {}, "", "b"),
        ("b</think>c", {}, "", "bc"),
        ("Say `x`:\n```\n<think>no</think>\n```\n", {}, "", "Say `x`:\n```\n<think>no</think>\n```\n"),
        ("a < b <thi", {}, "", "a < b <thi"),
        ("\n\n<think>\na\n</think>\n\nb", {}, "a", "b"),
    ],
)
def test_thinking(text: str, more: dict[str, Any], reasoning: str, answer: str) -> None:
    found = read_all_ways(text, "hermes", **more)
    assert (found["reasoning"], found["text"]) == (reasoning, answer)


def test_the_switch_of_the_template_decides_where_the_answer_begins() -> None:
    assert read("a</think>b", "glm4x", thinking=True)["reasoning"] == "a"
    assert read("a", "glm4x", thinking=False)["text"] == "a"
    assert read("a", "deepseek_v4", thinking=True)["reasoning"] == "a"
    assert read("a", "deepseek_v4")["text"] == "a"


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": "string"}, "02139", "02139"),
        ({"type": "string"}, "null", "null"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": "integer"}, "123456789012345678901234567890", 123456789012345678901234567890),
        ({"type": "integer"}, "not a number", "not a number"),
        ({"type": "number"}, "5.0", 5.0),
        ({"type": "boolean"}, "True", True),
        ({"type": "array"}, "['a', True, None]", ["a", True, None]),
        ({"type": "object"}, '{"a": {"b": [1]}}', {"a": {"b": [1]}}),
        ({"type": "object"}, "no object", "no object"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "7", 7),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, '["a"]', ["a"]),
        ({"$ref": "#/$defs/count"}, "7", 7),
        ({"type": "int64"}, "7", 7),
        ({}, "42", "42"),
    ],
)
def test_values_are_typed_by_the_schema(schema: dict[str, Any], written: str, value: Any) -> None:
    parameters = {"type": "object", "properties": {"p": schema}, "$defs": {"count": {"type": "integer"}}}
    text = f"<tool_call>\n<function=f>\n<parameter=p>\n{written}\n</parameter>\n</function>\n</tool_call>"
    found = read_all_ways(text, "qwen3_coder", [ToolSpec("f", parameters=parameters)])
    assert arguments(found) == [("f", {"p": value})]


def test_closing_tags_inside_values_and_missing_ones() -> None:
    text = (
        "<tool_call>\n<function=read>\n<parameter=filePath>\na</parameter>b</function>c\n</parameter>\n</function>\n</tool_call>"
    )
    assert arguments(read_all_ways(text, "qwen3_coder", [READ])) == [("read", {"filePath": "a</parameter>b</function>c"})]
    text = "<function=get_weather>\n<parameter=city>\nRome\n<parameter=days>\n3\n</function>\n</tool_call> Done."
    found = read_all_ways(text, "qwen3_coder")
    assert arguments(found) == [("get_weather", {"city": "Rome", "days": 3})]


def test_doubled_braces_fences_and_bare_json() -> None:
    for text in (
        '{{"name": "get_weather", "arguments": {{"city": "Paris"}}}}',
        '```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```',
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        '{"function": {"_name": "get_weather", "city": "Paris"}}',
        '{"tool_call": {"arguments": {"city": "Paris"}, "name": "get_weather"}}',
        '{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}',
    ):
        found = read_all_ways(text, "generic_json")
        assert arguments(found) == [("get_weather", {"city": "Paris"})], text
        assert found["text"] == ""
    for text in ('{"city": "Paris"}', "[1, 2, 3]", '```json\n{"a": 1}\n```\n', 'if (x) { y["name"] }'):
        assert read_all_ways(text, "generic_json")["text"] == text


# --- malformed and unfinished


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>not valid json</tool_call>",
        "Use <tool_call> to call.",
        '<tool_call>{"arguments": {"city": "Paris"}}</tool_call> and more',
        "half a <tool_ca",
        '<tool_call>{"name": "get_wea',
    ],
)
def test_markup_that_is_not_a_call_is_text_with_nothing_lost(text: str) -> None:
    found = read_all_ways(text, "hermes")
    assert found["text"] == text
    assert found["calls"] == []


def test_a_call_that_has_started_and_breaks_is_incomplete() -> None:
    found = read_all_ways('<tool_call>{"name": "get_weather", "arguments": {"city": oops', "hermes")
    assert found["calls"] == [["get_weather", '{"city": ']]
    assert found["complete"] == [False]
    assert found["text"] == "oops"
    assert found["end"] == "tool_call_parse_error"


def test_a_missing_end_is_forgiven_unless_the_model_was_stopped() -> None:
    text = CALL.removesuffix("\n</tool_call>").removesuffix("}")
    assert read_all_ways(text, "hermes")["complete"] == [True]
    events = run(inband("hermes", [WEATHER]), stream(text, end=StreamEnd("length")))
    assert put_together(events)["complete"] == [False]
    assert events[-1] == StreamEnd("length")


def test_a_bad_call_can_be_an_error() -> None:
    events = parse_text("Look: <tool_call>not json</tool_call>", "hermes", [WEATHER], bad_call="error")
    check(events)
    last = events[-1]
    assert isinstance(last, StreamError)
    assert last.code == "tool_call_parse_error"
    assert last.message.startswith("Tool call parsing failed: ")
    assert put_together(events)["text"].strip() == "Look:"
    with pytest.raises(ConfigError, match="bad_call"):
        inband("hermes", bad_call="ignore")  # type: ignore[arg-type]  # a wrong value


# --- tags named after tools


def test_tags_of_tools_chunk_by_chunk() -> None:
    pieces = ["I'll ", "read ", "the ", "file.\n\n", "<read>\n", "<filePath>/home/user/package.json</filePath>\n", "</read>"]
    found = read(pieces, "tool_tags", [READ])
    assert found["text"] == "I'll read the file."
    assert arguments(found) == [("read", {"filePath": "/home/user/package.json"})]
    assert found["end"] == "tool_calls"


@pytest.mark.parametrize(
    "text", ["<read><filePath>/test.js</read>", "Let me read it.\n\n<read>\n<filePath>/test", "<b>bold</b>", "<read> it"]
)
def test_malformed_and_partial_tags_are_text(text: str) -> None:
    found = read_all_ways(text, "tool_tags", [READ])
    assert found["text"] == text
    assert found["calls"] == []


# --- rows


def test_ids_come_from_the_notation_where_it_has_them() -> None:
    assert read(FORMATS["kimi_k2"].example, "kimi_k2")["ids"] == ["functions.get_weather:0"]
    assert read('[TOOL_CALLS]get_weather[CALL_ID]abc123def[ARGS]{"city": "x"}', "mistral")["ids"] == ["abc123def"]
    assert read(CALL, "hermes", call_prefix="toolu")["ids"] == ["toolu_1"]


def test_special_tokens_are_dropped_unless_the_text_mentions_them() -> None:
    assert read_all_ways("<bos>Hello!<eos> There.", "hermes")["text"] == "Hello! There."
    assert read_all_ways("The `<eos>` token.", "hermes")["text"] == "The `<eos>` token."
    assert read_all_ways("The <eos> token.", "none")["text"] == "The <eos> token."
