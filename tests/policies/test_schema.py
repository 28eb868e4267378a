"""JSON Schema: values that fit, values that do not, and schemas that are refused when a policy is loaded."""

from __future__ import annotations

from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships no types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamglot.errors import ConfigError
from streamglot.json.schema import MAX_DEPTH, Schema

TREE = {"$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"}


@pytest.mark.parametrize(
    ("schema", "fits", "fails"),
    [
        (True, [1, None], []),
        (False, [], [1]),
        ({}, [1, "a"], []),
        ({"type": "string"}, ["a"], [1, None, True]),
        ({"type": ["string", "null"]}, ["a", None], [1]),
        ({"type": "string", "nullable": True}, ["a", None], [1]),
        ({"type": "integer"}, [1, 1.0, -3], [1.5, True, "1"]),
        ({"type": "number"}, [1, 1.5], [True, "1"]),
        ({"type": "boolean"}, [True], [1, 0]),
        ({"type": "array"}, [[]], [{}]),
        ({"type": "nonsense"}, [], [1]),
        (
            {"enum": [1, "a", [1], {"a": 1}, None]},
            [1, "a", [1], {"a": 1}, None, 1.0],
            [True, "b", [2], [1, 2], {"a": 2}, {"b": 1}],
        ),
        ({"const": True}, [True], [1, "true"]),
        ({"required": ["a"]}, [{"a": 1}, "no object"], [{}]),
        ({"properties": {"a": {"type": "integer"}}}, [{"a": 1}, {"b": "x"}, 3], [{"a": "x"}]),
        ({"properties": {"a": {}}, "additionalProperties": False}, [{"a": 1}], [{"b": 1}]),
        ({"additionalProperties": {"type": "integer"}}, [{"a": 1}], [{"a": "x"}]),
        (
            {"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False},
            [{"x-a": 1}],
            [{"x-a": "b"}, {"y": 1}],
        ),
        ({"propertyNames": {"pattern": "^[a-z]+$"}}, [{"a": 1}, 3], [{"A": 1}]),
        ({"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 2}, {"b": 1}, 3], [{"a": 1}]),
        ({"minProperties": 1, "maxProperties": 2}, [{"a": 1}], [{}, {"a": 1, "b": 2, "c": 3}]),
        ({"items": {"type": "integer"}}, [[1, 2], [], "x"], [[1, "a"]]),
        ({"prefixItems": [{"type": "string"}], "items": False}, [["a"], []], [[1], ["a", 1]]),
        ({"prefixItems": [{"type": "string"}]}, [["a", 1]], [[1]]),
        ({"contains": {"const": 1}}, [[2, 1], 3], [[2], []]),
        ({"uniqueItems": True}, [[1, 2, "1"], 3], [[1, 1], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]]),
        ({"uniqueItems": False}, [[1, 1]], []),
        ({"minItems": 1, "maxItems": 2}, [[1]], [[], [1, 2, 3]]),
        ({"minLength": 1, "maxLength": 2}, ["é", 12345], ["", "abc"]),
        ({"minimum": 1, "maximum": 3}, [1, 3, "x", True], [0, 4]),
        ({"exclusiveMinimum": 1, "exclusiveMaximum": 3}, [2], [1, 3]),
        ({"multipleOf": 3}, [6, "x"], [7]),
        ({"multipleOf": 0.1}, [0.3, 2], [0.35]),
        ({"pattern": "^a+$"}, ["aa", 3], ["ab"]),
        ({"allOf": [{"type": "string"}, {"minLength": 2}]}, ["ab"], ["a", 1]),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, ["a", 1], [None]),
        ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, [1, 3.5], [4, 1.5]),
        ({"not": {"type": "string"}}, [1], ["a"]),
        ({"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "integer"}}, ["ab", 1], ["a", None]),
        ({"if": {"type": "string"}}, ["a", 1], []),
        ({"title": "t", "description": "d", "format": "email", "default": 1}, ["no mail"], []),
        (TREE, [{"next": {"next": {}}}], [{"next": {"next": 3}}]),
        (
            {"definitions": {"a/b": {"type": "string"}}, "properties": {"x": {"$ref": "#/definitions/a~1b"}}},
            [{"x": "s"}],
            [{"x": 1}],
        ),
        ({"anyOf": [{"type": "string"}], "allOf": [{"$ref": "#/anyOf/0"}]}, ["a"], [1]),
    ],
)
def test_values_and_schemas(schema: Any, fits: list[Any], fails: list[Any]) -> None:
    checked = Schema(schema)
    assert [value for value in fits if checked.fault(value)] == []
    assert [value for value in fails if not checked.fault(value)] == []


def test_faults_say_where_and_why() -> None:
    checked = Schema({"properties": {"a": {"items": {"type": "integer", "maximum": 5}}}})
    assert checked.fault({"a": [1, 9]}) == "$.a[1] is 9, and must be at most 5"
    assert Schema({"anyOf": [{"const": 1}, {"const": 2}]}).fault(3) == "$ fits none of the alternatives: $ is 3, and must be 1"
    assert Schema({"anyOf": []}).fault(3) == "$ fits none of the alternatives: "


def test_a_value_that_is_nested_too_deep_does_not_fit() -> None:
    value: dict[str, Any] = {}
    for _ in range(MAX_DEPTH):
        value = {"next": value}
    assert "is nested more than" in Schema(TREE).fault(value)


@pytest.mark.parametrize(
    ("schema", "rule"),
    [
        ({"unevaluatedProperties": False}, "uses 'unevaluatedProperties', which is not supported"),
        ({"properties": {"a": {"minContains": 1}}}, r"\$\.properties\.a uses 'minContains'"),
        ({"$ref": "http://example.org/schema"}, "only references inside of it"),
        ({"$ref": "#/$defs/none"}, "which is not in it"),
        ({"$ref": "#/allOf/9", "allOf": []}, "which is not in it"),
        ({"items": 3}, "a schema is an object"),
        ({"pattern": "(?=a)"}, "lookahead"),
        ({"anyOf": [{"bad": 1}]}, r"anyOf\[0\] uses 'bad'"),
    ],
)
def test_schemas_that_are_refused(schema: Any, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        Schema(schema)


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 12) | st.sampled_from([0.5, 1.0, 2.5]) | st.text("ab1", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "x1"]), inner, max_size=3),
    max_leaves=6,
)
_flat = st.one_of(
    st.builds(
        lambda kind: {"type": kind}, st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null"])
    ),
    st.builds(
        lambda keyword, number: {keyword: number},
        st.sampled_from(
            "minLength maxLength minItems maxItems minProperties maxProperties minimum maximum exclusiveMinimum exclusiveMaximum".split()
        ),
        st.integers(0, 5),
    ),
    st.builds(lambda values: {"enum": values}, st.lists(_values, min_size=1, max_size=3)),
    st.builds(lambda value: {"const": value}, _values),
    st.builds(lambda names: {"required": names}, st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True)),
    st.sampled_from(
        [True, False, {"uniqueItems": True}, {"multipleOf": 2}, {"pattern": "^a+"}, {"dependentRequired": {"a": ["b"]}}]
    ),
)
_schemas = st.recursive(
    _flat,
    lambda inner: st.one_of(
        st.builds(
            lambda named, patterned, rest: {"properties": named, "patternProperties": patterned, "additionalProperties": rest},
            st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
            st.dictionaries(st.sampled_from(["^x", "b"]), inner, max_size=2),
            inner,
        ),
        st.builds(lambda first, rest: {"prefixItems": first, "items": rest}, st.lists(inner, min_size=1, max_size=2), inner),
        st.builds(lambda keyword, each: {keyword: each}, st.sampled_from("contains not propertyNames items".split()), inner),
        st.builds(
            lambda keyword, each: {keyword: each},
            st.sampled_from("allOf anyOf oneOf".split()),
            st.lists(inner, min_size=1, max_size=3),
        ),
        st.builds(lambda one, two, three: {"if": one, "then": two, "else": three}, inner, inner, inner),
    ),
    max_leaves=5,
)


@given(_schemas, _flat.filter(lambda schema: schema != {"$ref": "#/$defs/a~1b"}), _values)
def test_the_same_values_fit_as_by_the_reference(schema: Any, referred: Any, value: Any) -> None:
    schema = {"$defs": {"a/b": referred}, "allOf": [schema]}
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)
    for strict in (True, False):
        checked = Schema(schema, strict=strict)
        assert checked.unchecked == []
        assert (checked.fault(value) == "") == expected


def test_schemas_of_clients_may_have_more() -> None:
    assert Schema({"type": "object", "unevaluatedProperties": False}, strict=False).fault({}) == ""


def test_the_members_of_the_top_level() -> None:
    checked = Schema(
        {
            "$ref": "#/$defs/o",
            "$defs": {
                "o": {
                    "type": ["object"],
                    "properties": {"a": {"const": 1}},
                    "patternProperties": {"^x": {}},
                    "additionalProperties": False,
                }
            },
        }
    )
    assert (checked.member("a"), checked.member("x1"), checked.member("b")) == ({"const": 1}, True, False)
    assert (checked.allows_type("object"), checked.allows_type("array")) == (True, False)
    array = Schema({"prefixItems": [{"const": 1}], "items": {"const": 2}})
    assert (array.member(0), array.member(1)) == ({"const": 1}, {"const": 2})
    assert Schema(True).member("a") is True
    assert Schema({}).allows_type("null")
