"""JSON Schema, as far as tools and structured output use it: draft 2020-12 without remote references.

``Schema`` refuses keywords that it does not know when it is made, so that it never leaves a keyword unchecked without saying so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import msgspec

from ..errors import ConfigError, excerpt
from ..json_types import JsonObject, JsonValue, as_mutable
from ..patterns.expressions import occurs

MAX_DEPTH: Final = 128
"""Nesting of a value, with the references followed on the way. Real values are not nested deeper; a schema that refers to
itself is."""
_ANNOTATIONS: Final = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "format",
        "contentEncoding",
        "contentMediaType",
        "$schema",
        "$id",
        "$comment",
        "$defs",
        "definitions",
        "$anchor",
        "discriminator",
        "nullable",
    ]
)
_OBJECT: Final = ("properties", "patternProperties", "additionalProperties")
_ARRAY: Final = ("prefixItems", "items")
_TYPES: Final[dict[str, Callable[[JsonValue], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and float(value).is_integer(),
    "number": lambda value: _is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}

_Types: TypeAlias = type | tuple[type, ...]
_Size: TypeAlias = Callable[[JsonValue], JsonValue]
_Holds: TypeAlias = Callable[[JsonValue, JsonValue], bool]


class Schema:
    """``fault`` says what is wrong with a value; the empty text if nothing is. Without ``strict``, unknown keywords are passed
    over: for schemas that clients send."""

    def __init__(self, schema: Mapping[str, JsonValue] | bool, *, strict: bool = True) -> None:
        self.root: JsonValue = as_mutable(schema)
        _check(self.root, self.root, "$", 0, strict)

    def fault(self, value: object) -> str:
        return self.fault_under(self.root, value, "$")

    def fault_under(self, schema: JsonValue, value: JsonValue, at: str, depth: int = 0) -> str:
        """What is wrong with a value under one of the schemas inside this one."""
        if schema is True or schema == {}:
            return ""
        if schema is False:
            return f"{at} is not allowed"
        if depth > MAX_DEPTH:
            return f"{at} is nested more than {MAX_DEPTH} times"
        for keyword, rule in schema.items():
            check = _KEYWORDS.get(keyword)
            fault = "" if check is None else check(_Case(self, schema, rule, value, at, depth + 1))
            if fault:
                return fault
        return ""

    def member(self, key: str | int) -> JsonValue:
        """The schema of a member of the top-level object or array; True if any value may stand there."""
        schema = self._resolved()
        if isinstance(key, int):
            first = schema.get("prefixItems", [])
            return first[key] if key < len(first) else schema.get("items", True)
        if key in schema.get("properties", {}):
            return schema["properties"][key]
        if any(occurs(pattern, key) for pattern in schema.get("patternProperties", {})):
            return True
        return schema.get("additionalProperties", True)

    def allows_type(self, name: str) -> bool:
        """Whether the top-level value may be of this type."""
        types = self._resolved().get("type")
        return types is None or name in ([types] if isinstance(types, str) else types)

    def _resolved(self) -> JsonObject:
        schema, followed = self.root, 0
        while isinstance(schema, dict) and "$ref" in schema and followed < MAX_DEPTH:
            schema, followed = _target(self.root, schema["$ref"]), followed + 1
        return schema if isinstance(schema, dict) else {}


class _Case(NamedTuple):
    """A keyword's value (``rule``) in its schema, and the value that is checked."""

    own: Schema
    schema: JsonObject
    rule: JsonValue
    value: JsonValue
    at: str
    depth: int

    def fault(self, schema: object, value: object, at: str | None = None) -> str:
        return self.own.fault_under(schema, value, self.at if at is None else at, self.depth)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _target(root: JsonValue, reference: str) -> JsonValue:
    found = root
    for name in reference.removeprefix("#").split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        found = found[int(name)] if isinstance(found, list) else found[name]
    return found


def _check(schema: object, root: object, at: str, depth: int, strict: bool) -> None:
    """Raises ConfigError for what cannot be checked."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        raise ConfigError(f"the JSON Schema at {at} is {excerpt(schema)}: a schema is an object, or true, or false")
    for keyword, rule in schema.items():
        if strict and keyword not in _KEYWORDS and keyword not in _ANNOTATIONS and keyword not in ("then", "else"):
            raise ConfigError(f"the JSON Schema at {at} uses {keyword!r}, which is not supported; leave it out")
        if keyword == "$ref":
            _check_reference(rule, root, at)
        if keyword == "pattern":
            occurs(rule, "")
        for place, inner in _inner(keyword, rule):
            _check(inner, root, f"{at}.{keyword}{place}", depth + 1, strict)


def _check_reference(reference: JsonValue, root: JsonValue, at: str) -> None:
    if not str(reference).startswith("#"):
        raise ConfigError(
            f"the JSON Schema at {at} refers to {excerpt(reference)}; only references inside of it (#/…) are supported"
        )
    try:
        _target(root, reference)
    except (KeyError, IndexError, ValueError, TypeError):
        raise ConfigError(f"the JSON Schema at {at} refers to {excerpt(reference)}, which is not in it") from None


def _inner(keyword: str, rule: object) -> list[tuple[str, JsonValue]]:
    """The schemas inside a keyword."""
    if keyword in ("properties", "patternProperties", "$defs", "definitions") and isinstance(rule, dict):
        return [(f".{name}", inner) for name, inner in rule.items()]
    if keyword in ("allOf", "anyOf", "oneOf", "prefixItems") and isinstance(rule, list):
        return [(f"[{number}]", inner) for number, inner in enumerate(rule)]
    if keyword in ("items", "additionalProperties", "propertyNames", "contains", "not", "if", "then", "else"):
        return [("", rule)]
    return []


# --- keywords


def _type(case: _Case) -> str:
    names: Sequence[str] = [case.rule] if isinstance(case.rule, str) else case.rule
    if case.value is None and case.schema.get("nullable") is True:
        return ""
    if any(name in _TYPES and _TYPES[name](case.value) for name in names):
        return ""
    return f"{case.at} is {excerpt(case.value)}, and must be of type {' or '.join(names)}"


def _enum(case: _Case) -> str:
    if any(_same(case.value, option) for option in case.rule):
        return ""
    return f"{case.at} is {excerpt(case.value)}, and must be one of {excerpt(case.rule)}"


def _const(case: _Case) -> str:
    return "" if _same(case.value, case.rule) else f"{case.at} is {excerpt(case.value)}, and must be {excerpt(case.rule)}"


def _same(one: object, other: object) -> bool:
    """Equality of JSON: true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other)


def _object(keyword: str, case: _Case) -> str:
    """``properties`` and its relatives together, for the first of them that the schema has."""
    schema, value = case.schema, case.value
    if not isinstance(value, dict) or next(name for name in _OBJECT if name in schema) != keyword:
        return ""
    named, patterned = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, inner in value.items():
        schemas = [named[name]] if name in named else []
        schemas += [of_pattern for pattern, of_pattern in patterned.items() if occurs(pattern, name)]
        if not schemas and schema.get("additionalProperties", True) is False:
            return f"{case.at} has the property {excerpt(name)}, which is not allowed"
        for each in schemas or [schema.get("additionalProperties", True)]:
            fault = case.fault(each, inner, f"{case.at}.{name}")
            if fault:
                return fault
    return ""


def _array(keyword: str, case: _Case) -> str:
    """``prefixItems`` and ``items`` together, for the first of them that the schema has."""
    schema, value = case.schema, case.value
    if not isinstance(value, list) or next(name for name in _ARRAY if name in schema) != keyword:
        return ""
    first, rest = schema.get("prefixItems", []), schema.get("items", True)
    for number, inner in enumerate(value):
        fault = case.fault(first[number] if number < len(first) else rest, inner, f"{case.at}[{number}]")
        if fault:
            return fault
    return ""


def _required(case: _Case) -> str:
    missing = [name for name in case.rule if name not in case.value] if isinstance(case.value, dict) else []
    return f"{case.at} lacks the property {excerpt(missing[0])}" if missing else ""


def _dependent(case: _Case) -> str:
    there = [others for name, others in case.rule.items() if isinstance(case.value, dict) and name in case.value]
    return next((fault for fault in (_required(case._replace(rule=others)) for others in there) if fault), "")


def _property_names(case: _Case) -> str:
    names = case.value if isinstance(case.value, dict) else ()
    return next((fault for name in names if (fault := case.fault(case.rule, name, f"{case.at}: the name {name}"))), "")


def _contains(case: _Case) -> str:
    found = not isinstance(case.value, list) or any(not case.fault(case.rule, inner) for inner in case.value)
    return "" if found else f"{case.at} lacks an item that it must contain"


def _unique(case: _Case) -> str:
    if not case.rule or not isinstance(case.value, list):
        return ""
    written = {msgspec.json.encode(inner, order="deterministic") for inner in case.value}
    return "" if len(written) == len(case.value) else f"{case.at} has an item twice"


def _multiple(case: _Case) -> str:
    value, rule = case.value, case.rule
    if not _is_number(value):
        return ""
    if isinstance(value, int) and isinstance(rule, int):
        whole = value % rule == 0
    else:
        whole = abs(value / rule - round(value / rule)) < 1e-9
    return "" if whole else f"{case.at} is {excerpt(value)}, and must be a multiple of {rule}"


def _pattern(case: _Case) -> str:
    if not isinstance(case.value, str) or occurs(case.rule, case.value):
        return ""
    return f"{case.at} is {excerpt(case.value)}, and must match {excerpt(case.rule)}"


def _all_of(case: _Case) -> str:
    return next((fault for each in case.rule if (fault := case.fault(each, case.value))), "")


def _any_of(case: _Case) -> str:
    faults = [case.fault(each, case.value) for each in case.rule]
    return "" if "" in faults else f"{case.at} fits none of the alternatives: {'; '.join(faults[:1])}"


def _one_of(case: _Case) -> str:
    fitting = [case.fault(each, case.value) for each in case.rule].count("")
    return "" if fitting == 1 else f"{case.at} fits {fitting} of the alternatives, and must fit one"


def _not(case: _Case) -> str:
    return "" if case.fault(case.rule, case.value) else f"{case.at} is {excerpt(case.value)}, which is excluded"


def _if(case: _Case) -> str:
    branch = "else" if case.fault(case.rule, case.value) else "then"
    return case.fault(case.schema.get(branch, True), case.value)


def _measured(case: _Case, kind: _Types, size: _Size, holds: _Holds, words: str) -> str:
    if not isinstance(case.value, kind) or isinstance(case.value, bool) or holds(size(case.value), case.rule):
        return ""
    return f"{case.at} is {excerpt(case.value)}, and must {words} {case.rule}"


def _measure(kind: _Types, size: _Size, holds: _Holds, words: str) -> Callable[[_Case], str]:
    return partial(_measured, kind=kind, size=size, holds=holds, words=words)


def _least(size: JsonValue, rule: JsonValue) -> bool:
    return bool(size >= rule)


def _at_most(size: JsonValue, rule: JsonValue) -> bool:
    return bool(size <= rule)


_NUMBER: Final = (int, float)
_KEYWORDS: Final[dict[str, Callable[[_Case], str]]] = {
    "$ref": lambda case: case.fault(_target(case.own.root, case.rule), case.value),
    "type": _type,
    "enum": _enum,
    "const": _const,
    "required": _required,
    **{keyword: partial(_object, keyword) for keyword in _OBJECT},
    **{keyword: partial(_array, keyword) for keyword in _ARRAY},
    "dependentRequired": _dependent,
    "propertyNames": _property_names,
    "contains": _contains,
    "uniqueItems": _unique,
    "minProperties": _measure(dict, len, _least, "have at least this many properties:"),
    "maxProperties": _measure(dict, len, _at_most, "have at most this many properties:"),
    "minItems": _measure(list, len, _least, "have at least this many items:"),
    "maxItems": _measure(list, len, _at_most, "have at most this many items:"),
    "minLength": _measure(str, len, _least, "have at least this many characters:"),
    "maxLength": _measure(str, len, _at_most, "have at most this many characters:"),
    "minimum": _measure(_NUMBER, lambda value: value, _least, "be at least"),
    "maximum": _measure(_NUMBER, lambda value: value, _at_most, "be at most"),
    "exclusiveMinimum": _measure(_NUMBER, lambda value: value, lambda value, rule: value > rule, "be above"),
    "exclusiveMaximum": _measure(_NUMBER, lambda value: value, lambda value, rule: value < rule, "be below"),
    "multipleOf": _multiple,
    "pattern": _pattern,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
}
