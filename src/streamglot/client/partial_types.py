"""Partial types, whose fields may be missing, made from msgspec structs, dataclasses and pydantic models."""

from __future__ import annotations

import dataclasses
import types
from functools import lru_cache
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType

TYPES: Final = 256
"""Types whose partial forms are cached."""


def partial_object(kind: object, value: object) -> Any:  # Any: of the type ``kind``, with fields missing
    """``value``, decoded from JSON, as an object of the type ``kind`` that may lack fields.

    Missing fields are ``msgspec.UNSET``; a pydantic model has their defaults, or lacks them. Raises ``ValueError`` if the value
    is of another type.
    """
    if is_pydantic(kind):
        return _constructed(kind, value)
    if isinstance(kind, dict):
        return value
    return msgspec.convert(value, _partial_type(kind), dec_hook=_constructed)


def is_pydantic(kind: object) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_construct") and hasattr(kind, "model_fields")


@lru_cache(TYPES)
def _partial_struct(kind: Any) -> type[Struct]:  # Any: a struct or a dataclass
    hints = get_type_hints(kind, include_extras=True)
    options: dict[str, Any] = {}  # Any: arguments of several types
    if issubclass(kind, Struct):
        fields = [(field.name, field.encode_name) for field in msgspec.structs.fields(kind)]
        config = kind.__struct_config__
        options = {"tag": config.tag, "tag_field": config.tag_field, "array_like": config.array_like}
    else:
        fields = [(field.name, field.name) for field in dataclasses.fields(kind)]
    return msgspec.defstruct(
        f"Partial{kind.__name__}",
        [(name, Union[_partial_type(hints[name]), UnsetType], UNSET) for name, _ in fields],  # noqa: UP007  # made at run time
        rename=dict(fields),
        kw_only=True,
        module=kind.__module__,
        **options,
    )


def _partial_type(kind: object) -> Any:  # Any: a type, which the type checker does not see
    """The type without constraints: a string that is still being written may be too short."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _partial_type(arguments[0])
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_partial_type, arguments))]  # noqa: UP007  # a type made at run time
    if origin in (list, dict, set, frozenset, tuple):
        return origin[tuple(map(_partial_type, arguments))]
    if isinstance(kind, type) and not is_pydantic(kind) and (issubclass(kind, Struct) or dataclasses.is_dataclass(kind)):
        return _partial_struct(kind)
    return kind


def _constructed(kind: Any, value: object) -> object:  # Any: a class of pydantic, which need not be installed
    """A pydantic model, and the models in its fields, without validation."""
    if not is_pydantic(kind) or not isinstance(value, dict):
        raise ValueError(f"the value is not of the type {getattr(kind, '__name__', kind)}")
    names = {field.alias or name: name for name, field in kind.model_fields.items()}
    fields = {names[key]: _inner(kind.model_fields[names[key]].annotation, inner) for key, inner in value.items() if key in names}
    return kind.model_construct(_fields_set=set(fields), **fields)


def _inner(kind: object, value: object) -> object:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_pydantic(kind) and isinstance(value, dict):
        return _constructed(kind, value)
    if origin is list and isinstance(value, list):
        return [_inner(arguments[0], one) for one in value]
    if origin in (Union, types.UnionType) and isinstance(value, (dict, list)):
        return next((made for one in arguments if (made := _inner(one, value)) is not value), value)
    return value
