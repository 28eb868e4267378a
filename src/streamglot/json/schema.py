"""JSON Schema, as far as tools and structured output use it (draft 2020-12), and paths into JSON values.

Theory of operation. A schema is read once: its keywords are brought into one order, their values are tested, and every reference
into the same document is resolved, so that the check itself meets well-formed keywords only. Nothing is fetched, nothing becomes
code, and patterns are matched by RE2, in linear time. A reference is checked once for each value that it is applied to, so
references that meet again and again, or that lead back to themselves, cost no more than the schema times the value.

A schema of the operator (``strict``) is refused when it has anything that would not be checked. One that a client or a server sent
is used as far as it can be: ``unchecked`` tells what is left out of the check.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final, TypeAlias
from urllib.parse import unquote

from msgspec import UNSET, Struct, structs

from ..errors import ConfigError, excerpt
from ..json_types import JsonObject, JsonValue, as_mutable
from ..patterns.expressions import occurs

MAX_DEPTH: Final = 128
"""Nesting of a schema, and of a value with the references followed on the way. Real values are not nested deeper; a schema that
refers to itself is."""
MAX_PATH_DEPTH: Final = 128
"""Levels that ``..`` searches. Real arguments are not nested deeper."""
MAX_ALTERNATIVES: Final = 16
"""Faults of alternatives that are told, for one value. A model needs no more to correct itself."""
_ANNOTATION: Final = re.compile(
    r"title|description|default|examples|deprecated|readOnly|writeOnly|format|content(Encoding|MediaType)|"
    r"\$(schema|id|comment|anchor)|discriminator"
)
_TYPES: Final[dict[str, Callable[[JsonValue], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
    ),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
}

Key: TypeAlias = str | int


class Fault(Struct, frozen=True):
    """What is wrong with a value: the keyword that it breaks with the keyword's value (``rule``), the place of the value, and
    ``words``, which follow the name of the place. ``inner`` has the faults of alternatives."""

    keyword: str
    rule: JsonValue
    value: JsonValue
    words: str
    place: tuple[Key, ...] = ()
    inner: tuple[Fault, ...] = ()

    def under(self, *keys: Key) -> Fault:
        """The same fault, seen from a value around it."""
        return structs.replace(self, place=(*keys, *self.place), inner=tuple(one.under(*keys) for one in self.inner))

    def __str__(self) -> str:
        at = f"${written_place(self.place)}"
        if self.keyword == "anyOf":
            return f"{at} {self.words}: {self.inner[0] if self.inner else ''}"
        if self.keyword == "propertyNames":
            return f"{at}: the name {self.value} {self.words}"
        shown = f"is {excerpt(self.value)}, " if self.words.startswith(("must", "which")) else ""
        return f"{at} {shown}{'and ' if shown and self.words.startswith('must') else ''}{self.words}"


def written_place(place: tuple[Key, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)


def kind_of(value: object) -> str:
    """The type of a value, in the words of JSON Schema."""
    return next((name for name, fits in _TYPES.items() if name != "integer" and fits(value)), "unknown")


class Schema:
    """``fault`` describes what is wrong with a value; the empty text if nothing is. ``find`` gives it in its parts."""

    def __init__(self, schema: Mapping[str, JsonValue] | bool, *, strict: bool = True) -> None:
        self.unchecked: list[str] = []
        self._strict = strict
        self._document: JsonValue = as_mutable(schema) if strict else schema
        self._targets: dict[str, JsonValue] = {}
        self._pending: list[str] = []
        self.root: JsonValue = self._read(self._document, "$", 0)
        while self._pending:
            reference = self._pending.pop()
            self._targets[reference] = self._read(_target(self._document, reference), reference, 0)

    def fault(self, value: object) -> str:
        found = self.find(value)
        return "" if found is None else str(found)

    def find(self, value: object) -> Fault | None:
        return _Check(self._targets).fault(self.root, value, 0)

    def fault_of_member(self, key: Key, value: object) -> str:
        """What is wrong with a member of the top-level object or array, which is not complete yet."""
        found = _Check(self._targets).fault(self.member(key), value, 0)
        return "" if found is None else str(found.under(key))

    def member(self, key: Key) -> JsonValue:
        """The schema of a member of the top-level object or array; True if any value may stand there."""
        schema = self._resolved()
        if isinstance(key, int):
            first = schema.get("prefixItems", ())
            return first[key] if key < len(first) else schema.get("items", True)
        if key in schema.get("properties", ()):
            return schema["properties"][key]
        if any(occurs(pattern, key) for pattern in schema.get("patternProperties", ())):
            return True
        return schema.get("additionalProperties", True)

    def allows_type(self, name: str) -> bool:
        """Whether the top-level value may be of this type."""
        types = self._resolved().get("type")
        return types is None or name in types

    def _resolved(self) -> JsonObject:
        schema, followed = self.root, 0
        while isinstance(schema, dict) and "$ref" in schema and followed < MAX_DEPTH:
            schema, followed = self._targets[schema["$ref"]], followed + 1
        return schema if isinstance(schema, dict) else {}

    # --- read once

    def _read(self, schema: object, at: str, depth: int) -> JsonValue:
        """The schema with the keywords that are checked, in the order of ``_KEYWORDS``."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            self._leave_out(f"the JSON Schema at {at} is {excerpt(schema)}: a schema is an object, or true, or false")
            return True
        read: JsonObject = {}
        for keyword in sorted(schema.keys() & _KEYWORDS.keys(), key=_ORDER.__getitem__):
            rule = self._read_rule(keyword, _KEYWORDS[keyword][0], schema[keyword], at, depth)
            if rule is not UNSET:
                read[keyword] = rule
        patterns = schema.get("patternProperties")
        if isinstance(patterns, dict) and len(patterns) > len(read["patternProperties"]):
            read.pop("additionalProperties", None)  # a pattern that cannot be tested may allow any name
        for keyword in schema.keys() - _KEYWORDS.keys():
            if not _ANNOTATION.fullmatch(keyword) and (self._strict or not keyword.startswith("x-")):
                self._leave_out(f"the JSON Schema at {at} uses {keyword!r}, which is not supported; leave it out")
        return read

    def _read_rule(self, keyword: str, form: str, rule: JsonValue, at: str, depth: int) -> JsonValue:
        """The value of a keyword, with the schemas inside read; UNSET where it cannot be checked."""
        inside = f"{at}.{keyword}"
        match form, rule:
            case "schema", _:
                return self._read(rule, inside, depth + 1)
            case "schemas", list() if rule or self._strict:
                return [self._read(inner, f"{inside}[{number}]", depth + 1) for number, inner in enumerate(rule)]
            case "named", dict():
                patterned = keyword == "patternProperties"
                return {
                    name: self._read(inner, f"{inside}.{name}", depth + 1)
                    for name, inner in rule.items()
                    if not patterned or self._is_pattern(name, inside)
                }
            case "definitions", dict():
                for name, inner in rule.items() if self._strict else ():  # others are read where something refers to them
                    self._read(inner, f"{inside}.{name}", depth + 1)
                return UNSET
            case "reference", str():
                return self._read_reference(rule, at)
            case "types", str() | list():
                types = [rule] if isinstance(rule, str) else rule
                if types and _are_names(types) and (self._strict or all(name in _TYPES for name in types)):
                    return types
            case "pattern", str():
                return rule if self._is_pattern(rule, at) else UNSET
            case _:
                if form == "value" or (form in _FORMS and _FORMS[form](rule)):
                    return rule
        self._leave_out(f"the JSON Schema at {at} has {excerpt(rule)} as {keyword!r}, which is not allowed there")
        return UNSET

    def _read_reference(self, reference: str, at: str) -> JsonValue:
        if reference not in self._targets:
            if not reference.startswith("#"):
                self._leave_out(
                    f"the JSON Schema at {at} refers to {excerpt(reference)}; only references inside of it (#/…) are supported"
                )
                return UNSET
            try:
                _target(self._document, reference)
            except (KeyError, IndexError, ValueError, TypeError):
                self._leave_out(f"the JSON Schema at {at} refers to {excerpt(reference)}, which is not in it")
                return UNSET
            self._targets[reference] = True
            self._pending.append(reference)
        return reference

    def _is_pattern(self, pattern: str, at: str) -> bool:
        try:
            occurs(pattern, "")
        except ConfigError as error:
            if self._strict:
                raise
            self.unchecked.append(f"the JSON Schema at {at} has the pattern {excerpt(pattern)}: {error}")
            return False
        return True

    def _leave_out(self, reason: str) -> None:
        if self._strict:
            raise ConfigError(reason)
        self.unchecked.append(reason)


def _target(document: JsonValue, reference: str) -> JsonValue:
    """The schema behind a JSON Pointer."""
    first, *names = unquote(reference.removeprefix("#")).split("/")
    if first:
        raise KeyError(first)  # the name of an anchor
    found = document
    for name in names:
        key = name.replace("~1", "/").replace("~0", "~")
        found = found[int(key) if isinstance(found, list) and key.isdecimal() else key]
    return found


# --- keywords


class _Check:
    """One check of one value. ``_seen`` has the result for each reference and value; while that is sought, no fault."""

    __slots__ = ("_seen", "_targets")

    def __init__(self, targets: Mapping[str, JsonValue]) -> None:
        self._targets = targets
        self._seen: dict[tuple[str, int], Fault | None] = {}

    def fault(self, schema: JsonValue, value: JsonValue, depth: int) -> Fault | None:
        if schema is True:
            return None
        if schema is False:
            return Fault("", False, value, "is not allowed")
        if depth > MAX_DEPTH:
            return Fault("", MAX_DEPTH, value, f"is nested more than {MAX_DEPTH} times")
        for keyword, rule in schema.items():
            check = _KEYWORDS[keyword][1]
            if check is not None and (found := check(self, schema, rule, value, depth + 1)) is not None:
                return found
        return None

    def behind(self, reference: str, value: JsonValue, depth: int) -> Fault | None:
        key = (reference, id(value))
        if key not in self._seen:
            self._seen[key] = None
            self._seen[key] = self.fault(self._targets[reference], value, depth)
        return self._seen[key]


_Keyword: TypeAlias = Callable[[_Check, JsonObject, JsonValue, JsonValue, int], Fault | None]


def _type(_check: _Check, schema: JsonObject, rule: JsonValue, value: JsonValue, _depth: int) -> Fault | None:
    for name in rule:
        if name in _TYPES and _TYPES[name](value):
            return None
    if value is None and schema.get("nullable") is True:
        return None
    return Fault("type", rule, value, f"must be of type {' or '.join(rule)}")


def _enum(_check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, _depth: int) -> Fault | None:
    if any(_same(value, option) for option in rule):
        return None
    return Fault("enum", rule, value, f"must be one of {excerpt(rule)}")


def _const(_check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, _depth: int) -> Fault | None:
    return None if _same(value, rule) else Fault("const", rule, value, f"must be {excerpt(rule)}")


def _same(one: object, other: object) -> bool:
    """Equality of JSON: true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    return bool(one == other)


def _additional(check: _Check, schema: JsonObject, rule: JsonValue, value: JsonValue, depth: int) -> Fault | None:
    if rule is True or not isinstance(value, dict):
        return None
    named, patterned = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, inner in value.items():
        if name not in named and not any(occurs(pattern, name) for pattern in patterned):
            if rule is False:
                words = f"has the property {excerpt(name)}, which is not allowed"
                return Fault("additionalProperties", [*named, *patterned], name, words)
            if (found := check.fault(rule, inner, depth)) is not None:
                return found.under(name)
    return None


def _required(_check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, _depth: int) -> Fault | None:
    if isinstance(value, dict):
        for name in rule:
            if name not in value:
                return Fault("required", rule, name, f"lacks the property {excerpt(name)}")
    return None


def _dependent(check: _Check, schema: JsonObject, rule: JsonValue, value: JsonValue, depth: int) -> Fault | None:
    there = [others for name, others in rule.items() if name in value] if isinstance(value, dict) else []
    return next((found for others in there if (found := _required(check, schema, others, value, depth))), None)


def _properties(check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, depth: int) -> Fault | None:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in rule and (found := check.fault(rule[name], inner, depth)) is not None:
                return found.under(name)
    return None


def _pattern_properties(check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, depth: int) -> Fault | None:
    for name, inner in value.items() if isinstance(value, dict) else ():
        for pattern, schema in rule.items():
            if occurs(pattern, name) and (found := check.fault(schema, inner, depth)) is not None:
                return found.under(name)
    return None


def _property_names(check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, depth: int) -> Fault | None:
    for name in value if isinstance(value, dict) else ():
        if (found := check.fault(rule, name, depth)) is not None:
            return Fault("propertyNames", rule, name, found.words)
    return None


def _items(check: _Check, schema: JsonObject, rule: JsonValue, value: JsonValue, depth: int) -> Fault | None:
    if isinstance(value, list):
        first = len(schema.get("prefixItems", ()))
        for number in range(first, len(value)):
            if (found := check.fault(rule, value[number], depth)) is not None:
                return found.under(number)
    return None


def _prefix_items(check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, depth: int) -> Fault | None:
    for number, (schema, inner) in enumerate(zip(rule, value, strict=False) if isinstance(value, list) else ()):
        if (found := check.fault(schema, inner, depth)) is not None:
            return found.under(number)
    return None


def _contains(check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, depth: int) -> Fault | None:
    if not isinstance(value, list) or any(check.fault(rule, inner, depth) is None for inner in value):
        return None
    return Fault("contains", rule, value, "lacks an item that it must contain")


def _unique(_check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, _depth: int) -> Fault | None:
    if not rule or not isinstance(value, list) or len(set(map(_hashable, value))) == len(value):
        return None
    return Fault("uniqueItems", rule, value, "has an item twice")


def _hashable(value: JsonValue) -> object:
    """Equal for values that are the same in JSON, and for no others."""
    if isinstance(value, dict):
        return frozenset((name, _hashable(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return ("list", *map(_hashable, value))
    return ("bool", value) if isinstance(value, bool) else value


def _multiple(_check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, _depth: int) -> Fault | None:
    if not _TYPES["number"](value):
        return None
    if isinstance(value, int) and isinstance(rule, int):
        whole = value % rule == 0
    else:
        try:
            whole = abs(value / rule - round(value / rule)) < 1e-9
        except (OverflowError, ValueError):  # a number beyond the range of floats
            whole = True
    return None if whole else Fault("multipleOf", rule, value, f"must be a multiple of {rule}")


def _pattern(_check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, _depth: int) -> Fault | None:
    if not isinstance(value, str) or occurs(rule, value):
        return None
    return Fault("pattern", rule, value, f"must match {excerpt(rule)}")


def _all_of(check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, depth: int) -> Fault | None:
    return next((found for each in rule if (found := check.fault(each, value, depth))), None)


def _any_of(check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, depth: int) -> Fault | None:
    faults: list[Fault] = []
    for each in rule:
        found = check.fault(each, value, depth)
        if found is None:
            return None
        faults.append(found)
    return Fault("anyOf", rule, value, "fits none of the alternatives", inner=_leaves(faults))


def _one_of(check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, depth: int) -> Fault | None:
    faults = [found for each in rule if (found := check.fault(each, value, depth))]
    fitting = len(rule) - len(faults)
    if fitting == 1:
        return None
    words = f"fits {fitting} of the alternatives, and must fit one"
    return Fault("oneOf", rule, value, words, inner=() if fitting else _leaves(faults))


def _leaves(faults: list[Fault]) -> tuple[Fault, ...]:
    """Of alternatives inside alternatives, those without others inside."""
    leaves = (leaf for fault in faults for leaf in (fault.inner or (fault,)))
    return tuple(islice(leaves, MAX_ALTERNATIVES))


def _not(check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, depth: int) -> Fault | None:
    return None if check.fault(rule, value, depth) else Fault("not", rule, value, "which is excluded")


def _if(check: _Check, schema: JsonObject, rule: JsonValue, value: JsonValue, depth: int) -> Fault | None:
    branch = "then" if check.fault(rule, value, depth) is None else "else"
    return check.fault(schema.get(branch, True), value, depth)


def _bound(keyword: str, kind: str, holds: Callable[[JsonValue, JsonValue], object], words: str) -> _Keyword:
    """The check of a number, or of the length of anything else."""
    fits, of_numbers = _TYPES[kind], kind == "number"

    def check(_check: _Check, _schema: JsonObject, rule: JsonValue, value: JsonValue, _depth: int) -> Fault | None:
        if not fits(value) or holds(value if of_numbers else len(value), rule):
            return None
        return Fault(keyword, rule, value, f"must {words.format(rule)}")

    return check


def _is_number(rule: JsonValue) -> bool:
    return isinstance(rule, (int, float)) and not isinstance(rule, bool)


def _are_names(rule: JsonValue) -> bool:
    return isinstance(rule, list) and all(isinstance(name, str) for name in rule)


_FORMS: Final[dict[str, Callable[[JsonValue], bool]]] = {
    "options": lambda rule: isinstance(rule, list),
    "names": _are_names,
    "dependent": lambda rule: isinstance(rule, dict) and all(map(_are_names, rule.values())),
    "flag": lambda rule: isinstance(rule, bool),
    "number": _is_number,
    "above zero": lambda rule: _is_number(rule) and rule > 0,
}
"""What the values of keywords must be, where they have no schemas inside."""
_BOUNDS: Final[dict[str, tuple[str, Callable[[JsonValue, JsonValue], object], str]]] = {
    "minProperties": ("object", operator.ge, "have at least {} properties"),
    "maxProperties": ("object", operator.le, "have at most {} properties"),
    "minItems": ("array", operator.ge, "have at least {} items"),
    "maxItems": ("array", operator.le, "have at most {} items"),
    "minLength": ("string", operator.ge, "have at least {} characters"),
    "maxLength": ("string", operator.le, "have at most {} characters"),
    "minimum": ("number", operator.ge, "be at least {}"),
    "maximum": ("number", operator.le, "be at most {}"),
    "exclusiveMinimum": ("number", operator.gt, "be above {}"),
    "exclusiveMaximum": ("number", operator.lt, "be below {}"),
}
_KEYWORDS: Final[dict[str, tuple[str, _Keyword | None]]] = {
    "$defs": ("definitions", None),
    "definitions": ("definitions", None),
    "$ref": ("reference", lambda check, schema, rule, value, depth: check.behind(rule, value, depth)),
    "nullable": ("flag", None),
    "type": ("types", _type),
    "enum": ("options", _enum),
    "const": ("value", _const),
    "additionalProperties": ("schema", _additional),  # first of its kind: a wrong name is often a missing one too
    "required": ("names", _required),
    "properties": ("named", _properties),
    "patternProperties": ("named", _pattern_properties),
    "dependentRequired": ("dependent", _dependent),
    "propertyNames": ("schema", _property_names),
    "prefixItems": ("schemas", _prefix_items),
    "items": ("schema", _items),
    "contains": ("schema", _contains),
    "uniqueItems": ("flag", _unique),
    **{keyword: ("number", _bound(keyword, *row)) for keyword, row in _BOUNDS.items()},
    "multipleOf": ("above zero", _multiple),
    "pattern": ("pattern", _pattern),
    "allOf": ("schemas", _all_of),
    "anyOf": ("schemas", _any_of),
    "oneOf": ("schemas", _one_of),
    "not": ("schema", _not),
    "then": ("schema", None),
    "else": ("schema", None),
    "if": ("schema", _if),
}
"""The form of each keyword's value, and its check, in the order of the checks."""
_ORDER: Final = {keyword: number for number, keyword in enumerate(_KEYWORDS)}


# --- paths: the part of JSONPath that rules on arguments need


Step: TypeAlias = tuple[bool, str | int | None]
"""Whether the step is at any depth, and the key; None for every key."""
_STEP: Final = re.compile(r"""(\.\.|\.)(\*|[^.\[\]'"*]+)|(\.\.)?\[(?:(\*)|(-?\d+)|'([^']*)'|"([^"]*)")\]""")


def parse_path(path: str) -> tuple[Step, ...]:
    """Steps of ``$.a.b``, ``$['a b']``, ``$.list[0]``, ``$.list[*].name``, ``$.*`` and ``$..name`` (at any depth)."""
    steps: list[Step] = []
    at = 1
    while path.startswith("$") and at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            break
        dots, name, deep, star, number, *quoted = found.groups()
        key: str | int | None = next((text for text in (name, *quoted) if text is not None), None)
        if number is not None:
            key = int(number)
        elif star is not None or key == "*":
            key = None
        steps.append((dots == ".." or deep is not None, key))
        at = found.end()
    if not path.startswith("$") or at < len(path):
        raise ConfigError(
            f"{excerpt(path)} is not a path: a path begins with $ and goes on as in $.files[0].name, $.urls[*] or $..path"
        )
    return tuple(steps)


def values_at(steps: tuple[Step, ...], value: object) -> Iterator[JsonValue]:
    """The values that a path leads to."""
    if not steps:
        yield value
        return
    (deep, key), rest = steps[0], steps[1:]
    for place in _descendants(value, MAX_PATH_DEPTH) if deep else (value,):
        for inner in _children(place, key):
            yield from values_at(rest, inner)


def _children(value: object, key: str | int | None) -> Iterator[JsonValue]:
    if isinstance(value, dict):
        if key is None:
            yield from value.values()
        elif key in value:
            yield value[key]
    elif isinstance(value, list):
        if key is None:
            yield from value
        elif isinstance(key, int) and -len(value) <= key < len(value):
            yield value[key]


def _descendants(value: object, depth: int) -> Iterator[JsonValue]:
    yield value
    if depth:
        for inner in _children(value, None):
            yield from _descendants(inner, depth - 1)
