"""Calls as JSON objects: the forms in which models write them, and what is not a call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inband.readings import arguments, outcome, read, read_all_ways

PARIS = ("get_weather", '{"city": "Paris"}')


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("hermes", '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>'),
        ("hermes", '<tool_call>{"type": "function", "name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "get_weather", "why": [1], "arguments": {"city": "Paris"},}</tool_call>'),
        ("hermes", '<tool_call>```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```</tool_call>'),
        ("hermes", '<tool_call>{"name": "functions.get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>'),
        ("hermes", '<tool_call>{"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}</tool_call>'),
        ("generic_json", '{"name": "get_weather", "arguments": {"city": "Paris"}}'),
        ("generic_json", '{"id": "a", "id": "b", "function": {"arguments": {"city": "Paris"}, "name": "get_weather"}}'),
        ("generic_json", '[{"tool": "get_weather", "input": {"city": "Paris"}}]'),
        ("generic_json", '{"tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]}'),
        ("generic_json", '{ "tool_calls" : [{"name": "get_weather", "arguments": {"city": "Paris"}}]'),
        ("generic_json", '{"function": "get_weather", "arguments": {"city": "Paris"}}'),
        ("internlm2", '<|action_start|> <|plugin|>{"name": "get_weather", "params": {"city": "Paris"}}<|action_end|>'),
        ("apertus", '<|tools_prefix|>[{"get_weather": {"city": "Paris"}}]<|tools_suffix|>'),
    ],
)
def test_ways_to_write_a_call(format: str, text: str) -> None:
    assert outcome(text, format) == ("", [PARIS], [True])


@pytest.mark.parametrize(
    ("format", "text", "written"),
    [
        ("hermes", '<tool_call>{"name": "get_weather"}</tool_call>', "{}"),
        ("hermes", '<tool_call>{"name": "get_weather", "arguments": null}</tool_call>', "{}"),
        ("generic_json", '{"name": "get_weather", "arguments": null}', "{}"),
        ("generic_json", '{"function": {"_name": "get_weather"}}', "{}"),
        ("hermes", '<tool_call>{"name": "get_weather", "arguments": "5"}</tool_call>', "5"),
        ("hermes", '<tool_call>{"arguments": "", "name": "get_weather", "arguments": {"a": 1}}</tool_call>', None),
    ],
)
def test_calls_without_arguments(format: str, text: str, written: str | None) -> None:
    if written is None:
        assert outcome(text, format)[1:] == ([], [])
    else:
        assert outcome(text, format) == ("", [("get_weather", written)], [True])


@pytest.mark.parametrize(
    ("written", "left", "complete"),
    [
        ('{"get_weather": {"city": "Paris"}, "get_weather": {"city": "Rome"}}', "", [True, True]),
        ('{"get_weather": {"city": "Paris"}, "get_weather": {"city": "Rome"},}', "", [True, True]),
        ('{"get_weather": {"city": "Paris"}, "nosuch": {"city": "Rome"}}', '"nosuch": {"city": "Rome"}}]', [True]),
        ('{"get_weather": {"city": "Paris"}, "id": "call_1"}, {"get_weather": {"city": "Rome"}}', "", [True, True]),
    ],
)
def test_each_key_is_a_call_where_the_name_is_the_key(written: str, left: str, complete: list[bool]) -> None:
    calls = [PARIS, ("get_weather", '{"city": "Rome"}')][: len(complete)]
    assert outcome(f"<|tools_prefix|>[{written}]<|tools_suffix|>", "apertus") == (left, calls, complete)


def test_lists_of_calls() -> None:
    assert outcome("<tool_calls>[]</tool_calls>", "jamba") == ("", [], [])
    assert outcome("[]", "json_array") == ("[]", [], [])
    call = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
    assert outcome(f"{call}; {call}", "generic_json") == ("", [PARIS, PARIS], [True, True])
    assert outcome(f"<tool_calls>[{call}, {call}", "jamba") == ("", [PARIS, PARIS], [True, True])
    left, calls, whole = outcome(f"<tool_calls>[{call} oops]</tool_calls>", "jamba")
    assert (left.strip(), calls, whole) == ("oops]", [PARIS], [True])


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("hermes", "<tool_call>{}</tool_call>"),
        ("hermes", "<tool_call>"),
        ("hermes", '<tool_call>{"name" "get_weather"}</tool_call>'),
        ("hermes", '<tool_call>{"nom": "get_weather"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "' + "x" * 5000 + '"}</tool_call>'),
        ("hermes", '<tool_call>["get_weather"]</tool_call>'),
        ("generic_json", '{"name": "get_weather"}'),
        ("generic_json", '{{"name": "get_weather"}'),
        ("generic_json", '{"name": 5}'),
        ("generic_json", '{"name": "get_weather", "arguments": oops}'),
        ("hermes", '<tool_call>{"name": "\\u12'),
    ],
)
def test_text_that_is_not_a_call_stays_unchanged(format: str, text: str) -> None:
    assert outcome(text, format) == (text, [], [])


@pytest.mark.parametrize(
    ("text", "written", "left"),
    [
        ('{"city": "Paris"} oops', '{"city": "Paris"}', " oops"),
        ('{"city": {"a" 1}}', '{"city": {"a" ', "1}}"),
        ('{"a": ' * 600, None, None),
        ('{{"a": 1} "b": 2}', None, None),
        ('"{\\"city\\": oops, \\"days\\": 1}"}', '{"city": ', 'oops, \\"days\\": 1}"}'),
        ('"{} oops', "{}", ""),
        ('"{\\"city\\": \\"Par', '{"city": "Par', ""),
        ('"{\\"city\\": 5', '{"city": 5', ""),
        ('"{\\"city\\": tru', '{"city": ', ""),
        ('"{\\"city\\": 5"}', '{"city": 5', '"}'),
        ('"5 6"}', "5", ' 6"}'),
        ('"{}\\n"}', "{}", ""),
    ],
)  # fmt: skip
def test_arguments_that_break(text: str, written: str | None, left: str | None) -> None:
    found = read_all_ways(f'<tool_call>{{"name": "get_weather", "arguments": {text}', "hermes")
    assert [call[0] for call in found["calls"]] == ["get_weather"]
    if written is not None and left is not None:
        assert found["calls"][0][1] == written
        assert found["text"].startswith(left)
    if not text.endswith('\\n"}'):
        assert found["complete"] == [False]


@pytest.mark.parametrize(
    "text",
    [
        '{"tool_calls": []}',
        '{"tool_calls": 5}',
        '{"tool_calls" 5}',
        '{"function": ' * 5000,
        '{"tool_calls": [' * 5000,
    ],
)
def test_objects_that_do_not_wrap_calls(text: str) -> None:
    found = read(text, "generic_json", starts_in_reasoning=False)
    assert (found["text"], found["calls"]) == (text, [])


def test_a_list_of_calls_that_does_not_end() -> None:
    text = '<tool_call>{"tool_calls": [{"name": "get_weather", "arguments": {}}] oops'
    assert outcome(text, "hermes") == ("] oops", [("get_weather", "{}")], [True])


@pytest.mark.parametrize("value", ["🎉", "a\\b", 'q"q', "\\u00e9", "𝄞" * 9, "\\", "tab\there", "e\u0301"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_strings_in_a_string(value: str, ascii_only: bool) -> None:
    for inner in (json.dumps({"city": value}), json.dumps({"city": value}, ensure_ascii=False)):
        text = f'<tool_call>{{"name": "get_weather", "arguments": {json.dumps(inner, ensure_ascii=ascii_only)}}}</tool_call>'
        assert arguments(read_all_ways(text, "hermes")) == [("get_weather", json.loads(inner))]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('"\\d+ \\q"', "\\d+ \\q"),
        ('"\\u00e9\\u12"', "é\\u12"),
        ('"a\nb\x01"', "a\nb\x01"),
        ("12345678901234567890", 12345678901234567890),
        ("1e5", 1e5),
        ("NaN", None),
        ("True", True),
        ("0x1F", 31),
        ("-007", -7),
        ("+1.50", 1.5),
        ("1_000.5", 1000.5),
    ],
)
def test_values_that_models_bend(written: str, value: Any) -> None:
    text = f'<tool_call>{{"name": "get_weather", "arguments": {{"city": {written}}}}}</tool_call>'
    assert arguments(read_all_ways(text, "hermes")) == [("get_weather", {"city": value})]


@pytest.mark.parametrize(
    ("members", "left"),
    [
        ('"argments": {"city": "Paris"}', ', "argments": {"city": "Paris"}}'),
        ('"arguments": {}, "city": "Paris"', ', "city": "Paris"}'),
    ],
)
def test_a_call_with_misplaced_arguments_is_not_a_call(members: str, left: str) -> None:
    found = read_all_ways(f'<tool_call>{{"name": "get_weather", {members}}}</tool_call>', "hermes")
    assert (found["text"], found["complete"], found["end"]) == (left, [False], "tool_call_parse_error")


@pytest.mark.parametrize("gap", [";", " ; ", "\n;\n  "])
def test_calls_one_after_the_other(gap: str) -> None:
    call = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
    assert outcome(f"{call}{gap}{call}{gap}Well.", "llama3_json")[1:] == ([PARIS, PARIS], [True, True])
    assert outcome(f"{call}{gap}Well.", "llama3_json")[0] == f"{gap}Well."


@pytest.mark.parametrize("written", ["0b12", "1__.", "x" * 5000, "--5", "'a'"])
def test_words_that_are_not_a_value(written: str) -> None:
    found = read_all_ways(f'<tool_call>{{"name": "get_weather", "arguments": {{"city": {written}}}}}</tool_call>', "hermes")
    assert found["calls"] == [["get_weather", '{"city": ']]
    assert found["complete"] == [False]


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "\\ud83c!"}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"\\ud83c!\\"}"}</tool_call>'),
        ("hermes", '<tool_call>{"id": "\\ud83c", "name": "get_weather", "arguments": {"city": "\\ud83c!"}}</tool_call>'),
        ("lfm2", "<|tool_call_start|>[get_weather(city='\\ud83c!')]<|tool_call_end|>"),
    ],
)
def test_half_a_pair_can_be_sent_on(format: str, text: str) -> None:
    found = read_all_ways(text, format)
    assert found["calls"][0][1].encode() == b'{"city": "\\ud83c!"}'
    assert found["ids"][0].encode()
    assert found["complete"] == [True]


ONE = '{"name": "get_weather", "arguments": {"city": "Paris"}}'


@pytest.mark.parametrize(
    ("text", "left", "calls", "complete", "end"),
    [
        (f"<tool_call>\n{ONE}\n{ONE}\n</tool_call>", "", [PARIS, PARIS], [True, True], "tool_calls"),
        (f"<tool_call>{ONE}{ONE}</tool_call> Done.", " Done.", [PARIS, PARIS], [True, True], "tool_calls"),
        (f"<tool_call>{ONE}{ONE}{ONE}</tool_call>", "", [PARIS] * 3, [True] * 3, "tool_calls"),
        (f"<tool_call>{ONE}\n{{a set}} follows", "\n{a set} follows", [PARIS], [True], "tool_calls"),
        (f'<tool_call>{ONE}{{"name": "rm_rf"}}</tool_call>', '{"name": "rm_rf"}', [PARIS], [True], "tool_calls"),
        (f"<tool_call>{ONE}</tool_call>\n{ONE}", f"\n{ONE}", [PARIS], [True], "tool_calls"),
        (f"<tool_call>{ONE}\n{ONE[:40]}", "", [PARIS, ("get_weather", '{"c')], [True, False], "tool_call_parse_error"),
    ],
)
def test_calls_follow_each_other_between_one_pair_of_markers(
    text: str, left: str, calls: list[Any], complete: list[bool], end: str
) -> None:
    found = read_all_ways(text, "hermes")
    assert found["calls"] == [list(call) for call in calls]
    assert (found["text"], found["complete"], found["end"]) == (left, complete, end)


BRACE_MISSING = '{"name": "get_weather", "arguments": {"city": "Paris"}'


@pytest.mark.parametrize(
    ("format", "opener", "end"),
    [
        ("hermes", "<tool_call>", "</tool_call>"),
        ("hermes", "<tool_call>\n", "\n</tool_call>"),
        ("internlm2", "<|action_start|><|plugin|>", "<|action_end|>"),
        ("qwen3_coder", "<tool_call>", "</tool_call>"),
        ("glm4x", "<tool_call>", "</tool_call>"),
        ("lfm2", "<|tool_call_start|>", "<|tool_call_end|>"),
    ],
)
def test_the_last_brace_may_be_missing_before_the_marker_at_the_end(format: str, opener: str, end: str) -> None:
    paris = ("get_weather", '{"city": "Paris"}')
    assert outcome(f"{opener}{BRACE_MISSING}{end} So.", format) == (" So.", [paris], [True])
    broken = outcome(f"{opener}{BRACE_MISSING} x{end} So.", format)
    assert broken[1:] == ([paris], [False]), "something else stands where the brace is missing"
    half = BRACE_MISSING.removesuffix("}")
    assert outcome(f"{opener}{half}{end} So.", format)[2] == [False], "the arguments are not whole"
