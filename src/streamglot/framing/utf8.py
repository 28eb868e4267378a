"""Text that was cut inside a character, put together again."""

from __future__ import annotations

import codecs
import re

_LONE = re.compile("[\ud800-\udfff]")


class Utf8:
    """Bytes to text: a code point cut by a network read is held until its rest comes; bad bytes become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")

    def feed(self, chunk: bytes) -> str:
        return self._decoder.decode(chunk)

    def close(self) -> str:
        return self._decoder.decode(b"", True)


class Surrogates:
    """JSON strings whose ``\\ud83d\\ude00`` pair was cut between two deltas: the first half waits for the second."""

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
    """Pairs of surrogates joined, lone ones replaced by U+FFFD: text that any encoder takes."""
    if not _LONE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
