"""Joins text that was split inside a character."""

from __future__ import annotations

import codecs
import re

_LONE = re.compile("[\ud800-\udfff]")


class Utf8:
    """Bytes to text: a code point that was split by a network read is held until the rest arrives; invalid bytes become
    U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")

    def feed(self, chunk: bytes) -> str:
        return self._decoder.decode(chunk)

    def close(self) -> str:
        return self._decoder.decode(b"", True)


class Surrogates:
    r"""Joins ``\ud83d\ude00`` pairs that were split between two JSON strings: the first half waits for the second."""

    def __init__(self) -> None:
        self._half = ""

    def feed(self, text: str) -> str:
        text = self._half + text
        self._half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return whole_characters(text)

    def close(self) -> str:
        half, self._half = self._half, ""
        return whole_characters(half)


def whole_characters(text: str) -> str:
    """Surrogate pairs joined, lone surrogates replaced by U+FFFD: text that every encoder accepts."""
    if not _LONE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
