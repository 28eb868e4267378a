"""For every format: random tools, values, surrounding text and cuts; write the notation, read it, get the same calls."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as some

from inband.notations import CALLS, PROSE, ambiguous, markup, markup_in
from inband.readings import arguments, cut, read
from streamglot.inband import FORMATS
from streamglot.inband.engines import WrittenCall

WITH_CALLS = sorted(name for name, row in FORMATS.items() if row.engines)
EVERY_MARKUP = sorted({word for name in FORMATS for word in markup(name)})

names = some.from_regex(r"[a-z][a-z0-9_]{0,11}", fullmatch=True).filter(lambda name: name not in ("think", "text", "all"))
chars = some.characters(exclude_categories=["Cs"])
TRICKY = """02139|null|true|He said "hi"|it's|a\nb\n\nc|\\d+\\n|<b>bold</b>|{}|[1]|a, b=2)|</|<|C:\\x|🎉|```|<think>"""
TRICKY += """|{"a": 1}|", "b": "|''' |\r\n|&lt;&amp;"""
texts = some.one_of(some.text(chars, max_size=40), some.sampled_from(TRICKY.split("|")))
integers = some.integers(-(2**80), 2**80)
floats = some.floats(-1e9, 1e9, allow_nan=False)
scalars = some.one_of(texts, some.sampled_from(EVERY_MARKUP), integers, some.booleans(), some.none(), floats)
nested = some.recursive(
    scalars,
    lambda inner: some.one_of(some.lists(inner, max_size=3), some.dictionaries(names, inner, max_size=3)),
    max_leaves=6,
)
LEAVES = {"string": texts, "integer": integers, "number": floats, "boolean": some.booleans(), "null": some.none()}
OF_TYPE = {**LEAVES, "object": some.dictionaries(names, nested, max_size=3), "array": some.lists(nested, max_size=3)}
schemas = some.recursive(
    some.sampled_from(sorted(LEAVES)).map(lambda kind: {"type": kind}),
    lambda inner: some.one_of(
        inner.map(lambda items: {"type": "array", "items": items}),
        some.dictionaries(names, inner, max_size=3).map(lambda members: {"type": "object", "properties": members}),
    ),
    max_leaves=4,
)
flat_schemas = some.sampled_from(sorted(OF_TYPE)).map(lambda kind: {"type": kind})
prose = some.lists(
    some.sampled_from(
        [
            "Let me look.",
            "a < b and c > d.",
            "{curly}",
            "[1]",
            "f(x)",
            "<b>x</b>",
            "it's",
            '"5%"',
            "`y`",
            "ü 🎉",
            "\n```\n<x>\n```\n",
        ]
    ),
    max_size=4,
).map(" ".join)


def value_of(schema: dict[str, Any]) -> some.SearchStrategy[Any]:
    """A value that fits the schema."""
    if "items" in schema:
        return some.lists(value_of(schema["items"]), max_size=3)
    if "properties" in schema:
        return some.fixed_dictionaries({key: value_of(inner) for key, inner in schema["properties"].items()})
    return OF_TYPE[schema["type"]]


def strings_with(words: list[str]) -> some.SearchStrategy[str]:
    """Strings that contain these words, whole or truncated."""
    broken = some.sampled_from(words).flatmap(lambda word: some.integers(1, len(word)).map(lambda size: word[:size]))
    return some.lists(some.one_of(some.sampled_from(words), broken, texts), max_size=4).map("".join)


@some.composite
def tools_and_calls(draw: Any, format: str) -> tuple[list[dict[str, Any]], list[WrittenCall]]:
    tools = []
    calls = []
    # The tags of minimax_m3 tell no types: a value inside a value has one only if the schema says it.
    kinds = schemas if format == "minimax_m3" else some.one_of(flat_schemas, schemas)
    for name in draw(some.lists(names, min_size=1, max_size=3, unique=True)):
        properties = draw(some.dictionaries(names, kinds, max_size=4))
        properties.pop(name, None)
        tools.append({"name": name, "parameters": {"type": "object", "properties": properties}})
        for _ in range(draw(some.integers(1, 2))):
            values = {}
            for key, schema in properties.items():
                values[key] = draw(value_of(schema))
                if schema["type"] == "string" and draw(some.booleans()):
                    values[key] = draw(strings_with([*markup_in(format, name, key), draw(some.sampled_from(EVERY_MARKUP))]))
                forbidden = ambiguous(format, name, key)
                for text in strings_in(values[key]) if forbidden else ():
                    assume(re.search(forbidden, text) is None)
            calls.append(WrittenCall(name, json.dumps(values, ensure_ascii=draw(some.booleans()))))
    return tools, calls


def strings_in(value: Any) -> list[str]:
    """Every string of the value, and the value as one."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    found = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)]
    return found + [text for part in inner for text in strings_in(part)]


@pytest.mark.parametrize("format", WITH_CALLS)
@settings(suppress_health_check=list(HealthCheck))
@given(data=some.data(), before=prose, after=prose, seed=some.integers(0, 9999))
def test_written_calls_are_read_back(format: str, data: Any, before: str, after: str, seed: int) -> None:
    tools, calls = data.draw(tools_and_calls(format))
    if format == "functionary_v32":
        before = before.rstrip(">")  # its separator is three of them, and the border is ambiguous
    head, tail = PROSE.get(format, ("{}\n", "\n{}"))
    text = CALLS.get(format, "{}").format(FORMATS[format].write(calls))
    text = (head.format(before) if before else "") + text + (tail.format(after) if after else "")
    for pieces in (text, cut(text, seed)):
        found = read(pieces, format, tools, starts_in_reasoning=False)
        assert arguments(found) == [(call.name, call.members()) for call in calls]
        assert found["complete"] == [True] * len(calls)
        assert "".join(found["text"].split()) == "".join((before + after).split())
        assert found["end"] == "tool_calls"


@pytest.mark.parametrize("format", sorted(FORMATS))
@settings(suppress_health_check=list(HealthCheck))
@given(data=some.data(), seed=some.integers(0, 9999))
def test_any_text_reads_the_same_in_any_cut(format: str, data: Any, seed: int) -> None:
    words = ["f", "x", "get_weather", '{"name": "f", "arguments": {', "\n", " ", " " * 300, "```\n", *"\"'=:,{}()[]>"]
    parts = [*markup(format), *markup_in(format, "f", "x"), FORMATS[format].example, *words]
    text = "".join(data.draw(some.lists(some.sampled_from(parts), max_size=12)))
    begins = data.draw(some.booleans())
    whole = read(text, format, None, starts_in_reasoning=begins)
    assert read(list(text), format, None, starts_in_reasoning=begins) == whole
    assert read(cut(text, seed), format, None, starts_in_reasoning=begins) == whole
