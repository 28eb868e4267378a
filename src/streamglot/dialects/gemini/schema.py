"""Converts the schemas of this dialect, a subset of OpenAPI with upper-case types, to JSON schema."""

from __future__ import annotations

from typing import Final

from ...json_types import JsonObject, JsonValue
from .wire import camel

_DROPPED: Final = frozenset(("propertyOrdering", "nullable", "example"))
_NUMBERS: Final = frozenset(("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"))
_INNER: Final = frozenset(("items", "additionalProperties", "not"))
_LISTS: Final = frozenset(("anyOf", "oneOf", "allOf", "prefixItems"))
_MAPS: Final = frozenset(("properties", "$defs", "defs"))


def json_schema(schema: object) -> JsonValue:
    """Types in lower case, ``nullable`` as a type, numeric strings as numbers; property names are kept."""
    if not isinstance(schema, dict):
        return schema
    plain: JsonObject = {}
    for key, value in schema.items():
        name = camel(key)
        if name == "type" and isinstance(value, str):
            plain[name] = value.lower()
        elif name in _MAPS and isinstance(value, dict):
            plain["$defs" if name == "defs" else name] = {inner: json_schema(entry) for inner, entry in value.items()}
        elif name in _LISTS and isinstance(value, list):
            plain[name] = [json_schema(entry) for entry in value]
        elif name in _INNER:
            plain[name] = json_schema(value)
        elif name in _NUMBERS and isinstance(value, str) and value.isdigit():
            plain[name] = int(value)
        elif name not in _DROPPED:
            plain["$ref" if name == "ref" else name] = value
    if schema.get("nullable") is True and isinstance(plain.get("type"), str):
        plain["type"] = [plain["type"], "null"]
        if isinstance(plain.get("enum"), list) and None not in plain["enum"]:
            plain["enum"] = [*plain["enum"], None]
    return plain
