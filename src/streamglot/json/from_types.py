"""JSON Schema: made from the type hints of a function, and checked against arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, get_type_hints

import msgspec
from msgspec import Meta, Struct

from ..errors import FOREIGN_ERRORS, ConfigError
from ..json_types import JsonObject, JsonValue

MAX_DEPTH: Final = 32
"""Nested levels of a schema that are followed: a schema that refers to itself must end somewhere."""
_SECTION: Final = re.compile(r"^(args|arguments|parameters|params)\s*:?\s*$", re.I)
_OTHER_SECTION: Final = re.compile(r"^(returns?|raises|yields?|examples?|notes?)\s*:?\s*$", re.I)
_PARAMETER: Final = re.compile(r"^(?::param\s+(?:[\w\[\], |.]+\s+)?(\w+)\s*:|(\w+)\s*(?:\([^)]*\))?\s*:)\s*(.*)$")


class ArgumentsError(ValueError):
    """The arguments of a call do not match the schema of its tool. The message is for the model."""


# --- from type hints


def docstring_of(function: Callable[..., object]) -> tuple[str, dict[str, str]]:
    """The description of a function, and that of each parameter, from its docstring (Google, reST or plain style)."""
    text: list[str] = []
    parameters: dict[str, str] = {}
    names = set(inspect.signature(function).parameters)
    current, inside, other = "", False, False
    for line in (inspect.getdoc(function) or "").splitlines():
        stripped = line.strip()
        if _SECTION.match(stripped) or _OTHER_SECTION.match(stripped):
            inside, current = bool(_SECTION.match(stripped)), ""
            other = not inside
            continue
        found = _PARAMETER.match(stripped)
        name = (found.group(1) or found.group(2)) if found else ""
        if found and name in names and (inside or found.group(1)):
            current = name
            parameters[name] = found.group(3).strip()
        elif current and stripped and line[:1].isspace():
            parameters[current] += f" {stripped}"
        elif not inside and not other:
            current = ""
            text.append(line)
    return "\n".join(text).strip(), parameters


def arguments_type(function: Callable[..., object], skipped: frozenset[str] = frozenset()) -> type[Struct]:
    """A struct with one field for each parameter of the function."""
    _, descriptions = docstring_of(function)
    name = getattr(function, "__name__", type(function).__name__)
    try:
        hints = get_type_hints(function, include_extras=True)
    except FOREIGN_ERRORS as error:  # a hint may name anything
        raise ConfigError(f"the type hints of the tool {name!r} cannot be read: {error}") from None
    fields: list[Any] = []  # Any: names, types and defaults, as ``defstruct`` takes them
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in skipped:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(f"the tool {name!r} has the parameter {parameter}: a tool is called with named arguments")
        hint = hints.get(parameter.name, str if parameter.default is parameter.empty else type(parameter.default))
        if descriptions.get(parameter.name):
            hint = Annotated[hint, Meta(description=descriptions[parameter.name])]
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, _default(parameter.default)))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _default(value: object) -> object:
    """A default of a field. Objects are given as they are: the function would have got the same one."""
    return value if value is None or isinstance(value, (str, int, float, bool)) else msgspec.field(default_factory=lambda: value)


def schema_of(kind: Any) -> JsonObject:  # Any: a type; one of pydantic has methods that others lack
    """The JSON Schema of a type: plain types, dataclasses, msgspec structs and pydantic models."""
    if _is_pydantic(kind):
        model: JsonObject = kind.model_json_schema()
        return model
    try:
        schema = msgspec.json.schema(kind, schema_hook=_schema_hook)
    except TypeError as error:
        raise ConfigError(f"{getattr(kind, '__name__', kind)!s} has a type that JSON Schema cannot express: {error}") from None
    definitions = schema.pop("$defs", {})
    reference = schema.pop("$ref", "")
    if reference.startswith("#/$defs/"):
        name = reference.removeprefix("#/$defs/")
        schema = definitions[name] if _refers_to(definitions, name) else definitions.pop(name)
    _lift_definitions(schema, definitions)
    if definitions:
        schema["$defs"] = definitions
    return schema


def parameters_schema(kind: type[Struct]) -> JsonObject:
    """The schema of a tool's arguments, without the title that repeats the tool's name."""
    schema = schema_of(kind)
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return schema


def _refers_to(definitions: Mapping[str, JsonValue], name: str) -> bool:
    return f'"#/$defs/{name}"'.encode() in msgspec.json.encode(definitions)


def _lift_definitions(schema: object, definitions: JsonObject) -> None:
    """Pydantic puts definitions into each model; references to them start at the root."""
    for value in [schema, *definitions.values()]:
        stack = [value]
        while stack:
            node = stack.pop()
            if isinstance(node, dict):
                if "$defs" in node and node is not schema:
                    definitions.update(node.pop("$defs"))
                stack += node.values()
            elif isinstance(node, list):
                stack += node


def _is_pydantic(kind: object) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate")


def _schema_hook(kind: Any) -> JsonObject:  # Any: as for ``schema_of``
    if _is_pydantic(kind):
        model: JsonObject = kind.model_json_schema()
        return model
    raise TypeError(f"the type {kind!r} is not supported")


def convert(value: JsonValue, kind: Any) -> Any:  # Any: a type, and an object of it
    """``value``, which came as JSON, as an object of the type ``kind``. Raises ArgumentsError."""
    if _is_pydantic(kind):
        return _decode_hook(kind, value)
    try:
        return msgspec.convert(value, kind, dec_hook=_decode_hook)
    except msgspec.ValidationError as error:
        raise ArgumentsError(str(error).replace("`$.", "`").replace("Object contains unknown field", "there is no")) from None


def _decode_hook(kind: Any, value: object) -> object:  # Any: as for ``schema_of``
    if not _is_pydantic(kind):
        raise msgspec.ValidationError(f"Expected `{kind.__name__}`")
    try:
        return kind.model_validate(value)
    except ValueError as error:
        raise ArgumentsError(str(error)) from None


# --- checked


def check_value(value: object, schema: Mapping[str, JsonValue]) -> None:
    """Raises ArgumentsError where the value breaks the schema. The keywords that models break are checked; a schema is
    never fetched from elsewhere."""
    fault = _fault(value, schema, schema, "", 0)
    if fault:
        raise ArgumentsError(fault)


_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
    "integer": (int,),
}


def _fault(value: object, schema: object, root: Mapping[str, JsonValue], place: str, depth: int) -> str:
    """The fault of the value, "" if it has none."""
    if depth > MAX_DEPTH or schema is True or not isinstance(schema, dict):
        return f"{_named(place)} is not allowed" if schema is False else ""
    if "$ref" in schema:
        return _fault(value, _referred(schema["$ref"], root), root, place, depth + 1)
    types = schema.get("type")
    allowed = [types] if isinstance(types, str) else types if isinstance(types, list) else []
    if allowed and not any(_is_of(value, kind) for kind in allowed):
        return f"{_named(place)} must be of the type {' or '.join(map(str, allowed))}, not {_kind(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{_named(place)} must be one of {msgspec.json.encode(schema['enum']).decode()}"
    if "const" in schema and value != schema["const"]:
        return f"{_named(place)} must be {msgspec.json.encode(schema['const']).decode()}"
    for alternatives in (schema.get("anyOf"), schema.get("oneOf")):
        if isinstance(alternatives, list) and alternatives:
            faults = [_fault(value, one, root, place, depth + 1) for one in alternatives]
            if all(faults):
                return " or ".join(dict.fromkeys(faults))
    for one in schema.get("allOf") or ():
        fault = _fault(value, one, root, place, depth + 1)
        if fault:
            return fault
    if isinstance(value, dict):
        return _fault_of_object(value, schema, root, place, depth)
    if isinstance(value, list):
        return next(
            (f for n, one in enumerate(value) if (f := _fault(one, schema.get("items"), root, f"{place}[{n}]", depth + 1))), ""
        )
    return _fault_of_bounds(value, schema, place)


def _fault_of_object(value: JsonObject, schema: JsonObject, root: Mapping[str, JsonValue], place: str, depth: int) -> str:
    properties = schema.get("properties") or {}
    rest = schema.get("additionalProperties", True)
    unknown = [name for name in value if name not in properties] if rest is False else []
    if unknown:  # first: a wrong name is often a missing one too
        return f"there is no argument {_inside(place, unknown[0])!r}; there are {', '.join(properties) or 'none'}"
    missing = [name for name in schema.get("required") or () if name not in value]
    if missing:
        return f"the required argument {_inside(place, missing[0])!r} is missing"
    for name, inner in value.items():
        fault = _fault(inner, properties.get(name, rest), root, _inside(place, name), depth + 1)
        if fault:
            return fault
    return ""


def _fault_of_bounds(value: object, schema: JsonObject, place: str) -> str:
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            return f"{_named(place)} must have at least {schema['minLength']} characters"
        if "maxLength" in schema and len(value) > schema["maxLength"]:
            return f"{_named(place)} must have at most {schema['maxLength']} characters"
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            return f"{_named(place)} must be at least {schema['minimum']}"
        if "maximum" in schema and value > schema["maximum"]:
            return f"{_named(place)} must be at most {schema['maximum']}"
    return ""


def _referred(reference: object, root: Mapping[str, JsonValue]) -> JsonValue:
    """The schema behind a reference into the same document; True where it cannot be found."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return True
    found: object = root
    for part in reference.lstrip("#").strip("/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if key:
            found = found.get(key, True) if isinstance(found, dict) else True
    return found


def _is_of(value: object, kind: object) -> bool:
    if isinstance(value, bool) and kind in ("number", "integer"):
        return False
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(str(kind), (object,)))


def _kind(value: object) -> str:
    return next(name for name in _TYPES if _is_of(value, name))


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _named(place: str) -> str:
    return f"the argument {place!r}" if place else "the arguments"
