"""The types of decoded JSON and of values that will be encoded as JSON, and the errors of decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

# Any: a client, a provider, a model or a tool may send any JSON. Code that reads a value checks its type first.
JsonValue: TypeAlias = Any
# Any: the same for the values of an object. The names are always text.
JsonObject: TypeAlias = dict[str, Any]

JSON_ERRORS: Final = (ValueError, RecursionError)
"""What the decoder raises for JSON from outside: it is not JSON, not UTF-8, has another type, or is nested too deeply."""


def as_mutable(value: object) -> JsonValue:
    """Plain data, as JSON and TOML have it: dictionaries and lists in place of read-only views, tuples and sets."""
    if isinstance(value, Mapping):
        return {key: as_mutable(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list, frozenset)):
        return [as_mutable(inner) for inner in value]
    return value
