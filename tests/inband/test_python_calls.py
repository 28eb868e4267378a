"""Calls in Python syntax."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from each import each
from inband.readings import PYTHON, WEATHER, arguments, outcome, read_all_ways
from streamglot.events import StreamEnd, TextDelta, ToolCallEnd
from streamglot.inband import inband

PARIS = ("get_weather", '{"city": "Paris"}')
BRAVE = {"name": "brave_search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}
LFM = "<|tool_call_start|>{}<|tool_call_end|>"


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("pythonic", "[get_weather(city='Paris')]"),
        ("pythonic", "[ get_weather( city = 'Paris', ), ]"),
        ("pythonic", "[get_weather('Paris')]"),
        ("llama4_pythonic", "<|python_start|>[get_weather(city='Paris')]<|python_end|>"),
        ("lfm2", LFM.format("[get_weather(city='Paris')]")),
        ("lfm2", LFM.format("[get_weather(city='Paris')")),
        ("lfm2", LFM.format('[{"name": "get_weather", "arguments": {"city": "Paris"}}]')),
        ("lfm2", LFM.format('[\n  {"name": "get_weather", "arguments": {"city": "Paris"}}\n]')),
        ("lfm2", LFM.format("[\nget_weather(city='Paris')\n]")),
        ("olmo3", "<function_calls>get_weather(city='Paris')</function_calls>"),
        ("olmo3", '<function_calls>\nget_weather(city="Paris");\n'),
    ],
)
def test_ways_to_write_a_call(format: str, text: str) -> None:
    assert outcome(text, format) == ("", [PARIS], [True])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'it's fine'", "it's fine"),
        ("'a', b'", "a', b"),
        ("\"he said \"no\" twice\"", 'he said "no" twice'),
        ("'a\\tb\\x41\\u00e9\\U0001F389\\q\\xZZ'", "a\tbAé🎉\\q\\xZZ"),
        ("'a\nb\\\nc'", "a\nbc"),
        ("('a', 1)", ["a", 1]),
        ("('a',)", ["a"]),
        ("{'k': ['v', None, True], \"w\": {}}", {"k": ["v", None, True], "w": {}}),
        ("{'k': 'it's'}", {"k": "it's"}),
        ("-1.5e3", -1500.0),
        ("''", ""),
        ('"""import os\nprint("hi")\n"""', 'import os\nprint("hi")\n'),
        ("'''a = \"x\"'''", 'a = "x"'),
        ('"""""" ', ""),
        ('"""a\\"""b\\""""', 'a"""b"'),
        ('"""a"" b"""', 'a"" b'),
        ('"a" "b"', "ab"),
        ("'a'\n  \"b\"'''c'''", "abc"),
        ('"a""b"', "ab"),
        ('"a"""', "a"),
        ('"" "b"', "b"),
        ('"say "hi""', 'say "hi"'),
        ('""Paris""', '"Paris"'),
        ("['a' 'b', '''c''', {'k': 'd' 'e'}]", ["ab", "c", {"k": "de"}]),
        ("{'''k''': 1}", {"k": 1}),
        ("'a' if' b'", "a' if' b"),
    ],
)  # fmt: skip
def test_literals(text: str, value: Any) -> None:
    for written in (LFM.format(f"[get_weather(city={text})]"), LFM.format(f"[get_weather(city={text}, days=2)]")):
        found = read_all_ways(written, "lfm2")
        assert arguments(found)[0][1]["city"] == value
        assert found["complete"] == [True]


@each(value=[f"one{gap}two = three" for gap in (", ", ") ", "): ", ": ", ",", ")", " = ", "; ", ".\n", " (")])
@each(place=["{}", "['x', {}]", "[{}, 'x']", "{{'k': {}}}", "{{'k': {}, 'l': 2}}"])
def test_a_string_is_cut_in_two_anywhere(place: str, value: str) -> None:
    for middle in range(1, len(value) + 1):
        text = place.format(f"{value[:middle]!r}{value[middle:]!r}")
        found = read_all_ways(LFM.format(f"[get_weather(city={text}, days=2)]"), "lfm2")
        assert arguments(found) == [("get_weather", {"city": ast.literal_eval(text), "days": 2})], text


@pytest.mark.parametrize(
    "place",
    ["{}", "[{}]", "[{}, 2]", "[{}, -.5]", "[{}, True]", "[{}, 'x']", "[{}, [2]]", "[{},]", "({},)", "({}, 2)", "{{'k': {}}}"],
)
def test_the_last_quote_of_a_string_is_text(place: str) -> None:
    text = place.format("'a disk of 5''")
    found = read_all_ways(LFM.format(f"[get_weather(city={text}, days=2)]"), "lfm2")
    expected = json.loads(json.dumps(ast.literal_eval(place.format('"a disk of 5\'"'))))
    assert arguments(found) == [("get_weather", {"city": expected, "days": 2})]


@pytest.mark.parametrize(
    "text",
    [
        '"a" + "b"',
        '"a" + b',
        '"a" % 1',
        '"a" * 3',
        '"a".upper()',
        '"a"[0]',
        '"a" if b else "c"',
        '"a" f"b"',
        '"a" rb"b"',
        '"a" "b" c"',
        '"a" "b" + "c"',
        '"""def f():\n  """doc"""\n  pass"""',
        '"""a""""',
        '"""a',
        '"a" "b',
        "['a' + 'b']",
    ],
)
def test_a_string_that_is_no_literal_makes_no_call(text: str) -> None:
    written = LFM.format(f"[get_weather(city={text})]")
    assert outcome(written, "lfm2") == (written, [], [])
    written = LFM.format(f"[get_weather(days=1, city={text}")
    left, calls, whole = outcome(written, "lfm2")
    assert (left, calls, whole) == (written, [], [])


def test_a_long_string_that_is_no_literal_ends_an_incomplete_call() -> None:
    long = "x" * 600
    left, calls, whole = outcome(LFM.format(f'[get_weather(city="{long}" + "b")]'), "lfm2")
    assert (left, whole) == ('" + "b")]', [False])
    assert calls == [("get_weather", f'{{"city": "{long}')]
    left, calls, whole = outcome(LFM.format(f"[get_weather(city=\"{long}\" 'b')]"), "lfm2")
    assert (left, calls, whole) == ("", [("get_weather", f'{{"city": "{long}b"}}')], [True])


@pytest.mark.parametrize(
    ("written", "members"),
    [
        ("'Paris', 2", {"city": "Paris", "days": 2}),
        ("'Paris', -2", {"city": "Paris", "days": -2}),
        ("'Paris', .5", {"city": "Paris", "days": 0.5}),
        ("'Paris', 'two'", {"city": "Paris", "days": "two"}),
        ("'Paris' , None", {"city": "Paris", "days": None}),
        ("'Paris', [1]", {"city": "Paris", "days": [1]}),
        ('"""Paris""", 2', {"city": "Paris", "days": 2}),
        ("'Par' 'is', 2", {"city": "Paris", "days": 2}),
        ("'Paris', days=2", {"city": "Paris", "days": 2}),
        ("'Paris', Nonesuch'", {"city": "Paris', Nonesuch"}),
    ],
)
def test_arguments_by_position(written: str, members: dict[str, Any]) -> None:
    found = read_all_ways(LFM.format(f"[get_weather({written})]"), "lfm2")
    assert (arguments(found), found["complete"], found["text"]) == ([("get_weather", members)], [True], "")


@pytest.mark.parametrize(
    "inside", ["city='Paris', 2", "days=2, 'Paris'", "'Paris', city='Rome'", "city='a', city='b'", "1, 2, 3"]
)
def test_arguments_whose_names_are_not_clear_make_no_call(inside: str) -> None:
    text = LFM.format(f"[get_weather({inside})]")
    assert outcome(text, "lfm2") == (text, [], [])


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "[1, 2]",
        "[see (1)]",
        "[get_weather(city='Paris'",
        "[get_weather(city='Par",
        "[get_weather(ci",
        "[get_weather(city=1 days=2)]",
        "[get_weather(city=)]",
        "[get_weather(city=,)]",
        "[get_weather(==1)]",
        "[get_weather(1, 2, 3)]",
        "[get_weather",
        "[link](http://x) and [other",
    ],
)
def test_bare_lists_that_are_not_calls(text: str) -> None:
    found = read_all_ways(text, "pythonic", starts_in_reasoning=False)
    if found["calls"]:
        assert found["complete"] == [False]
    else:
        assert found["text"] == text


def test_lists_after_a_marker() -> None:
    assert outcome(LFM.format("[]"), "lfm2") == ("", [], [])
    assert outcome(LFM.format(""), "lfm2") == ("", [], [])
    for inside in ("no list", "[no list", "[rm_rf()]"):
        assert outcome(LFM.format(inside), "lfm2") == (LFM.format(inside), [], [])
    for inside in ("[get_weather(city='Paris' days=1)]", "[get_weather(city=1 2)]", "[get_weather(city={1, 2})]"):
        assert outcome(LFM.format(inside), "lfm2") == (LFM.format(inside), [], [])
    text = LFM.format("[get_weather(city='a', days={1, 2})] Well.")
    assert outcome(text, "lfm2") == (text, [], [])
    long = "x" * 600
    left, calls, whole = outcome(LFM.format(f"[get_weather(city='{long}', days={{1, 2}})] Well."), "lfm2")
    assert (left, whole) == ("1, 2})] Well.", [False])
    assert calls == [("get_weather", f'{{"city": "{long}", "days": {{')]
    left, calls, whole = outcome(LFM.format("[get_weather(city=1) and so on"), "lfm2")
    assert (left.split("<")[0].strip(), calls, whole) == ("and so on", [("get_weather", '{"city": 1}')], [True])
    text = LFM.format("[get_weather(city=0b12)]")
    assert outcome(text, "lfm2") == (text, [], [])


def test_several_calls_with_and_without_arguments() -> None:
    text = LFM.format("[get_weather(), get_weather(city='Paris'); get_weather()]")
    assert outcome(text, "lfm2") == ("", [("get_weather", "{}"), PARIS, ("get_weather", "{}")], [True] * 3)


def test_a_long_argument_starts_before_it_is_whole() -> None:
    text = f"[get_weather(city='{'x' * 2000}"
    found = read_all_ways(text, "pythonic", starts_in_reasoning=False)
    assert found["complete"] == [False]
    assert found["calls"][0][1] == '{"city": "' + "x" * 2000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<|python_tag|>brave_search.call(query="cats")', ("", [("brave_search", '{"query": "cats"}')], [True])),
        ('<|python_tag|>brave_search.call(query="a", n=1)!', ("!", [("brave_search", '{"query": "a", "n": 1}')], [True])),
        ("<|python_tag|>brave_search.call()", ("", [("brave_search", "{}")], [True])),
        ("<|python_tag|>brave_search.call(a=1 b=2)", ("<|python_tag|>brave_search.call(a=1 b=2)", [], [])),
        ('<|python_tag|>{"name": "brave_search", "parameters": {}}', ("", [("brave_search", "{}")], [True])),
        ("<|python_tag|>print(1)", ("<|python_tag|>print(1)", [], [])),
    ],
)
def test_built_in_tools(text: str, expected: Any) -> None:
    left, calls, whole = outcome(text, "llama3_json", [WEATHER, BRAVE])
    assert (left.strip(), calls, whole) == expected


@pytest.mark.parametrize(
    ("text", "left", "calls"),
    [
        ("<|python_tag|>print(1)\nx = 2", "", [("python", '{"code": "print(1)\\nx = 2"}')]),
        ("<|python_tag|>x<|eom_id|>", "", [("python", '{"code": "x"}')]),
        ("<|python_tag|>x.c", "", [("python", '{"code": "x.c"}')]),
        ("Look: <|python_tag|>x.call_me()", "Look:", [("python", '{"code": "x.call_me()"}')]),
        ('<|python_tag|>python.call(code="x")', "", [("python", '{"code": "x"}')]),
        ('<|python_tag|>{"name": "python", "parameters": {"code": "x"}}', "", [("python", '{"code": "x"}')]),
    ],
)
def test_code_for_an_interpreter(text: str, left: str, calls: list[Any]) -> None:
    found = outcome(text, "functionary_v31", [PYTHON])
    assert (found[0].strip(), *found[1:]) == (left, calls, [True])


@pytest.mark.parametrize("format", ["llama3_json", "functionary_v31"])
def test_a_sentence_may_mention_the_marker_of_code(format: str) -> None:
    for text in (
        "The <|python_tag|> mark.",
        "The mark <|python_tag|>, so.",
        "It is <|python_tag|>",
        "A (<|python_tag|>) b",
        "<|python_tag|>",
    ):
        assert outcome(text, format, [PYTHON]) == (text, [], [])
    for text in (
        "<|python_tag|> x",
        "<|python_tag|>\nx",
        "Look.\n<|python_tag|> x",
        "Look.<|python_tag|>x",
        "Look. <|python_tag|>x",
    ):
        left, calls, whole = outcome(text, format, [PYTHON])
        assert (left, calls, whole) == (text.partition("<")[0].rstrip(), [("python", '{"code": "x"}')], [True])


def test_code_that_was_cut_is_not_run() -> None:
    box = inband("functionary_v31", [PYTHON])
    events = [*box.feed(TextDelta("<|python_tag|>rm -rf /tmp")), *box.feed(StreamEnd("length"))]
    assert ToolCallEnd(None, False) in events
