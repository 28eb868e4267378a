"""JSON Schema of functions and types: made from type hints, and arguments checked against it, with faults in words for a model."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, get_type_hints

import msgspec
from msgspec import Meta, Struct

from ..errors import FOREIGN_ERRORS, ConfigError
from ..json_types import JsonObject, JsonValue
from .schema import Fault, Schema, kind_of, written_place

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


def check_value(value: object, schema: Schema) -> None:
    """Raises ArgumentsError where the value breaks the schema."""
    fault = schema.find(value)
    if fault is not None:
        raise ArgumentsError(_for_model(fault))


def _for_model(fault: Fault) -> str:
    place = written_place(fault.place).removeprefix(".")
    subject = f"the argument {place!r}" if place else "the arguments"
    match fault.keyword:
        case "type":
            return f"{subject} must be of the type {' or '.join(fault.rule)}, not {kind_of(fault.value)}"
        case "enum":
            return f"{subject} must be one of {msgspec.json.encode(fault.rule).decode()}"
        case "const":
            return f"{subject} must be {msgspec.json.encode(fault.rule).decode()}"
        case "additionalProperties":
            return f"there is no argument {_inside(place, fault.value)!r}; there are {', '.join(fault.rule) or 'none'}"
        case "required":
            return f"the required argument {_inside(place, fault.value)!r} is missing"
        case "propertyNames":
            return f"the name {_inside(place, fault.value)!r} {fault.words}"
        case "anyOf" | "oneOf" if fault.inner:
            return " or ".join(dict.fromkeys(map(_for_model, fault.inner)))
        case "not":
            return f"{subject} must not be {msgspec.json.encode(fault.value).decode()}"
    return f"{subject} {fault.words}"


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
