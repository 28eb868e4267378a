"""Calls as tags with one tag per parameter: omitted tags, tags inside values, and markup that belongs to no call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inband.readings import READ, WEATHER, arguments, outcome, read, read_all_ways
from streamglot.events import StreamEnd, TextDelta, ToolCallDelta, ToolCallEnd
from streamglot.inband import FORMATS, inband
from streamglot.inband.engines import WrittenCall
from streamglot.inband.engines.xml_calls import WAIT_CHARS

PARIS = ("get_weather", '{"city": "Paris"}')
CODER = "<tool_call>\n{}\n</tool_call>"
FUNCTION = "<function=get_weather>{}</function>"
CITY = "<parameter=city>\nParis\n</parameter>"
DSML = "<｜DSML｜function_calls>{}</｜DSML｜function_calls>"
INVOKE = '<｜DSML｜invoke name="get_weather">{}</｜DSML｜invoke>'


def parameter(name: str, text: str, more: str = "") -> str:
    return f'<｜DSML｜parameter name="{name}"{more}>{text}</｜DSML｜parameter>'


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("qwen3_coder", CODER.format(FUNCTION.format(CITY))),
        ("qwen3_coder", FUNCTION.format(CITY)),
        ("qwen3_coder", f"<tool_call>\n<function=get_weather>\n{CITY}\n</tool_call>"),
        ("qwen3_coder", "<tool_call><function='get_weather'><parameter='city'>Paris</parameter></function></tool_call>"),
        ("qwen3_coder", CODER.format('{"name": "get_weather", "arguments": {"city": "Paris"}}')),
        ("qwen3_coder", CODER.format('[{"name": "get_weather", "arguments": {"city": "Paris"}}]')),
        ("qwen3_coder", "<function=get_weather<parameter=city>Paris</parameter></function>"),
        ("qwen3_coder", f"<tool_call><tool_call>{FUNCTION.format(CITY)}</tool_call>"),
        ("qwen3_coder", "<function=get_weather><parameter=arguments>{\"city\": \"Paris\"}</parameter></function>"),
        ("qwen3_coder", "<tool_call><eos><function=get_weather><bos>\n<parameter=city>Paris</parameter><eos></function><|im_end|></tool_call>"),
        ("qwen3_coder", "<function=get_weather><parameter=city>Paris  \n </function></tool_call>"),
        ("minimax_m2", "<minimax:tool_call><invoke name=get_weather><parameter name='city'>Paris</parameter></invoke>"),
        ("glm4x", "<tool_call>get_weather\\n<arg_key>city</arg_key>\\n<arg_value>Paris</arg_value>\\n</tool_call>"),
        ("glm4x", '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'),
        ("glm4x", "<tool_call>get_weather<arg_key>x</arg_key><arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"),
        ("glm4x", '<tool_call>get_weather city="Paris"</tool_call>'),
        ("glm4x", "<tool_call>get_weather city=Paris</tool_call>"),
        ("glm4x", '<tool_call>get_weather {"city": "Paris"}</tool_call>'),
        ("glm4x", '<tool_call>get_weather\n{"city": "Paris"}\n</tool_call>'),
        ("glm4x", '<tool_call>{"function": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'),
        ("glm4x", '<tool_call>{"tool": {"name": "get_weather", "arguments": {"city": "Paris"}}}</tool_call>'),
        ("hy_v3", "<tool_calls:opensource><tool_call:opensource>get_weather<tool_sep:opensource><arg_key:opensource>city"
                  "</arg_key:opensource><arg_value:opensource>Paris</arg_value:opensource></tool_call:opensource>"
                  "</tool_calls:opensource>"),
        ("step3p5", '<tool_call><function name="get_weather"><parameter name="city">Paris</parameter></function></tool_call>'),
        ("minicpm5", '<function name="get_weather"><param name="city"><![CDATA[Paris]]></param></function>'),
        ("minicpm5", '<function name="get_weather"><param name="city"><![CDATA[Pa]]><![CDATA[ris]]></param></function>'),
        ("minicpm5", '<function name="get_weather"><param name="x">1</param><param name="city">Paris</param></function>'),
        ("minicpm5", '<function name="get_weather"><param name="arguments">{"city": "Paris"}</param></function>'),
        ("minicpm5", '<function name="get_weather"><param name="properties">{"city": "Paris", "town": 1}</param></function>'),
        ("deepseek_v32", INVOKE.format(parameter("city", "Paris"))),
        ("deepseek_v32", INVOKE.format(parameter("city", "Paris")) + "\n</｜DSML｜function_calls>"),
        ("deepseek_v32", f"<｜DSML｜function_calls><bos>{INVOKE.format(parameter('city', 'Paris'))}<｜end▁of▁sentence｜></｜DSML｜function_calls>"),
        ("deepseek_v32", DSML.format(INVOKE.format(parameter("city", "Paris")))),
        ("deepseek_v32", DSML.format(INVOKE.format(parameter("arguments", '{"city": "Paris"}')))),
        ("deepseek_v32", DSML.format(INVOKE.format(parameter("input", '{"city": "Paris"}') + parameter("days", "2")))),
        ("step3", '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="get_weather">'
                  '<steptml:parameter name="city">Paris</steptml:parameter></steptml:invoke><｜tool_call_end｜>'),
    ],
)  # fmt: skip
def test_ways_to_write_a_call(format: str, text: str) -> None:
    assert outcome(text, format) == ("", [PARIS], [True])


@pytest.mark.parametrize(
    ("more", "text", "value"),
    [
        (' string="true"', "5", "5"),
        (' string="false"', "5", 5),
        (' string="false"', "[1, null]", [1, None]),
        ("", "5", "5"),
    ],
)
def test_an_attribute_says_the_type(more: str, text: str, value: Any) -> None:
    found = read_all_ways(DSML.format(INVOKE.format(parameter("x", text, more))), "deepseek_v32", None)
    assert arguments(found) == [("get_weather", {"x": value})]


def test_one_parameter_that_looks_like_all_arguments_and_is_not() -> None:
    found = read_all_ways(DSML.format(INVOKE.format(parameter("arguments", "Paris"))), "deepseek_v32")
    assert arguments(found) == [("get_weather", {"arguments": "Paris"})]
    text = DSML.format(INVOKE.format(parameter("city", "Rome") + parameter("arguments", "{}")))
    assert arguments(read_all_ways(text, "deepseek_v32")) == [("get_weather", {"city": "Rome", "arguments": "{}"})]


@pytest.mark.parametrize(
    "value",
    [
        "a</parameter>b",
        "a</function>b",
        "a<parameter=b>c",
        "a</tool_call> b",
        "```\n<tool_call>\n```",
        "<think>",
        "a\n\nb",
        "x < y",
    ],
)
def test_markup_inside_a_value(value: str) -> None:
    text = CODER.format(f"<function=read>\n<parameter=filePath>\n{value}\n</parameter>\n</function>")
    assert arguments(read_all_ways(text, "qwen3_coder", [READ])) == [("read", {"filePath": value})]


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("qwen3_coder", "<tool_call>\n</tool_call>"),
        ("glm4x", "<tool_call></tool_call>"),
        ("dots", "<dots_function_call></dots_function_call>"),
    ],
)
def test_an_empty_section_is_nothing(format: str, text: str) -> None:
    assert outcome(text, format) == ("", [], [])


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("qwen3_coder", "<tool_call>words</tool_call>"),
        ("qwen3_coder", "<function=>x</function>"),
        ("qwen3_coder", '<function="get_weather>x</function>'),
        ("qwen3_coder", "<function=get_weather"),
        ("glm4x", "<tool_call>get weather</tool_call>"),
        ("glm4x", "<tool_call>get_weather<arg_key>ci<b>ty</arg_key><arg_value>Paris</arg_value></tool_call>"),
        ("minicpm5", '<function name="other"></function>'),
        ("minicpm5", '<function name="get_weather"><param name="city"><![CDATA[Par'),
        ("minicpm5", '<function name="get_weather"><param name="town">a</param></function>'),
        ("minicpm5", '<function name="get_weather"><param name="city">a</param><param name="city">b</param></function>'),
        ("minicpm5", '<function name="get_weather"><param name="arguments">{"town": "a"}</param></function>'),
        ("minicpm5", '<function name="get_weather"><param name="properties">Paris</param></function>'),
    ],
)
def test_text_that_is_not_a_call(format: str, text: str) -> None:
    assert outcome(text, format) == (text, [], [])


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("qwen3_coder", "<function=get_weather><parameter=city>Rome<parameter=days>3</parameter></function>"),
        ("qwen3_coder", "<function=get_weather>\n<parameter=city>\nRome\n  <parameter=days>\n3\n</function></tool_call>"),
        ("minimax_m2", "<invoke name='get_weather'><parameter name='city'>Rome<parameter name='days'>3</parameter></invoke>"),
        ("glm4x", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome<arg_key>days</arg_key><arg_value>3</arg_value>"
                  "</tool_call>"),
    ],
)  # fmt: skip
def test_a_value_without_its_end_ends_where_the_next_parameter_begins(format: str, text: str) -> None:
    found = read_all_ways(text, format, starts_in_reasoning=False)
    assert (arguments(found), found["complete"]) == ([("get_weather", {"city": "Rome", "days": 3})], [True])


def test_a_tag_in_a_value_that_names_no_parameter_of_the_tool_is_text() -> None:
    for tag in ("<parameter=town>", "<parameter=city>"):
        found = read_all_ways(FUNCTION.format(f"<parameter=city>a {tag} b</parameter>"), "qwen3_coder", starts_in_reasoning=False)
        assert arguments(found) == [("get_weather", {"city": f"a {tag} b"})]


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        ("str", '"London"', "London"),
        ("str", ' "Lon\\"don" ', 'Lon"don'),
        ("str", "London", "London"),
        ("str", "12", "12"),
        ("str", '"London', '"London'),
        ("string", '"London"', '"London"'),
        (["str", "null"], '"London"', '"London"'),
    ],
)
def test_strings_in_json_quotes_where_the_schema_is_loose(kind: Any, written: str, value: str) -> None:
    tool = {"name": "f", "parameters": {"properties": {"p": {"type": kind}}}}
    text = f"<tool_call>f<arg_key>p</arg_key><arg_value>{written}</arg_value></tool_call>"
    assert arguments(read_all_ways(text, "glm4x", [tool], starts_in_reasoning=False)) == [("f", {"p": value})]


def test_markup_of_another_version_is_text() -> None:
    text = f"<｜DSML｜tool_calls>\n{INVOKE.format(parameter('city', 'Paris'))}\n</｜DSML｜tool_calls>"
    assert outcome(f"{text} So.", "deepseek_v32") == (f"{text} So.", [], [])
    assert outcome(text[:40], "deepseek_v32") == (text[:40], [], [])
    assert outcome(text, "deepseek_v4") == ("", [PARIS], [True])


@pytest.mark.parametrize(
    "inside",
    [
        '<parameter=city"x>Paris</parameter>',
        "<parameter=city words>Paris<b></parameter>",
        "<parameter=city<b>Paris</parameter>",
    ],
)
def test_a_tag_with_something_else_in_it_breaks_the_call(inside: str) -> None:
    left, calls, whole = outcome("<tool_call>" + FUNCTION.format(inside), "qwen3_coder")
    if whole == [False]:
        assert (left, calls) == (inside, [("get_weather", "")])
    else:
        assert calls == [("get_weather", '{"city": "Paris<b>"}')]


@pytest.mark.parametrize(
    ("format", "tag"),
    [
        ("qwen3_coder", "<function=get_weather>"),
        ("step3p5", '<function name="get_weather">'),
        ("seed_oss", "<function=get_weather>"),
        ("minimax_m2", '<invoke name="get_weather">'),
        ("deepseek_v32", '<｜DSML｜invoke name="get_weather">'),
    ],
)
def test_a_sentence_may_mention_the_tag_of_a_call(format: str, tag: str) -> None:
    end = FORMATS[format].engines[0].closers[-1]
    for text in (f"The tag {tag} is known.", f"The tag {tag} ends with {end}, you know.", f"{tag}\nWell.", f"So {tag}"):
        assert outcome(text, format) == (text, [], [])
        found = read_all_ways(text + FORMATS[format].think.closers[0] + "Hi", format, starts_in_reasoning=True)
        assert (found["reasoning"], found["text"], found["calls"]) == (text, "Hi", [])
    call = FORMATS[format].example.partition("\n")[2].rpartition("\n")[0]
    assert outcome(f"{call}\n{tag} is known.", format) == (f"\n{tag} is known.", [PARIS], [True])


@pytest.mark.parametrize(
    ("format", "text", "written", "left"),
    [
        ("qwen3_coder", "<tool_call><function=get_weather>", "", ""),
        ("qwen3_coder", "<tool_call><function=get_weather>words</function>", "", "words"),
        ("qwen3_coder", "<function=get_weather><parameter=city>Par", '{"city": "Par', ""),
        ("glm4x", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Par", '{"city": "Par', ""),
    ],
)
def test_a_call_that_breaks(format: str, text: str, written: str, left: str) -> None:
    assert outcome(text, format) == (left, [("get_weather", written)], [False])


def test_several_calls() -> None:
    call = FUNCTION.format(CITY)
    for text in (
        CODER.format(f"{call}\n{call}"),
        f"{CODER.format(call)}\n{CODER.format(call)}",
        f"<tool_call>{call}<tool_call>{call}",
    ):
        assert outcome(text, "qwen3_coder") == ("", [PARIS, PARIS], [True, True])
    text = f"<tool_call>\n<function=get_weather>\n{CITY}\n{call}\n</tool_call>"
    assert outcome(text, "qwen3_coder") == ("", [PARIS, PARIS], [True, True])


def test_a_stopped_call_is_incomplete_even_where_its_parameters_are_whole() -> None:
    box = inband("qwen3_coder", [WEATHER], starts_in_reasoning=False)
    events = box.feed(TextDelta(f"<function=get_weather>\n{CITY}")) + box.feed(StreamEnd("length"))
    assert [event.complete for event in events if isinstance(event, ToolCallEnd)] == [False]


def test_words_for_parameters() -> None:
    found = read_all_ways(
        "<tool_call>get_weather city='Den Haag' days=2\tx=true\n</tool_call>", "glm4x", starts_in_reasoning=False
    )
    assert arguments(found) == [("get_weather", {"city": "Den Haag", "days": 2, "x": True})]


@pytest.mark.parametrize(
    "inside",
    [
        "get_weather 5=2",
        "get_weather =2",
        "get_weather a=1 a=2",
        "get_weather a=1 b",
        "get_weather a=1",
        'get_weather {"a": 1} b',
        'get_weather a="1',
    ],
)
def test_words_that_are_not_calls(inside: str) -> None:
    end = "" if inside.endswith(("=1", '"1')) else "</tool_call>"
    assert outcome(f"<tool_call>{inside}{end}", "glm4x") == (f"<tool_call>{inside}{end}", [], [])


def test_a_section_of_characters_is_one_only_where_the_notation_has_them() -> None:
    text = FUNCTION.format("<parameter=city><![CDATA[Paris]]></parameter>")
    assert outcome(text, "qwen3_coder") == ("", [("get_weather", '{"city": "<![CDATA[Paris]]>"}')], [True])
    for value in ("<b>", "</param></function>", "a]]>b<c", "<![CDATA[x]]>"):
        found = read_all_ways(FORMATS["minicpm5"].write([WrittenCall("f", json.dumps({"a": value}))]), "minicpm5", None)
        assert arguments(found) == [("f", {"a": value})]


GLM = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>{}"


@pytest.mark.parametrize(
    ("format", "head", "end"),
    [
        ("glm4x", GLM.format(""), "</tool_call>"),
        ("qwen3_coder", "<function=get_weather><parameter=city>", "</function>"),
        ("minimax_m2", '<invoke name="get_weather"><parameter name="city">', "</invoke>"),
    ],
)
def test_a_value_without_its_closing_tag_is_incomplete_if_the_text_ends_after_the_end_of_a_call(
    format: str, head: str, end: str
) -> None:
    for tail in ("", " So.", " So. Well,\nand more.", f" The {end} tag.", "x" * (WAIT_CHARS + 1)):
        _, ((_, given),), whole = outcome(f"{head}Paris{end}{tail}", format)
        assert (json.loads(given + '"}'), whole) == ({"city": f"Paris{end}{tail}"}, [False])


def test_a_value_may_contain_the_end_of_a_call_before_text() -> None:
    for value in ("a</tool_call> b", "</tool_call>", "a</tool_call> b</tool_call>c", f"</tool_call>{'x' * 5000}</tool_call> y"):
        found = read_all_ways(GLM.format(f"{value}</arg_value></tool_call> So."), "glm4x", starts_in_reasoning=False)
        assert (arguments(found), found["complete"], found["text"]) == ([("get_weather", {"city": value})], [True], " So.")
    text = GLM.format("a</tool_call> b\n<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>")
    assert arguments(read_all_ways(text, "glm4x", starts_in_reasoning=False)) == [
        ("get_weather", {"city": "a</tool_call> b", "days": 2})
    ]


def test_a_value_that_was_cut_off_after_the_end_of_a_call_is_incomplete() -> None:
    box = inband("glm4x", [WEATHER], starts_in_reasoning=False)
    events = [*box.feed(TextDelta(GLM.format("a</tool_call> b"))), *box.feed(StreamEnd("length"))]
    assert ToolCallEnd(None, False) in events
    assert "".join(event.args for event in events if isinstance(event, ToolCallDelta)) == '{"city": "a</tool_call> b'


# --- a key without its value


def at_every_cut(text: str, format: str, tools: Any = (WEATHER,)) -> dict[str, Any]:
    """The reading, which must be the same wherever the text is cut in two."""
    whole = read_all_ways(text, format, tools, starts_in_reasoning=False)
    for place in range(1, len(text)):
        assert read([text[:place], text[place:]], format, tools, starts_in_reasoning=False) == whole, place
    return whole


@pytest.mark.parametrize(("format", "prefix", "call"), [("glm4x", "", "tool_call"), ("longcat", "longcat_", "longcat_tool_call")])
@pytest.mark.parametrize("tail", ["Paris</{call}> after", "words"])
def test_a_call_whose_only_key_has_no_value_is_text(format: str, prefix: str, call: str, tail: str) -> None:
    text = f"<{call}>get_weather<{prefix}arg_key>city</{prefix}arg_key>" + tail.format(call=call)
    found = at_every_cut(text, format)
    assert (found["text"], found["calls"]) == (text, [])


def test_the_last_key_of_a_call_may_lack_its_value() -> None:
    found = at_every_cut(GLM.format("Paris</arg_value>\n<arg_key>days</arg_key>\n</tool_call>"), "glm4x")
    assert (found["text"], found["calls"], found["complete"]) == ("", [["get_weather", PARIS[1]]], [True])
    found = at_every_cut("<tool_call>get_weather\n<arg_key>city</arg_key>\n</tool_call>", "glm4x")
    assert (found["text"], found["calls"], found["complete"]) == ("", [["get_weather", "{}"]], [True])


def test_a_value_may_mention_the_tag_of_a_parameter_before_an_undeclared_parameter() -> None:
    value = "Write <parameter=NAME> before each value."
    found = at_every_cut(
        f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{value}\n</parameter>\n"
        "<parameter=why>\nit asks\n</parameter>\n</function>\n</tool_call>",
        "qwen3_coder",
    )
    assert (arguments(found), found["complete"]) == ([("get_weather", {"city": value, "why": "it asks"})], [True])


@pytest.mark.parametrize("tail", ["words", "", " "])
def test_a_key_without_its_value_after_other_parameters_breaks_the_call_and_is_text(tail: str) -> None:
    found = at_every_cut(GLM.format(f"Paris</arg_value><arg_key>days</arg_key>{tail}"), "glm4x")
    assert found["text"] == f"<arg_key>days</arg_key>{tail}".rstrip()
    assert (found["calls"], found["complete"]) == ([["get_weather", '{"city": "Paris"']], [False])


# --- text after a closing tag

OPEN_CALLS = [
    ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n", "</parameter>", "\n</function>\n</tool_call>"),
    ("seed_oss", "<seed:tool_call><function=get_weather><parameter=city>Paris", "</parameter>", "</function></seed:tool_call>"),
    ("minimax_m2", '<minimax:tool_call><invoke name="get_weather"><parameter name="city">Paris', "</parameter>",
     "</invoke></minimax:tool_call>"),
    ("deepseek_v32", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city">Paris',
     "</｜DSML｜parameter>", "\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"),
    ("glm4x", GLM.format("Paris"), "</arg_value>", "</tool_call>"),
    ("ling3", GLM.format("Paris"), "</arg_value>", "</tool_call>"),
    ("poolside_v1", GLM.format("Paris"), "</arg_value>", "</tool_call>"),
    ("minicpm5", '<function name="get_weather"><param name="city">Paris', "</param>", "</function>"),
]  # fmt: skip
"""A call up to the end of its value, the closing tag of the value, and the end of the call."""


@pytest.mark.parametrize(("format", "head", "close"), [row[:3] for row in OPEN_CALLS])
def test_a_closing_tag_without_the_end_of_the_call_is_no_end(format: str, head: str, close: str) -> None:
    for tail in ("", "\n\nI wait for the result.", "<|other|>", ".", "\n<b>bold</b>", f"\nThe {close} tag."):
        found = at_every_cut(f"{head}{close}{tail}", format)
        assert (True in found["complete"], found["end"]) == (False, "tool_call_parse_error")


@pytest.mark.parametrize(("format", "head", "close", "end"), [row for row in OPEN_CALLS if row[3].count(">") > 1])
def test_text_between_the_last_closing_tag_and_the_end_of_the_call_stands_after_the_call(
    format: str, head: str, close: str, end: str
) -> None:
    found = at_every_cut(f"{head}{close} So.{end}", format)
    assert (found["text"], found["calls"], found["complete"]) == (" So.", [["get_weather", PARIS[1]]], [True])


@pytest.mark.parametrize(("format", "head", "close", "end"), OPEN_CALLS)
def test_a_closing_tag_before_text_is_a_part_of_the_value_if_another_one_follows(
    format: str, head: str, close: str, end: str
) -> None:
    for inside in (f"{close} So.", f"{close}{close}.", f"{close}{'x' * 5000}{close} y", f"{close} So {end[:-1]} y"):
        text = f"{head}{inside}{close}{end} Well."
        found = at_every_cut(text, format) if len(inside) < 99 else read_all_ways(text, format, starts_in_reasoning=False)
        ((_, given),) = arguments(found)
        assert given["city"].replace("\n", "") == f"Paris{inside}".replace("\n", "")
        assert (found["text"], found["complete"]) == (" Well.", [True])


@pytest.mark.parametrize(("format", "head", "close"), [row[:3] for row in OPEN_CALLS])
def test_text_that_is_too_long_to_wait_is_a_part_of_the_value(format: str, head: str, close: str) -> None:
    long = "x" * (WAIT_CHARS + 1)
    found = read_all_ways(f"{head}{close}{long}", format, starts_in_reasoning=False)
    assert (found["text"], found["complete"]) == ("", [False])
    assert found["calls"][0][1].endswith(f"{close}{long}")


@pytest.mark.parametrize(("format", "head", "close", "end"), OPEN_CALLS)
def test_a_text_that_ends_inside_the_end_of_a_call_is_an_incomplete_call(format: str, head: str, close: str, end: str) -> None:
    half = end[: end.index(">")]
    found = at_every_cut(f"{head}{close}{half}", format)
    assert (True in found["complete"], found["end"]) == (False, "tool_call_parse_error")


def test_a_value_that_was_cut_off_after_a_closing_tag_and_text_is_incomplete() -> None:
    box = inband("glm4x", [WEATHER], starts_in_reasoning=False)
    events = [*box.feed(TextDelta(GLM.format("a</arg_value> b"))), *box.feed(StreamEnd("length"))]
    assert ToolCallEnd(None, False) in events
    assert "".join(event.args for event in events if isinstance(event, ToolCallDelta)) == '{"city": "a</arg_value> b'


# --- tags of parameters inside a value

WRITE = {"name": "write", "parameters": {"properties": {"path": {"type": "string"}, "content": {"type": "string"}}}}
WRITE_FORMS = {
    "qwen3_coder": ("<tool_call>\n<function=write>\n", "<parameter={}>\n{}\n</parameter>\n", "</function>\n</tool_call>"),
    "minimax_m2": ('<invoke name="write">\n', '<parameter name="{}">{}</parameter>\n', "</invoke>"),
    "deepseek_v32": ('<｜DSML｜invoke name="write">\n', '<｜DSML｜parameter name="{}" string="true">{}</｜DSML｜parameter>\n', "</｜DSML｜invoke>"),
    "glm4x": ("<tool_call>write\n", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", "</tool_call>"),
}  # fmt: skip


@pytest.mark.parametrize("format", sorted(WRITE_FORMS))
def test_the_tag_of_a_given_or_unknown_parameter_inside_a_value_is_a_part_of_it(format: str) -> None:
    head, form, end = WRITE_FORMS[format]
    for key in ("path", "content", "x", "x y", ""):
        inner = form.format(key, "v")
        for content in (
            f"first\n{inner}last",
            f"first\n{inner.rstrip()}",
            f"\n{inner}{inner}last",
            f"first\n{inner[: inner.index('v')]}last",
        ):
            text = head + form.format("path", "/a") + form.format("content", content) + end
            found = at_every_cut(text, format, [WRITE])
            assert arguments(found) == [("write", {"path": "/a", "content": content})]
            assert (found["text"], found["complete"]) == ("", [True])


@pytest.mark.parametrize("others", [True, {"type": "string"}])
def test_a_tool_that_may_have_other_parameters_takes_them_after_a_value_without_its_closing_tag(others: Any) -> None:
    tool = {"name": "write", "parameters": {**WRITE["parameters"], "additionalProperties": others}}  # type: ignore[dict-item]
    head, form, end = WRITE_FORMS["qwen3_coder"]
    for tools in ([tool], None, [{"name": "write"}]):
        text = head + "<parameter=path>\n/a\n" + form.format("mode", "w") + end
        assert arguments(at_every_cut(text, "qwen3_coder", tools)) == [("write", {"path": "/a", "mode": "w"})]
        text = head + form.format("path", "/a") + "<parameter=content>\nb\n" + form.format("path", "v") + "c\n</parameter>" + end
        content = "b\n<parameter=path>\nv\n</parameter>\nc"
        assert arguments(at_every_cut(text, "qwen3_coder", tools)) == [("write", {"path": "/a", "content": content})]


@pytest.mark.parametrize("others", [False, None])
def test_a_tool_without_other_parameters_takes_none_after_a_value_without_its_closing_tag(others: Any) -> None:
    tool = {"name": "write", "parameters": {**WRITE["parameters"], "additionalProperties": others}}  # type: ignore[dict-item]
    text = "<function=write>\n<parameter=path>\n/a\n<parameter=mode>\nw\n</parameter>\n</function>"
    assert arguments(at_every_cut(text, "qwen3_coder", [tool])) == [("write", {"path": "/a\n<parameter=mode>\nw"})]


def test_the_tag_of_the_next_parameter_may_be_written_in_any_way() -> None:
    for tag in ("<parameter=days>", '<parameter="days">', "<parameter= days >", "<parameter='days' type=integer>"):
        found = at_every_cut(f"<function=get_weather><parameter=city>\nRome\n{tag}\n3\n</parameter></function>", "qwen3_coder")
        assert arguments(found) == [("get_weather", {"city": "Rome", "days": 3})]
    found = at_every_cut(GLM.format("Rome\n<arg_key>\ndays\n</arg_key><arg_value>3</arg_value></tool_call>"), "glm4x")
    assert arguments(found) == [("get_weather", {"city": "Rome", "days": 3})]


def test_a_tag_without_an_end_inside_a_value_is_a_part_of_it() -> None:
    for inside in ("\n<parameter=days", f"\n<parameter={'days' * 200}>", "\n<parameter=days<b>", "\n<parameter=days words'>"):
        found = read_all_ways(FUNCTION.format(f"<parameter=city>a{inside}</parameter>"), "qwen3_coder", starts_in_reasoning=False)
        assert arguments(found) == [("get_weather", {"city": f"a{inside}"})]
    assert outcome("<function=get_weather><parameter=city>\na\n<parameter=da", "qwen3_coder") == (
        "",
        [("get_weather", '{"city": "a\\n<parameter=da')],
        [False],
    )


@pytest.mark.parametrize("format", sorted(WRITE_FORMS))
def test_a_parameter_that_is_given_twice_breaks_the_call_and_is_text(format: str) -> None:
    head, form, end = WRITE_FORMS[format]
    for tools in ([WRITE], None):
        found = at_every_cut(head + form.format("path", "/a") + form.format("path", "/b") + end, format, tools)
        assert (found["calls"], found["complete"]) == ([["write", '{"path": "/a"']], [False])
        assert found["text"].strip() == form.format("path", "/b").strip()
        assert found["end"] == "tool_call_parse_error"
