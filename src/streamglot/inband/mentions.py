"""Tells markup from text that mentions markup.

A model that explains its own notation writes the same words as one that uses it. What stands around a word shows the difference: a
template writes its words without a space around them, and a sentence separates them with spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from .declared import Declared
from .scan import NAME_CHARS

QUOTES = {"`": "`", "'": "'", '"': '"', "“": "”", "‘": "’", "(": ")"}

MAX_QUOTED_MARKERS = 16
"""Markers in a row that one pair of quotes may contain. A header has at most four; each further one costs another look ahead."""

BLANK = (" ", "\t")
_SENTENCE_GOES_ON = frozenset(" \t.,;:!?)")
_NAME_PARTS = re.compile(r"[\w-]+")
_NAME_AND_NOTATION = re.compile(r"""(?:<[^<>\s]{1,64}>)*["']?[\w.:/-]+["']? ?[({\[<=|>]""")


class Quotation(Struct, frozen=True):
    """A quotation that may have begun. ``closing``: what closes it. ``opens``: its mark follows a space or a bracket, so it
    cannot close a quotation. ``first``: no text precedes it."""

    closing: str
    opens: bool
    first: bool

    @property
    def ticks(self) -> int:
        """The number of backticks of a code span, 0 if it is another quotation."""
        return self.closing.count("`")


def is_mention(before: str, following: str) -> bool:
    """Whether a word between these two characters is part of a sentence. "" stands for the end of the text."""
    return before in BLANK and (not following or following in _SENTENCE_GOES_ON)


def is_inserted(before: str, following: str) -> bool:
    """Whether a token between these two characters was inserted into a text: it is attached to a word, or begins a line."""
    return before not in BLANK or following.isalnum()


def is_glued(before: str, following: str) -> bool:
    """Whether a word between these two characters separates two texts, as a template writes it: it follows a word or a sentence
    without a space and the next one begins at once, or it has a line of its own."""
    if before == "\n":
        return following in ("\r", "\n")
    return (before.isalnum() or before in ".!?…。！？") and (following.isalnum() or following in ("\r", "\n"))


def is_phrase(word: str) -> bool:
    """Whether this marker consists of plain words, which sentences contain too."""
    return word[0].isalpha()


def is_token(word: str) -> bool:
    """Whether this word has a form that neither prose nor HTML uses."""
    return "|" in word or "｜" in word or ":" in word


def closers_of(words: Iterable[str]) -> dict[str, str]:
    """For each beginning of a tag that one of these words closes: that word."""
    return {f"<{word[2:-1]}{end}": word for word in words if word.startswith("</") for end in (">", " ")}


def is_half_call(rest: str, declared: Declared) -> bool:
    """Whether a text that ended after a marker ended inside a call. ``rest``: what follows the marker. It is a call if a
    declared name, the beginning of one, or JSON follows. Without declared tools the notation must have gone on after a name."""
    text = rest[:NAME_CHARS].strip()
    if not text or (rest[0] in BLANK and text[0].isalpha()):
        return False
    if text[0] in "{[":
        return True
    if not declared.schemas:
        return _NAME_AND_NOTATION.match(text) is not None
    parts = [text[found.start() :] for found in _NAME_PARTS.finditer(text)]
    return any(name.startswith(part) or _begins_with(part, name) for part in parts for name in declared.schemas)


def _begins_with(text: str, name: str) -> bool:
    return text.startswith(name) and _NAME_PARTS.match(text, len(name)) is None
