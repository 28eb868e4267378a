"""Reads what anybody can read of opaque values."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings(inner)


def readable(text: str, depth: int = 4) -> str:
    """The text with everything in it that is plainly encoded."""
    found = text
    for run in re.findall(r"[A-Za-z0-9+/_-]{16,}=*", text) if depth else ():
        standard = run.translate(str.maketrans("-_", "+/")).rstrip("=")
        raw = base64.b64decode(standard[: len(standard) // 4 * 4 or len(standard)])
        found += readable(raw.decode("utf-8", "replace"), depth - 1)
    return found
