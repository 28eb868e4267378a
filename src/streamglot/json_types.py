"""The types of decoded JSON and of values that will be encoded as JSON, and the errors of decoding."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

# Any: a client, a provider, a model or a tool may send any JSON. Code that reads a value checks its type first.
JsonValue: TypeAlias = Any
# Any: the same for the values of an object. The names are always text.
JsonObject: TypeAlias = dict[str, Any]

JSON_ERRORS: Final = (ValueError, RecursionError)
"""What the decoder raises for JSON from outside: it is not JSON, not UTF-8, has another type, or is nested too deeply."""
