"""Decodes JSON that violates its dialect's types: what fits is kept, the rest is dropped.

The fast path decodes a frame directly into a struct. If an upstream sends a number for a string or a string for a list, that
decoder refuses the whole frame; these functions then read it field by field.
"""

from __future__ import annotations

import json
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from ...errors import UpstreamProtocolError, excerpt
from ...framing.lines import whole_characters
from ...json_types import JsonObject, JsonValue

MAX_DEPTH: Final = 128
"""Maximum nesting. The deepest schemas have about twenty levels; the interpreter's stack has a thousand frames, and a level
takes two."""


def loads(data: bytes) -> tuple[JsonValue, bool]:
    """Decodes any JSON, also with invalid UTF-8. Returns whether it contains a lone surrogate."""
    try:
        return msgspec.json.decode(data), False
    except (ValueError, RecursionError):
        pass
    try:
        text = data.decode("utf-8", "replace")
        value = json.loads(text, parse_float=_finite, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise UpstreamProtocolError(f"a frame is not JSON ({error}): {excerpt(data)}", code="not_json") from None
    return value, "\\ud" in text.lower()


def is_json(text: str) -> bool:
    """Whether the text is one JSON value with nothing but white space around it."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (ValueError, RecursionError):
        pass
    else:
        return True
    try:
        json.loads(text, parse_constant=_refuse)  # accepts lone surrogates, which a split in the wire may leave
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _finite(number: str) -> float | None:
    """A number that fits into a float; None for others, and for NaN, which is not JSON."""
    value = float(number)
    return value if isfinite(value) else None


def fit(kind: object, value: object) -> Any:  # Any: an object of the type ``kind``, or None
    """The value as this type. Fields, elements and values that do not fit are dropped (None)."""
    members = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        try:
            return _converted(value, kind)
        except ValueError:
            pass
        known: JsonObject = {}
        for name, wire_name, inner in _fields(kind):
            if wire_name in value:
                fitted = fit(inner, value[wire_name])
                if fitted is not None or NoneType in get_args(inner):
                    known[name] = fitted
        return kind(**known)
    if get_origin(kind) is list and isinstance(value, list):
        fits = (fit(members[0], element) for element in value)
        return [element for element in fits if element is not None]
    if kind is msgspec.Raw:
        return msgspec.Raw(msgspec.json.encode(clean(value)))
    try:
        return _converted(value, kind)
    except ValueError:
        if get_origin(kind) not in (Union, UnionType):
            return None
        fits = (fit(member, value) for member in members if member is not NoneType)
        return next((fitted for fitted in fits if fitted is not None), None)


def _converted(value: object, kind: object) -> Any:  # Any: as for ``fit``
    """The value as this type, with strings converted to numbers where a number is expected. "inf" and "nan" are not numbers."""
    converted = msgspec.convert(value, kind, strict=False)
    if not _is_finite(converted):
        raise ValueError("a number is not finite")
    return converted


def _is_finite(value: object) -> bool:
    if isinstance(value, msgspec.Struct):
        return all(_is_finite(getattr(value, name)) for name in _fields_with_floats(type(value)))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or isfinite(value)


@cache
def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, str, object]]:
    """The name, the wire name and the type of each field. Resolving the types takes longer than reading a value, so it is
    cached."""
    return [(item.name, item.encode_name, item.type) for item in msgspec.structs.fields(kind)]


@cache
def _fields_with_floats(kind: type[msgspec.Struct]) -> list[str]:
    """The fields of a struct that contain a float, directly or in structs."""
    return [name for name, _, inner in _fields(kind) if _has_float(inner)]


def _has_float(kind: object) -> bool:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return bool(_fields_with_floats(kind))
    return kind is float or any(map(_has_float, get_args(kind)))


def clean(value: object, depth: int = 0) -> JsonValue:
    """The same value with surrogates joined or replaced in all strings."""
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, (list, dict)):
        if depth >= MAX_DEPTH:
            raise UpstreamProtocolError(f"a JSON value is nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, list):
            return [clean(element, depth + 1) for element in value]
        return {clean(key): clean(element, depth + 1) for key, element in value.items()}
    return value


# --- fields of untyped objects


def string_in(data: JsonObject, name: str) -> str:
    """The field if it is a string, otherwise an empty string."""
    value = data.get(name)
    return value if isinstance(value, str) else ""


def objects_in(value: object) -> list[JsonObject]:
    """The objects of a list; empty if the value is not a list."""
    return [element for element in value if isinstance(element, dict)] if isinstance(value, list) else []


def json_text(value: object) -> str:
    """A string itself, None as an empty string, any other value as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(clean(value)).decode()
