"""The base class of objects that are read from configuration. They are deeply frozen, so that one object can serve all
streams."""

from __future__ import annotations

from types import MappingProxyType

from msgspec import Struct, structs


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """Lists, sets and dictionaries among the values become immutable, so declare fields as ``Sequence`` and ``Mapping``."""

    def __post_init__(self) -> None:
        for field in structs.fields(self):
            value = getattr(self, field.name)
            frozen = deep_frozen(value)
            if frozen is not value:
                structs.force_setattr(self, field.name, frozen)


def deep_frozen(value: object) -> object:
    """The value with lists as tuples, sets as frozen sets and dictionaries as read-only views; itself if it is immutable."""
    match value:
        case dict():
            return MappingProxyType({key: deep_frozen(inner) for key, inner in value.items()})
        case list():
            return tuple(deep_frozen(inner) for inner in value)
        case tuple() if any(deep_frozen(inner) is not inner for inner in value):
            return tuple(deep_frozen(inner) for inner in value)
        case set():
            return frozenset(value)
        case _:
            return value
