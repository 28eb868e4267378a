"""Requests for showing: cut where they are long, and as a ``curl`` command that sends them again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ..characters import neutral

MAX_STRING_CHARS: Final = 4_000
"""Characters of one text of a request that are shown: a page of prose, and not an image."""
MAX_DEPTH: Final = 100
"""Objects and lists inside each other; what is deeper is not shown."""
MAX_SHOWN_BYTES: Final = 2**20
"""Bytes of a request that is compared line by line in a browser."""


def shortened(value: Any, depth: int = 0) -> Any:
    """A JSON value with its long texts cut and its control characters visible."""
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


def shown_body(body: bytes) -> Any:
    """The body of a request for showing; a note in its place where it is too large or no JSON."""
    try:
        value = shortened(msgspec.json.decode(body))
        if len(msgspec.json.encode(value)) <= MAX_SHOWN_BYTES:
            return value
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {"note": f"{len(body)} bytes that are no JSON"}
    return {"note": f"too large to be shown: {len(body)} bytes; the curl command has all of it"}


def curl(url: str, headers: Mapping[str, str], body: bytes) -> str:
    """A command that sends the request again. Values that the recording hides are shell variables."""
    lines = [f"curl -N {shlex.quote(url)}"]
    lines += [f"  -H {_header(name, value)}" for name, value in headers.items()]
    lines.append(f"  --data-binary {shlex.quote(body.decode('utf-8', 'replace'))}")
    return " \\\n".join(lines) + "\n"


def _header(name: str, value: str) -> str:
    """A header as one word of a shell. A ``$NAME`` in it is a variable that the user sets: it stands in double quotes."""
    if "$" in value and value.replace("Bearer ", "").replace("$", "").replace("_", "").isalnum():
        return f'"{name}: {value}"'
    return shlex.quote(f"{name}: {value}")
