"""Word lists: thousands of words found at once with an Aho-Corasick automaton, with the same interface as an expression."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from ..errors import ConfigError, excerpt

MAX_WORD_CHARS: Final = 200
"""Characters of one word: the end of a text is compared with the beginnings of words up to this length."""


@lru_cache(4096)
def folded(char: str) -> str:
    """The lower case of a character, or the character itself where that would change the length of the text."""
    lower = char.lower()
    return lower if len(lower) == 1 else char


def fold(text: str) -> str:
    return text.lower() if text.isascii() else "".join(map(folded, text))


class Words:
    """Finds the leftmost-longest word that stands alone: no letter, digit or underscore touches it. Case is ignored."""

    width = 1

    def __init__(self, words: Iterable[str]) -> None:
        try:
            import ahocorasick  # type: ignore[import-not-found]  # a compiled module without type information
        except ModuleNotFoundError:
            raise ConfigError("word lists need the package pyahocorasick: pip install 'streamglot[policies]'") from None
        self._automaton: Any = ahocorasick.Automaton(ahocorasick.STORE_LENGTH)  # Any: pyahocorasick has no type information
        self._longest = 0
        for word in words:
            if not word.strip() or len(word) > MAX_WORD_CHARS:
                raise ConfigError(f"the word {excerpt(word)} is empty or has more than {MAX_WORD_CHARS} characters")
            self._automaton.add_word(fold(word))
            self._longest = max(self._longest, len(word))
        if not self._longest:
            raise ConfigError("a word list has no words")
        self._automaton.make_automaton()
        self._starts = frozenset(code for code in range(128) if self._automaton.match(fold(chr(code))))

    def find(self, buffer: bytes, start: int) -> tuple[int, int] | None:
        text, before = self._text(buffer, start)
        best: tuple[int, int] | None = None
        for last, length in self._automaton.iter(text):
            begin, end = last + 1 - length, last + 1
            if best is not None and end - self._longest > best[0]:
                break  # no later match begins as early
            if (best is None or begin < best[0] or (begin == best[0] and end > best[1])) and self._alone(
                text, before, begin, end
            ):
                best = begin, end
        if best is None:
            return None
        offset = start + len(text[: best[0]].encode("utf-8", "surrogatepass"))
        return offset, offset + len(text[best[0] : best[1]].encode("utf-8", "surrogatepass"))

    def end_at(self, buffer: bytes, start: int) -> int | None:
        found = self.find(buffer, start)
        return found[1] if found is not None and found[0] == start else None

    def starts(self) -> frozenset[int]:
        return self._starts

    def hold(self, buffer: bytes, start: int) -> int:
        text, before = self._text(buffer, start)
        size = len(text)
        matches = self._automaton.match
        for begin in range(max(0, size - self._longest), size):
            previous = text[begin - 1] if begin else before
            if not _joins(previous) and matches(text[begin:]):
                return start + len(text[:begin].encode("utf-8", "surrogatepass"))
        return len(buffer)

    @staticmethod
    def _text(buffer: bytes, start: int) -> tuple[str, str]:
        """The text from ``start`` on, with its case folded, and the character before it."""
        return fold(buffer[start:].decode("utf-8", "surrogatepass")), buffer[:start].decode("utf-8", "surrogatepass")[-1:]

    @staticmethod
    def _alone(text: str, before: str, begin: int, end: int) -> bool:
        return not _joins(text[begin - 1] if begin else before) and not _joins(text[end : end + 1])


def _joins(char: str) -> bool:
    return char.isalnum() or char == "_"
