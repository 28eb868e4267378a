"""Raw text of a parameter and its declared type; schemas, and definitions of tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamglot.errors import ConfigError
from streamglot.inband.parameters import Declared, ValueWriter, json_type, parsed, schema_types, typed
from streamglot.inband.scan import Malformed
from streamglot.messages import ToolSpec

LONG = "x" * 5000


def written(text: str, types: set[str], untyped: str = "string", trim: bool = False) -> str:
    """The JSON for a text: the same in one piece, in characters and in pieces of seven."""
    results = []
    for pieces in ([text], list(text), [text[start : start + 7] for start in range(0, len(text), 7)]):
        parts: list[str] = []
        writer = ValueWriter(parts.append, frozenset(types), untyped, trim)
        for piece in pieces:
            writer.feed(piece)
        writer.close()
        results.append("".join(parts))
    assert len(set(results)) == 1
    return results[0]


@pytest.mark.parametrize(
    ("types", "text", "value"),
    [
        ({"string"}, "02139", "02139"),
        ({"string"}, 'a "b"\n', 'a "b"\n'),
        ({"string", "null"}, "null", None),
        ({"string", "null"}, "None", None),
        ({"string", "null"}, "nullable", "nullable"),
        ({"string", "null"}, "no", "no"),
        ({"string", "null"}, "  ", "  "),
        ({"string", "null"}, LONG, LONG),
        ({"string", "null"}, "null" + " " * 5000, "null" + " " * 5000),
        ({"null"}, "nil", None),
        ({"boolean"}, "TRUE", True),
        ({"boolean"}, "0", False),
        ({"boolean"}, "1", True),
        ({"boolean"}, "2", "2"),
        ({"boolean"}, "null", None),
        ({"integer"}, "9" * 40, int("9" * 40)),
        ({"integer"}, "7.0", 7),
        ({"integer"}, "5.5", "5.5"),
        ({"integer"}, "1e3", "1e3"),
        ({"number"}, "1e3", 1000.0),
        ({"number"}, "00700e9007", "00700e9007"),
        ({"integer", "string"}, "7", 7),
        ({"integer", "string"}, "seven", "seven"),
        ({"integer", "object"}, "true", "true"),
        ({"array"}, "[1, 'a', None]", [1, "a", None]),
        ({"array"}, '["it\'s"]', ["it's"]),
        ({"array"}, "{}", "{}"),
        ({"array"}, "[1] and", "[1] and"),
        ({"array"}, "", ""),
        ({"object"}, '{\\"a\\": 1}', {"a": 1}),
        ({"object"}, '{\\"a\\": \\x}', '{\\"a\\": \\x}'),
        ({"object"}, '{"a": ' + json.dumps(LONG) + "}\n", {"a": LONG}),
        ({"object"}, "{'a': '" + LONG + "'}", {"a": LONG}),
        ({"object", "string"}, '{"a": ' + json.dumps(LONG) + "}", {"a": LONG}),
        ({"object", "string"}, "{" + LONG, "{" + LONG),
        ({"object", "string"}, LONG, LONG),
        ({"object", "string"}, '"quoted"', '"quoted"'),
        ({"integer"}, LONG, LONG),
    ],
)
def test_declared_types(types: set[str], text: str, value: Any) -> None:
    assert json.loads(written(text, types)) == value


def test_without_a_type_the_notation_decides() -> None:
    assert written("42", set()) == '"42"'
    assert written("42", set(), "json") == "42"
    assert written("[True]", set(), "json") == "[true]"
    assert written("Rome", set(), "json") == '"Rome"'
    assert written(" ", set(), "json") == '" "'
    assert typed("x", frozenset()) == '"x"'
    assert parsed(" ") is None
    assert parsed("'Paris'") == '"Paris"'
    for text in ('"foo" OR "bar"', '"foo" "bar"', "'it's'"):
        assert parsed(text) is None
        assert json.loads(typed(text, frozenset(), "json")) == text
    assert parsed("{'k': 'it's'}") == '{"k": "it\'s"}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("\na\n", "a"),
        ("\r\na\r\n", "a"),
        ("\n\na\n\n", "\na\n"),
        ("a", "a"),
        ("", ""),
        ("\n", ""),
        ("\r", "\r"),
        ("a\r", "a\r"),
        ("a\rb\nc", "a\rb\nc"),
    ],
)
def test_one_line_end_is_taken_off_each_side(text: str, value: str) -> None:
    assert json.loads(written(text, {"string"}, trim=True)) == value


@pytest.mark.parametrize("text", ['{"a": "' + LONG, '{"a": "' + LONG + '"} and more', '{"a": oops, "b": "' + LONG])
def test_a_long_object_that_breaks_when_it_has_begun_to_stream(text: str) -> None:
    parts: list[str] = []
    writer = ValueWriter(parts.append, frozenset(("object",)), "string", False)

    def feed() -> None:
        for start in range(0, len(text), 64):
            writer.feed(text[start : start + 64])
        writer.close()

    with pytest.raises(Malformed):
        feed()
    assert "".join(parts).startswith('{"a": ')


ROOT = {"$defs": {"a": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"type": "varchar"}, {"string"}),
        ({"type": "anything"}, set()),
        ({"anyOf": [{"type": "integer"}, {"oneOf": [{"type": "null"}, {"enum": ["a"]}]}]}, {"integer", "null", "string"}),
        ({"enum": [1, 1.5, True, None, [], {}, "a"]}, {"integer", "number", "boolean", "null", "array", "object", "string"}),
        ({"const": 5}, {"integer"}),
        ({"properties": {}}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"description": "?"}, set()),
        ({"$ref": "#/$defs/a"}, {"integer"}),
        ({"$ref": "#/$defs/missing/deeper"}, set()),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"$ref": "https://example.org/schema"}, set()),
        (None, set()),
        ("string", set()),
    ],
)
def test_types_of_a_schema(schema: Any, types: set[str]) -> None:
    assert schema_types(schema, ROOT) == types


def test_a_schema_that_nests_endlessly_is_ignored() -> None:
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(12):
        deep = {"anyOf": [deep]}
    assert schema_types(deep, {}) == set()
    assert json_type({}) == "object"


def test_accepted_forms_of_a_tool() -> None:
    declared = Declared([ToolSpec("a"), {"name": "b", "input_schema": {"properties": {"x": {"type": "int"}}}}, {"name": "c"}])
    assert sorted(declared.schemas) == ["a", "b", "c"]
    assert declared.types("b", "x") == {"integer"}
    assert declared.types("c", "x") == declared.types("unknown", "x") == set()
    assert declared.properties("a") == {}
    assert declared.only() is None
    assert declared.resolve("functions.b") == declared.resolve("ns:b") == declared.resolve("ns/b") == "b"
    assert declared.resolve("d") is None
    assert Declared().resolve("a b") is None
    assert Declared([{"name": "a", "parameters": {"properties": []}}]).properties("a") == {}
    with pytest.raises(ConfigError, match="OpenAI-style"):
        Declared(["a"])  # type: ignore[list-item]  # a wrong tool
    with pytest.raises(ConfigError, match="no name"):
        Declared([{"function": {"parameters": {}}}])
