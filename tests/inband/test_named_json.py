"""Calls with the name in a header, followed by the arguments as JSON."""

from __future__ import annotations

import pytest

from inband.readings import READ, WEATHER, outcome, read_all_ways
from streamglot.events import StreamEnd, TextDelta, ToolCallEnd
from streamglot.inband import inband

PARIS = ("get_weather", '{"city": "Paris"}')
KIMI = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
KIMI_CALL = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("kimi_k2", KIMI_CALL.format("functions.get_weather:0", '{"city": "Paris"}')),
        ("kimi_k2", KIMI.format(KIMI_CALL.format("0", '{"city": "Paris"}'))),
        ("kimi_k2", "<|tool_call_section_begin|>" + KIMI_CALL.format("get_weather:7", '{"city": "Paris"}')),
        ("kimi_k2", KIMI.format("\n" + KIMI_CALL.format("get_weather", '"{\\"city\\": \\"Paris\\"}"') + "\n")),
        ("deepseek_v31", DEEPSEEK.format('get_weather<｜tool▁sep｜>{"city": "Paris"}')),
        ("deepseek_v31", DEEPSEEK.format('function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris"}\n```')),
        ("deepseek_v3", DEEPSEEK.format('function<｜tool▁sep｜>get_weather\n{"city": "Paris"}')),
        (
            "deepseek_r1_tools",
            '<｜tool▁calls｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜>',
        ),
        ("deepseek_r1_tools", '<｜tool_calls_begin｜>function<｜tool▁sep｜>get_weather\n{"city": "Paris"}<｜tool▁calls▁end｜>'),
        ("llama_function", '<tool_call><function="get_weather">{"city": "Paris"}</function></tool_call>'),
        ("mistral", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]'),
        ("mistral", '[TOOL_CALLS]{"name": "get_weather", "arguments": {"city": "Paris"}}'),
        ("mistral", '[TOOL_CALLS]json [{"name": "get_weather", "arguments": {"city": "Paris"}}]'),
        ("mistral", '[TOOL_CALLS]get_weather{"city": "Paris"}'),
        ("mistral", '[TOOL_CALLS]get_weather[CALL_ID]abc{"city": "Paris"}'),
        ("functionary_v32", 'get_weather\n{"city": "Paris"}'),
        ("functionary_v32", 'all\n>>>get_weather\n{"city": "Paris"}'),
    ],
)
def test_ways_to_write_a_call(format: str, text: str) -> None:
    assert outcome(text, format) == ("", [PARIS], [True])


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("kimi_k2", KIMI.format(KIMI_CALL.format("functions.get_weather:0", ""))),
        ("deepseek_v31", DEEPSEEK.format("get_weather<｜tool▁sep｜>")),
        ("llama_function", "<function=get_weather></function>"),
        ("llama_function", "<function=get_weather>{}"),
    ],
)
def test_calls_without_arguments(format: str, text: str) -> None:
    assert outcome(text, format) == ("", [("get_weather", "{}")], [True])


@pytest.mark.parametrize(
    ("format", "text", "left"),
    [
        ("kimi_k2", KIMI.format("nothing"), KIMI.format("nothing")),
        ("kimi_k2", KIMI_CALL.format(" ", "{}"), KIMI_CALL.format(" ", "{}")),
        ("kimi_k2", KIMI_CALL.format("5", "{}"), KIMI_CALL.format("5", "{}")),
        ("llama_function", "<tool_call>no</tool_call>", "<tool_call>no</tool_call>"),
        ("mistral", "[TOOL_CALLS][ARGS]{}", "[ARGS]{}"),
        ("mistral", "[TOOL_CALLS]get_wea", "get_wea"),
        ("functionary_v32", "Hello.\nYou.", "Hello.\nYou."),
        ("functionary_v32", "Hello.", "Hello."),
        ("functionary_v32", "get_weather\n", "get_weather\n"),
        ("functionary_v32", "", ""),
    ],
)
def test_text_that_is_not_a_call(format: str, text: str, left: str) -> None:
    found = read_all_ways(text, format, [WEATHER, READ], starts_in_reasoning=False)
    assert (found["text"], found["calls"]) == (left, [])


@pytest.mark.parametrize("text", ["[TOOL_CALLS]read", "[TOOL_CALLS]read\n", "[TOOL_CALLS]read[CALL_ID]abc"])
def test_a_name_alone_is_a_call_where_the_tool_needs_no_arguments(text: str) -> None:
    assert outcome(text, "mistral", [READ, WEATHER]) == ("", [("read", "{}")], [True])
    assert outcome(f"{text}[TOOL_CALLS]read[ARGS]{{}}", "mistral", [READ])[1:] == ([("read", "{}")] * 2, [True, True])
    assert outcome(f"{text}</s>", "mistral", [READ]) == ("", [("read", "{}")], [True])
    text = text.replace("read", "get_weather")
    assert outcome(text, "mistral", [READ, WEATHER]) == ("", [("get_weather", "")], [False])
    assert outcome(f"{text}</s>", "mistral", [READ, WEATHER]) == ("", [("get_weather", "")], [False])


@pytest.mark.parametrize("text", ["[TOOL_CALLS]read[ARGS]", "[TOOL_CALLS]read[CALL_ID]abc[ARGS]\n"])
def test_arguments_may_be_missing_after_their_mark_where_the_tool_needs_none(text: str) -> None:
    for end in ("", "</s>", "<|im_end|>"):
        assert outcome(text + end, "mistral", [READ]) == ("", [("read", "{}")], [True])
        assert outcome(text + text + end, "mistral", [READ]) == ("", [("read", "{}")] * 2, [True, True])
        written = text.replace("read", "get_weather") + end
        assert outcome(written, "mistral", [WEATHER]) == ("", [("get_weather", "")], [False])


def test_a_name_that_was_cut_off_before_its_arguments_is_incomplete() -> None:
    box = inband("mistral", [READ])
    events = [*box.feed(TextDelta("[TOOL_CALLS]read[ARGS]")), *box.feed(StreamEnd("length"))]
    assert ToolCallEnd(None, False) in events


def test_an_id_is_one_word() -> None:
    text = "[TOOL_CALLS]read[CALL_ID]two words[ARGS]{}"
    assert outcome(text, "mistral", [READ]) == (text.removeprefix("[TOOL_CALLS]"), [], [])


def test_an_empty_section() -> None:
    assert outcome(KIMI.format(""), "kimi_k2") == ("", [], [])


@pytest.mark.parametrize(
    ("format", "text", "left"),
    [
        ("kimi_k2", KIMI_CALL.format("get_weather:0", "oops"), "oops"),
        ("kimi_k2", "<|tool_call_begin|>get_weather:0<|tool_call_argument_begin|>", ""),
        ("llama_function", "<function=get_weather>oops</function>", "oops"),
        ("mistral", "[TOOL_CALLS]get_weather[ARGS]oops", "oops"),
    ],
)
def test_a_call_that_breaks_after_its_name(format: str, text: str, left: str) -> None:
    assert outcome(text, format) == (left, [("get_weather", "")], [False])


def test_code_for_an_interpreter() -> None:
    python = {"name": "python", "parameters": {"type": "object", "properties": {"source": {"type": "string"}}}}
    text = 'all\nLook.>>>python\nprint("a")\n>>>all\nDone.'
    assert outcome(text, "functionary_v32", [python]) == (
        "Look.Done.",
        [("python", '{"source": "print(\\"a\\")\\n"}')],
        [True],
    )
    bare = {"name": "python"}
    assert outcome("python\n1 + 1", "functionary_v32", [bare]) == ("", [("python", '{"code": "1 + 1"}')], [True])


def test_the_one_tool_is_meant_by_a_bare_number_only_where_there_is_one() -> None:
    text = KIMI_CALL.format("0", "{}")
    assert outcome(text, "kimi_k2", [WEATHER, READ]) == (text, [], [])
    assert outcome(text, "kimi_k2", None)[1] == [("0", "{}")]
