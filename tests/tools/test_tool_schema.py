"""JSON Schema from type hints, and arguments checked against it."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

import streamglot
from streamglot.errors import ConfigError
from streamglot.json.from_types import ArgumentsError, check_value, docstring_of
from streamglot.json.schema import Schema
from streamglot.patterns import expressions
from streamglot.text import model_name
from streamglot.tools.tool import FunctionTool, Tool, arguments_of, as_tool, output_of

pytestmark = pytest.mark.anyio


@dataclasses.dataclass
class Place:
    city: str
    country: str = "FR"


class Point(msgspec.Struct):
    x: float
    y: float = 0.0


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)


def described(
    place: Place,
    point: Point,
    person: Person,
    unit: Literal["c", "f"] = "c",
    days: int | None = None,
    tags: list[str] = ["a"],  # noqa: B006  # a default that is a list
    level: Annotated[int, msgspec.Meta(ge=1, le=9)] = 5,
) -> dict[str, Any]:
    """Tells the weather.

    It may be wrong.

    Args:
        place: Where to look,
            with its country.
        unit (str): Celsius or Fahrenheit.

    Returns:
        the weather
    """
    return {
        "place": [place.city, place.country],
        "point": point,
        "person": person.name,
        "unit": unit,
        "days": days,
        "tags": tags,
        "level": level,
    }


def test_a_schema_is_made_from_type_hints_and_the_docstring() -> None:
    tool = FunctionTool(described)
    assert tool.description == "Tells the weather.\n\nIt may be wrong."
    schema = tool.parameters
    assert (schema["type"], schema["required"], schema["additionalProperties"]) == ("object", ["place", "point", "person"], False)
    assert schema["properties"]["unit"]["enum"] == ["c", "f"]
    assert schema["properties"]["unit"]["description"] == "Celsius or Fahrenheit."
    assert schema["properties"]["place"]["description"] == "Where to look, with its country."
    assert schema["properties"]["days"]["default"] is None
    assert {"Place", "Point"} <= set(schema["$defs"])
    assert "Person" in msgspec.json.encode(schema).decode()


async def test_arguments_become_objects_of_their_types() -> None:
    tool = FunctionTool(described)
    given = {"place": {"city": "Paris"}, "point": {"x": 1}, "person": {"name": "Ada", "age": 3}}
    result = msgspec.json.decode((await tool.run(given)).text)
    assert result["place"] == ["Paris", "FR"]
    assert (result["person"], result["tags"], result["level"]) == ("Ada", ["a"], 5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"place": {"town": "x"}}, "city"),
        ({"unit": "k"}, "unit"),
        ({"level": 10}, "level"),
        ({"person": {"name": "Ada", "age": -1}}, "age"),
        ({"nothing": 1}, "nothing"),
    ],
)
def test_arguments_that_break_the_schema_are_described(change: dict[str, Any], words: str) -> None:
    given = {"place": {"city": "Paris"}, "point": {"x": 1}, "person": {"name": "Ada", "age": 3}, **change}
    with pytest.raises(ArgumentsError, match=words):
        FunctionTool(described).check(given)


def test_a_docstring_in_rest_style_describes_its_parameters() -> None:
    def function(city: str, days: int = 1) -> None:
        """Looks up.

        :param city: where
        :param int days: how long
        """

    assert docstring_of(function) == ("Looks up.", {"city": "where", "days": "how long"})


def test_a_function_that_cannot_be_a_tool_is_refused_with_its_name() -> None:
    def rest(*cities: str) -> None: ...

    def odd(value: complex) -> None: ...

    for function in (rest, odd):
        with pytest.raises(ConfigError, match=function.__name__):
            FunctionTool(function)
    with pytest.raises(ConfigError, match="needs a name"):
        as_tool(lambda: 1)
    with pytest.raises(ConfigError, match="is not a tool"):
        as_tool(5)


def test_the_decorator_names_and_describes() -> None:
    @streamglot.tool(name="double", description="Twice.")
    def function(value: int) -> int:
        return 2 * value

    assert (function.name, function.description, function(4)) == ("double", "Twice.", 8)
    assert model_name("docs.search a!") == "docs__search_a_"


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2, "maxLength": 5},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"enum": ["c", "f"]},
        "kind": {"const": "now"},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "both": {"allOf": [{"type": "string"}, {"minLength": 3}]},
        "list": {"type": "array", "items": {"$ref": "#/$defs/item"}},
        "loop": {"$ref": "#/properties/loop"},
        "never": False,
        "elsewhere": {"$ref": "https://example.com/schema"},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"item": {"type": ["number", "boolean"]}},
}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "the required argument 'city' is missing"),
        ({"city": 5}, "the argument 'city' must be of the type string, not number"),
        ({"city": "x"}, "at least 2"),
        ({"city": "xxxxxx"}, "at most 5"),
        ({"city": "Rome", "days": 0}, "at least 1"),
        ({"city": "Rome", "days": 9}, "at most 7"),
        ({"city": "Rome", "days": True}, "not boolean"),
        ({"city": "Rome", "days": 1.5}, "integer"),
        ({"city": "Rome", "unit": "k"}, 'one of ["c","f"]'),
        ({"city": "Rome", "kind": "then"}, 'must be "now"'),
        ({"city": "Rome", "either": 5}, "string, not number or"),
        ({"city": "Rome", "both": "x"}, "at least 3"),
        ({"city": "Rome", "list": [1, "x"]}, "'list[1]'"),
        ({"city": "Rome", "never": 1}, "not allowed"),
        ({"city": "Rome", "town": 1}, "there is no argument 'town'"),
        ([], "the arguments must be of the type object"),
    ],
)
def test_a_value_that_breaks_a_schema_is_described(value: Any, words: str) -> None:
    with pytest.raises(ArgumentsError) as raised:
        check_value(value, Schema(SCHEMA, strict=False))
    assert words in str(raised.value)


def test_a_value_that_keeps_to_the_schema_passes() -> None:
    check_value(
        {"city": "Rome", "days": 2.0, "list": [1, True], "either": None, "loop": 5, "elsewhere": 1}, Schema(SCHEMA, strict=False)
    )


def test_arguments_are_a_json_object() -> None:
    assert arguments_of("") == {}
    for text in ("[1]", "{"):
        with pytest.raises(ArgumentsError):
            arguments_of(text)


def test_anything_that_a_function_returns_becomes_text() -> None:
    assert output_of(Person(name="Ada", age=3)).text == '{"name":"Ada","age":3}'
    assert output_of({"a": 1 + 2j}).text == '{"a":"(1+2j)"}'
    assert output_of(None).text == ""


def test_the_fault_of_arguments_is_described_for_the_model() -> None:
    @streamglot.tool
    def weather(city: str, days: Literal[1, 2] = 1) -> str:
        return city * days

    for arguments, words in (
        ({}, "the required argument 'city' is missing"),
        ({"town": "Paris"}, "there is no argument 'town'; there are city, days"),
        ({"city": 5}, "'city' must be of the type string"),
        ({"city": "Paris", "days": 3}, r"'days' must be one of \[1,2\]"),
    ):
        with pytest.raises(ArgumentsError, match=words):
            weather.check(arguments)


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        ({"pattern": "^[a-z]+$"}, "A1", "the argument 'x' must match '^[a-z]+$'"),
        ({"minItems": 2}, [1], "the argument 'x' must have at least 2 items"),
        ({"maxItems": 1}, [1, 2], "the argument 'x' must have at most 1 items"),
        ({"uniqueItems": True}, [1, 1.0], "the argument 'x' has an item twice"),
        ({"not": {"const": 3}}, 3, "the argument 'x' must not be 3"),
        ({"exclusiveMinimum": 0}, 0, "the argument 'x' must be above 0"),
        ({"multipleOf": 5}, 7, "the argument 'x' must be a multiple of 5"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, 4, "the argument 'x' fits 2 of the alternatives, and must fit one"),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, 3, "the argument 'x' must be 1 or the argument 'x' must be 2"),
        ({"minProperties": 1}, {}, "the argument 'x' must have at least 1 properties"),
        ({"enum": [1]}, True, "the argument 'x' must be one of [1]"),
        ({"const": {"a": 0}}, {"a": False}, "the argument 'x' must be {\"a\":0}"),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, "the name 'x.ab' must have at most 1 characters"),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "the required argument 'x.b' is missing"),
        ({"contains": {"const": 1}}, [2], "the argument 'x' lacks an item that it must contain"),
        ({"if": {"type": "string"}, "then": {"minLength": 2}}, "a", "the argument 'x' must have at least 2 characters"),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a", 1], "the argument 'x[1]' is not allowed"),
        ({"anyOf": [{"anyOf": [{"const": 1}, {"const": 2}]}, {"const": 2}]}, 3, "'x' must be 1 or the argument 'x' must be 2"),
    ],
)
def test_every_keyword_is_checked_before_a_tool_runs(schema: Any, value: Any, words: str) -> None:
    tool = Tool("probe", parameters={"type": "object", "properties": {"x": schema}})
    with pytest.raises(ArgumentsError) as raised:
        tool.check({"x": value})
    assert words in str(raised.value)
    assert tool.unchecked == []


def test_arguments_whose_names_match_a_pattern_are_allowed() -> None:
    schema = {"type": "object", "patternProperties": {"^opt_": {"type": "integer"}}, "additionalProperties": False}
    tool = Tool("probe", parameters=schema)
    tool.check({"opt_a": 1})
    with pytest.raises(ArgumentsError, match="'opt_a' must be of the type integer, not string"):
        tool.check({"opt_a": "x"})
    with pytest.raises(ArgumentsError, match=r"there is no argument 'other'; there are \^opt_"):
        tool.check({"other": 1})


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"pattern": "^(?!a)"}, "negative lookahead"),
        ({"pattern": "("}, "no `)`"),
        ({"pattern": 5}, "'pattern'"),
        ({"minLength": "x"}, "'minLength'"),
        ({"required": "x"}, "'required'"),
        ({"required": [5]}, "'required'"),
        ({"type": "any"}, "'type'"),
        ({"type": [{}]}, "'type'"),
        ({"enum": 5}, "'enum'"),
        ({"anyOf": []}, "'anyOf'"),
        ({"anyOf": {"type": "string"}}, "'anyOf'"),
        ({"properties": []}, "'properties'"),
        ({"items": [{"type": "string"}]}, "a schema is an object"),
        ({"multipleOf": 0}, "'multipleOf'"),
        ({"exclusiveMinimum": True}, "'exclusiveMinimum'"),
        ({"$ref": "https://example.com/schema"}, "only references inside of it"),
        ({"$ref": "#/$defs/none"}, "which is not in it"),
        ({"$ref": "#anchor"}, "which is not in it"),
        ({"unevaluatedProperties": False}, "not supported"),
        ({"patternProperties": {"(?=a)": False}, "additionalProperties": False}, "lookahead"),
        ("text", "a schema is an object"),
    ],
)
def test_what_cannot_be_checked_is_passed_over_and_told(schema: Any, reason: str) -> None:
    tool = Tool("probe", parameters={"type": "object", "properties": {"x": schema, "y": {"type": "integer"}}})
    tool.check({"x": [{"a": "value"}]})
    assert [reason in told for told in tool.unchecked] == [True]
    with pytest.raises(ArgumentsError, match="'y'"):  # the rest is checked
        tool.check({"y": "one"})


def test_without_re2_patterns_are_passed_over_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    expressions.engine.cache_clear()
    expressions._plain.cache_clear()
    try:
        tool = Tool("probe", parameters={"properties": {"x": {"type": "string", "pattern": "^only without re2$"}}})
        tool.check({"x": "anything"})
        assert len(tool.unchecked) == 1
        assert "streamglot[policies]" in tool.unchecked[0]
        with pytest.raises(ArgumentsError, match="'x' must be of the type string"):
            tool.check({"x": 5})
    finally:
        expressions.engine.cache_clear()


def test_a_pattern_never_backtracks() -> None:
    tool = Tool("probe", parameters={"properties": {"x": {"pattern": "^(a+)+$"}}})
    with pytest.raises(ArgumentsError, match="must match"):
        tool.check({"x": "a" * 50_000 + "!"})


def test_references_that_meet_again_and_again_cost_no_more_than_the_schema() -> None:
    levels = {f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}, {"$ref": f"#/$defs/l{n + 1}"}]} for n in range(60)}
    schema = {"$defs": {**levels, "l60": {"type": "string"}}, "properties": {"x": {"$ref": "#/$defs/l0"}}}
    tool = Tool("probe", parameters=schema)
    tool.check({"x": "text"})
    with pytest.raises(ArgumentsError, match="'x' must be of the type string, not number"):
        tool.check({"x": 1})


def test_numbers_beyond_the_range_of_floats() -> None:
    tool = Tool("probe", parameters={"properties": {"x": {"type": "integer", "multipleOf": 0.5, "minimum": 1}}})
    tool.check({"x": 10**400})
