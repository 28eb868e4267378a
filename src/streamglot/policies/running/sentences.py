"""Cuts a text that comes in pieces into the units that policies without patterns ask for: deltas and sentences."""

from __future__ import annotations

import re
from typing import Final, Protocol

from ...patterns.scanner import PatternMatch, Segment

MAX_SENTENCE_CHARS: Final = 8192
"""A sentence that is longer is judged in parts of this length: code and tables may go on without an end."""
_CLOSERS: Final = 8
"""Quotation marks and brackets between the end of a sentence and the space after it, at most."""
_END: Final = re.compile(rf"[.!?…][\"'”’»)\]]{{0,{_CLOSERS}}}\s|[。！？]|\n")


class Segmenter(Protocol):
    """Cuts the text of a block into units. ``held`` is the text that waits."""

    @property
    def held(self) -> str: ...
    def feed(self, text: str) -> list[Segment]: ...
    def close(self) -> list[Segment]: ...


class Deltas:
    """Each piece of the text as it comes."""

    __slots__ = ()
    held = ""

    def feed(self, text: str) -> list[Segment]:
        return [PatternMatch(text, "", "", text)] if text else []

    def close(self) -> list[Segment]:
        return []


class Sentences:
    """Whole sentences, each with the space after it. The rest at the end of the text counts as a sentence."""

    __slots__ = ("_searched", "held")

    def __init__(self) -> None:
        self.held = ""
        self._searched = 0

    def feed(self, text: str) -> list[Segment]:
        text = self.held + text
        given: list[Segment] = []
        start, searched = 0, self._searched
        while True:
            found = _END.search(text, searched, start + MAX_SENTENCE_CHARS)
            if found is not None:
                end = found.end()
            elif len(text) - start >= MAX_SENTENCE_CHARS:
                end = start + MAX_SENTENCE_CHARS
            else:
                break
            given.append(PatternMatch(text[start:end], "", "", text[start:end]))
            start = searched = end
        self.held = text[start:]
        self._searched = max(0, len(self.held) - _CLOSERS - 2)
        return given

    def close(self) -> list[Segment]:
        text, self.held = self.held, ""
        return [PatternMatch(text, "", "", text)] if text else []
