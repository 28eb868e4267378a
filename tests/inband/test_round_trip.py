"""For every format: random tools, values, surrounding text and cuts; write the notation, read it, get the same calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from inband.readings import arguments, cut, read
from streamglot.inband import FORMATS
from streamglot.inband.engine import Call

WITH_CALLS = sorted(name for name, row in FORMATS.items() if row.engines)
RAW = """
qwen3_coder nemotron_v3 step3p5 seed_oss minimax_m2 minimax_m3 dots minicpm5 step3 deepseek_v32 deepseek_v4 glm4x ling3
poolside_v1 hy_v3 tool_tags muse_glimmer kimi_k3 gemma4 functiongemma qwen3_think
""".split()  # noqa: SIM905
"""Notations without escapes: a value can not hold the markup that would end it."""
ALONE = ("functionary_v32", "harmony", "muse_glimmer")
"""Formats in which prose has a header of its own."""

names = some.from_regex(r"[a-z][a-z0-9_]{0,11}", fullmatch=True).filter(lambda name: name not in ("think", "item", "text", "all"))
chars = some.characters(exclude_categories=["Cs"], exclude_characters="\r")
TRICKY = """02139|null|true|He said "hi"|it's|a\nb\n\nc|\\d+\\n|<b>bold</b>|{}|[1]|a, b=2)|</|<|C:\\x|🎉|```|<think>"""
TRICKY += """|{"a": 1}|", "b": "|''' """
texts = some.one_of(some.text(chars, max_size=40), some.sampled_from(TRICKY.split("|")))
integers = some.integers(-(2**80), 2**80)
scalars = some.one_of(texts, integers, some.booleans(), some.none(), some.floats(-1e9, 1e9, allow_nan=False))
nested = some.recursive(
    scalars,
    lambda inner: some.one_of(some.lists(inner, max_size=3), some.dictionaries(names, inner, max_size=3)),
    max_leaves=6,
)
OF_TYPE = {
    "string": texts,
    "integer": integers,
    "boolean": some.booleans(),
    "object": some.dictionaries(names, nested, min_size=1, max_size=3),
    "array": some.lists(nested, min_size=1, max_size=3),
}


@some.composite
def tools_and_calls(draw: Any, format: str) -> tuple[list[dict[str, Any]], list[Call]]:
    tools = []
    calls = []
    kinds = sorted(OF_TYPE)
    if format == "minimax_m3":
        kinds = ["boolean", "integer", "string"]  # nested values are tags there, which say no types of their own
    for name in draw(some.lists(names, min_size=1, max_size=3, unique=True)):
        parameters = draw(some.dictionaries(names, some.sampled_from(kinds), max_size=4))
        parameters.pop(name, None)
        properties = {key: {"type": kind} for key, kind in parameters.items()}
        tools.append({"name": name, "parameters": {"type": "object", "properties": properties}})
        for _ in range(draw(some.integers(1, 2))):
            values = {key: draw(OF_TYPE[kind]) for key, kind in parameters.items()}
            for key, kind in parameters.items():
                if kind == "string" and format not in RAW and draw(some.booleans()):
                    values[key] += draw(some.sampled_from(markup(format)))
            calls.append(Call(name, json.dumps(values, ensure_ascii=draw(some.booleans()))))
    return tools, calls


def markup(format: str) -> list[str]:
    """The markers of the format itself: inside a string they are nothing but text."""
    row = FORMATS[format]
    words = [word for engine in row.engines for word in (*engine.openers, *engine.closers)]
    return sorted({*words, *row.think.openers, *row.think.closers, *row.drop, "<eos>"})


@pytest.mark.parametrize("format", WITH_CALLS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=some.data(),
    before=some.sampled_from(["", "Let me look.\n\n", "I will call a tool: ", "a < b and c > d. ", "```\n<x>\n```\n"]),
    after=some.sampled_from(["", "\n", "\nDone."]),
    seed=some.integers(0, 9999),
)
def test_what_is_written_is_read(format: str, data: Any, before: str, after: str, seed: int) -> None:
    tools, calls = data.draw(tools_and_calls(format))
    if format in ALONE:
        before = after = ""
    text = before + FORMATS[format].write(calls) + after
    for pieces in (text, cut(text, seed)):
        found = read(pieces, format, tools, starts_in_reasoning=False)
        assert arguments(found) == [(call.name, call.members()) for call in calls]
        assert found["complete"] == [True] * len(calls)
        assert found["text"].split() == (before + after).split()
        assert found["end"] == "tool_calls"


@pytest.mark.parametrize("format", sorted(FORMATS))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=some.data(), seed=some.integers(0, 9999))
def test_any_text_reads_the_same_in_any_cut(format: str, data: Any, seed: int) -> None:
    parts = [
        *markup(format),
        FORMATS[format].example,
        '{"name": "f", "arguments": {',
        "f",
        '"',
        "\n",
        "x",
        " ",
        "get_weather",
        "}",
        ">",
        "```\n",
    ]
    text = "".join(data.draw(some.lists(some.sampled_from(parts), max_size=12)))
    begins = data.draw(some.booleans())
    whole = read(text, format, None, starts_in_reasoning=begins)
    assert read(list(text), format, None, starts_in_reasoning=begins) == whole
    assert read(cut(text, seed), format, None, starts_in_reasoning=begins) == whole
