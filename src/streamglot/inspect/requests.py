"""Requests for display: shortened, and as a ``curl`` command that repeats them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

import msgspec

from ..characters import neutral
from ..json_types import JsonValue

MAX_STRING_CHARS: Final = 4_000
"""Characters of one string in a request that are shown: a page of prose, but not an image."""
MAX_DEPTH: Final = 100
"""Levels of nested objects and lists. Deeper ones are not shown."""
MAX_SHOWN_BYTES: Final = 2**20
"""Bytes of a request that a browser can compare line by line."""


def shortened(value: object, depth: int = 0) -> JsonValue:
    """A JSON value with its long strings cut and its control characters visible."""
    if isinstance(value, str):
        text = neutral(value[:MAX_STRING_CHARS])
        return text if len(value) <= MAX_STRING_CHARS else f"{text}… ({len(value)} characters in all)"
    if depth >= MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        return {shortened(name, depth): shortened(inner, depth + 1) for name, inner in value.items()}
    if isinstance(value, list):
        return [shortened(inner, depth + 1) for inner in value]
    return value


def shown_body(body: bytes) -> JsonValue:
    """The body of a request for display; a note if it is too large or not JSON."""
    try:
        value = shortened(msgspec.json.decode(body))
        if len(msgspec.json.encode(value)) <= MAX_SHOWN_BYTES:
            return value
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {"note": f"{len(body)} bytes that are not JSON"}
    return {"note": f"too large to be shown: {len(body)} bytes; the curl command has all of it"}


def curl(url: str, headers: Mapping[str, str], body: bytes) -> str:
    """A command that repeats the request. Values that the recording hides are shell variables."""
    lines = [f"curl -N {shlex.quote(url)}"]
    lines += [f"  -H {_header(name, value)}" for name, value in headers.items()]
    lines.append(f"  --data-binary {shlex.quote(body.decode('utf-8', 'replace'))}")
    return " \\\n".join(lines) + "\n"


def _header(name: str, value: str) -> str:
    """A header as one shell word. A ``$NAME`` in it is a variable that the user sets, so it is in double quotes."""
    if "$" in value and value.replace("Bearer ", "").replace("$", "").replace("_", "").isalnum():
        return f'"{name}: {value}"'
    return shlex.quote(f"{name}: {value}")
