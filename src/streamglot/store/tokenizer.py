"""Splits texts into words, for the index and for queries. It is done here because databases disagree on what a word is. Pure.

A text becomes its words with one space between them: lower-case letters without accents, digits, and nothing else. In scripts
that are written without spaces each character is a word; several words in a row are searched as a phrase.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Final

MAX_WORD_CHARS: Final = 500
"""Characters per word; a longer word is split. An index entry of PostgreSQL takes at most 2.7 KB."""
CACHED_CHARS: Final = 20_000
"""Characters whose normal form is cached. A hostile text could contain all of Unicode."""

_PLAIN: Final = bytes(ord(chr(code).lower()) if code < 128 and chr(code).isalnum() else 32 for code in range(256))
_ACCENT: Final = re.compile(
    "[\u0300-\u08ff\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\U000e0100-\U000e01ef]"
)
"""Ranges of marks that people omit when they type: accents, points, variants. Marks of other scripts are vowels and stay."""
_ALONE: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff"
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff]"
)
"""Thai, Lao, Myanmar, Khmer, Chinese and Japanese."""
_FOREIGN: Final = re.compile("[^\x00-\x7f]+")
_LONG: Final = re.compile(f"[^ ]{{{MAX_WORD_CHARS}}}(?=[^ ])")


class _Letters(dict[int, str]):
    """The normal form of each character: a table for ``str.translate`` that grows with use."""

    def __missing__(self, code: int) -> str:
        letters = "".join(map(_letter, unicodedata.normalize("NFKD", chr(code)))).casefold()
        found = _ALONE.sub(r" \g<0> ", unicodedata.normalize("NFC", letters))
        if len(self) < CACHED_CHARS:
            self[code] = found
        return found


def _letter(character: str) -> str:
    kind = unicodedata.category(character)
    if kind == "Cf" or (kind[0] == "M" and _ACCENT.match(character)):
        return ""
    return character if kind[0] in "LNM" else " "


_letters = _Letters()


def wording(text: str) -> str:
    """The words of a text, separated by spaces."""
    if not text.isascii():
        half_width = "\uff9e" in text or "\uff9f" in text  # half-width voicing marks follow their letter
        text = unicodedata.normalize("NFKC" if half_width else "NFC", text)
        if len(text.encode(errors="replace")) < len(text) * 1.1:  # most answers have few characters outside ASCII
            text = _FOREIGN.sub(lambda found: found[0].translate(_letters), text)
    plain = text.encode().translate(_PLAIN).decode() if text.isascii() else text.translate(_letters)
    words = " ".join(plain.split())
    half = MAX_WORD_CHARS // 2
    if all(" " in words[start : start + half] for start in range(0, len(words) - half, half)):
        return words  # no word can be too long
    return _LONG.sub(r"\g<0> ", words)


def scope_of(caller: str) -> str:
    """The word that stands for a caller in the index, so that a search finds the texts of one caller."""
    return hashlib.blake2b(caller.encode("utf-8", "replace"), digest_size=8).hexdigest()
