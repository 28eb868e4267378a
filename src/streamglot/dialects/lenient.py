"""JSON that breaks its dialect's types: what fits is kept, what does not is left out.

The fast path decodes a frame straight into a struct of the fields that are read. Where an upstream puts a number for a
string or a string for a list, that decoder refuses the whole frame; these functions then read it field by field.
"""

from __future__ import annotations

import json
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from ..errors import UpstreamProtocolError, excerpt
from ..framing.utf8 import whole_characters

MAX_DEPTH: Final = 128
"""Objects and lists inside each other. The deepest schemas have some twenty; the interpreter's stack ends at a thousand frames,
of which a level takes two."""


def loads(data: bytes) -> tuple[Any, bool]:
    """Any JSON, also with bytes that are no UTF-8; and whether it has a lone surrogate."""
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
    """Is this one JSON value, with nothing but white space around it?"""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (ValueError, RecursionError):
        pass
    else:
        return True
    try:
        json.loads(text, parse_constant=_refuse)  # takes lone surrogates, which a cut in the wire may leave
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _finite(number: str) -> float | None:
    """A number that fits into a float; one that does not (and NaN, which is no JSON) counts nothing."""
    value = float(number)
    return value if isfinite(value) else None


def fit(kind: Any, value: Any) -> Any:
    """The value as this type; a field, an element or a value that does not fit is left out (None)."""
    members = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        try:
            return _converted(value, kind)
        except ValueError:
            pass
        known: dict[str, Any] = {}
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


def _converted(value: Any, kind: Any) -> Any:
    """The value as this type, with strings read as numbers where a number belongs. "inf" and "nan" are no numbers."""
    converted = msgspec.convert(value, kind, strict=False)
    if not _is_finite(converted):
        raise ValueError("a number is not finite")
    return converted


def _is_finite(value: Any) -> bool:
    if isinstance(value, msgspec.Struct):
        return all(_is_finite(getattr(value, name)) for name in _fields_with_floats(type(value)))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or isfinite(value)


@cache
def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, str, Any]]:
    """Name, name on the wire and type of each field: finding the types out takes longer than reading the value."""
    return [(item.name, item.encode_name, item.type) for item in msgspec.structs.fields(kind)]


@cache
def _fields_with_floats(kind: type[msgspec.Struct]) -> list[str]:
    """The fields of a struct that hold a float, or structs that do."""
    return [name for name, _, inner in _fields(kind) if _has_float(inner)]


def _has_float(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return bool(_fields_with_floats(kind))
    return kind is float or any(map(_has_float, get_args(kind)))


def clean(value: Any, depth: int = 0) -> Any:
    """The same value with surrogates joined or replaced in all its strings."""
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, (list, dict)):
        if depth >= MAX_DEPTH:
            raise UpstreamProtocolError(f"a JSON value has more than {MAX_DEPTH} objects and lists inside each other")
        if isinstance(value, list):
            return [clean(element, depth + 1) for element in value]
        return {clean(key): clean(element, depth + 1) for key, element in value.items()}
    return value
