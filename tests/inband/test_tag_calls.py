"""Calls whose tags are names."""

from __future__ import annotations

from typing import Any

import pytest

from inband.readings import READ, arguments, outcome, read_all_ways
from streamglot.inband import FORMATS
from streamglot.inband.engines import WrittenCall

T = "]<]minimax[>["
PLAN = {
    "name": "plan",
    "parameters": {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "days": {"type": "array", "items": {"type": "integer"}},
            "owner": {"anyOf": ["?", {"type": "null"}, {"properties": {"zip": {"type": "string"}}}]},
            "notes": {"type": "array"},
            "extra": {"type": "object"},
            "box": {"type": "object", "properties": {"item": {"$ref": "#/$defs/size"}}},
            "sizes": {"type": "object", "additionalProperties": {"$ref": "#/$defs/size"}},
        },
        "$defs": {"size": {"type": "string"}},
    },
}
NESTED: dict[str, Any] = {
    "title": "a <b> c",
    "days": [1, 2],
    "owner": {"zip": "02139"},
    "free": {"deep": [{"k": "v"}, 5]},
}


def tag(name: str, inside: str) -> str:
    return f"{T}<{name}>{inside}{T}</{name}>"


def call(inside: str, end: str = f"{T}</invoke>{T}</tool_call>") -> str:
    return f'{T}<tool_call>{T}<invoke name="plan">{inside}{end}'


def test_tags_that_nest() -> None:
    text = FORMATS["minimax_m3"].write([WrittenCall("plan", '{"title": "a <b> c", "days": [1, 2], "owner": {"zip": "02139"}}')])
    found = read_all_ways(text, "minimax_m3", [PLAN])
    assert arguments(found) == [("plan", {key: NESTED[key] for key in ("title", "days", "owner")})]
    inside = tag("free", tag("deep", tag("item", tag("k", "v")) + tag("item", "5")))
    assert arguments(read_all_ways(call(inside), "minimax_m3", [PLAN])) == [("plan", {"free": NESTED["free"]})]


@pytest.mark.parametrize(
    ("inside", "value"),
    [
        ("", {}),
        (tag("days", ""), {"days": []}),
        (tag("extra", ""), {"extra": {}}),
        (tag("free", ""), {"free": ""}),
        (tag("days", "[1, 2]"), {"days": [1, 2]}),
        (tag("free", "5"), {"free": 5}),
        (tag("notes", f"\n{tag('item', 'a')}\n{tag('item', '7')}\n"), {"notes": ["a", 7]}),
        (tag("owner", tag("zip", "1") + tag("x", "1")), {"owner": {"zip": "1", "x": 1}}),
        (tag("box", tag("item", "5")), {"box": {"item": "5"}}),
        (tag("sizes", tag("a", "5")), {"sizes": {"a": "5"}}),
        (tag("title", f"a{T}</title>b"), {"title": f"a{T}</title>b"}),
        (tag("title", f"a{T}</invoke>b"), {"title": f"a{T}</invoke>b"}),
    ],
)
def test_values(inside: str, value: Any) -> None:
    found = read_all_ways(call(inside), "minimax_m3", [PLAN])
    assert (arguments(found), found["complete"], found["text"]) == ([("plan", value)], [True], "")


@pytest.mark.parametrize(
    "inside",
    [
        f"{T}</other>",
        "words",
        f"{T}<title>cut off",
        f"{T}<title>not closed{T}</invoke>{T}</tool_call>",
        f"{T}<days>[1{T}</other>",
        f"{T}<days>[1",
        f"{T}<free>{T}<a>1{T}</a>words{T}</free>",
        f"{T}<free>{T}<a>1{T}</a>{T}</other>",
        f"{T}<free>" + f"{T}<a>" * 80,
    ],
)
def test_tags_that_break(inside: str) -> None:
    text = call(inside, "")
    left, calls, whole = outcome(text, "minimax_m3", [PLAN])
    assert whole in ([], [False])
    if not calls:
        assert left == text


def test_text_that_is_not_a_call() -> None:
    assert outcome(f"{T}<tool_call>words", "minimax_m3", [PLAN])[1] == []
    assert outcome(f"{T}<tool_call>{T}</tool_call>", "minimax_m3", [PLAN]) == ("", [], [])


def test_tags_of_tools() -> None:
    long = "x" * 600
    for value in ("a</filePath>b", f"{long}</read><b>", long, "<b>"):
        text = f"<read><filePath>{value}</filePath></read>"
        assert arguments(read_all_ways(text, "tool_tags", [READ])) == [("read", {"filePath": value})]
    assert outcome("<read></read>", "tool_tags", [READ]) == ("", [("read", "{}")], [True])
    assert outcome("<read><1>a</1></read>", "tool_tags", [READ]) == ("<read><1>a</1></read>", [], [])
    assert outcome(f"<read><filePath>{long}</read> so", "tool_tags", [READ])[2] == [False]
    two = {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}}
    found = read_all_ways("<f>\n<n>5</n>\n<s>02139</s>\n</f> Done.", "tool_tags", [two])
    assert (arguments(found), found["text"].strip()) == ([("f", {"n": 5, "s": "02139"})], "Done.")
