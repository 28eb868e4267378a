"""The types of decoded JSON, and of values that will be encoded as JSON."""

from __future__ import annotations

from typing import Any, TypeAlias

# Any: a client, a provider, a model or a tool may send any JSON. Code that reads a value checks its type first.
JsonValue: TypeAlias = Any
# Any: the same for the values of an object. The names are always text.
JsonObject: TypeAlias = dict[str, Any]
