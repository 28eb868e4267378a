"""What a word is, for who writes a text and for who asks: made here, because no two databases agree on it. Pure.

A text becomes its words with one space between them: small letters without accents, figures, and nothing else. Scripts that are
written without spaces have a word for each of their characters; several words in a row are a phrase, so they are found all the same.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

LONGEST: Final = 500
"""Characters of a word; the rest is the next one. An index of PostgreSQL takes 2.7 KB."""
REMEMBERED: Final = 20_000
"""Characters of which we know what they become. A text may be hostile, and have all there are."""

_PLAIN: Final = bytes(ord(chr(code).lower()) if code < 128 and chr(code).isalnum() else 32 for code in range(256))
_ACCENT: Final = re.compile(
    "[\u0300-\u08ff\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe00-\ufe0f\ufe20-\ufe2f\U000e0100-\U000e01ef]"
)
"""Where the marks are that people leave out: accents, points, variants. Those of other scripts are vowels."""
_ALONE: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff"
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff]"
)
"""Thai, Lao, Myanmar, Khmer, Chinese and Japanese."""
_FOREIGN: Final = re.compile("[^\x00-\x7f]+")
_LONG: Final = re.compile(f"[^ ]{{{LONGEST}}}(?=[^ ])")


class _Letters(dict[int, str]):
    """What each character becomes: a table for ``str.translate`` that grows as it is used."""

    def __missing__(self, code: int) -> str:
        letters = "".join(map(_letter, unicodedata.normalize("NFKD", chr(code)))).casefold()
        found = _ALONE.sub(r" \g<0> ", unicodedata.normalize("NFC", letters))
        if len(self) < REMEMBERED:
            self[code] = found
        return found


def _letter(character: str) -> str:
    kind = unicodedata.category(character)
    if kind == "Cf" or (kind[0] == "M" and _ACCENT.match(character)):
        return ""
    return character if kind[0] in "LNM" else " "


_letters = _Letters()


def wording(text: str) -> str:
    """The words of a text."""
    if not text.isascii():
        half_width = "\uff9e" in text or "\uff9f" in text  # marks that stand behind their letter
        text = unicodedata.normalize("NFKC" if half_width else "NFC", text)
        if len(text.encode(errors="replace")) < len(text) * 1.1:  # an accent, a dash: most answers are like that
            text = _FOREIGN.sub(lambda found: found[0].translate(_letters), text)
    plain = text.encode().translate(_PLAIN).decode() if text.isascii() else text.translate(_letters)
    words = " ".join(plain.split())
    half = LONGEST // 2
    if all(" " in words[start : start + half] for start in range(0, len(words) - half, half)):
        return words  # none can be too long
    return _LONG.sub(r"\g<0> ", words)
