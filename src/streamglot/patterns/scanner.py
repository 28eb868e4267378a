"""Finds patterns in a text that comes in pieces, and holds as little of it as possible.

Theory of operation. The scanner keeps the undecided end of the text (``held``) and a few characters before it for assertions.
After each piece it asks two questions about ``held`` and the new text together:

1. From which place on can the rest still grow into a match? That is the hold position. It comes from the derived expression
   (``prefixes``), and RE2 answers by reading backwards from the end, so it costs no more than what is held.
2. Where is the leftmost-longest match? One that begins before the hold position is final: nothing earlier can become a match, and
   it cannot become longer. One that begins at the hold position or after it waits.

Everything before the hold position that is not part of a final match leaves as free text. The result therefore depends only on
the text and not on where it was cut. To keep the cost linear, a candidate that has grown past ``RESCAN_CHARS`` is looked at again
only at certain lengths, and a long piece is taken in parts, so that every candidate is looked at when it has exactly
``hold_chars`` characters. One that is still open then is not released: the scanner reports an ``Overflow``. This result also
depends only on the text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

from msgspec import Struct

from ..errors import ConfigError, excerpt
from .expressions import compiled, compiled_union

HOLD_CHARS: Final = 16_384
"""Characters of one candidate that are held at most. The longest secret that detectors know, an RSA key of 16,384 bits, has
12,800."""
RESCAN_CHARS: Final = 2048
"""Up to this length a candidate is looked at again with every piece. Beyond it, whenever it has grown by a sixteenth: so each
character is looked at a bounded number of times, and at most a sixteenth more than necessary is held."""
CONTEXT_CHARS: Final = 1
"""Characters kept before the held text, for assertions such as ``\\b``; a lookbehind needs its own width."""
MAX_WORD_CHARS: Final = 200
"""Characters of one word: the end of a text is compared with the beginnings of words up to this length."""
SURROGATES: Final = "surrogatepass"
"""A lone surrogate, which JSON can express, passes as it is."""


class Pattern(Struct, frozen=True):
    """``label`` says more exactly what matched than ``name`` does. A match counts only if ``check`` accepts its text."""

    name: str
    expression: str
    label: str = ""
    check: Callable[[str], bool] | None = None
    min_chars: int = 0
    max_chars: int = 0

    def accepts(self, text: str) -> bool:
        return (
            len(text) >= self.min_chars
            and (not self.max_chars or len(text) <= self.max_chars)
            and (self.check is None or self.check(text))
        )


class PatternMatch(Struct, frozen=True):
    """A match: its text, the name of its pattern, and the text as it was in the stream (in JSON it may have been escaped)."""

    text: str
    name: str
    label: str
    raw: str
    in_string: bool = False
    bare: bool = False

    def written(self, replacement: str) -> str:
        """The replacement as it must be written into the stream."""
        if self.in_string or self.bare:
            import json

            quoted = json.dumps(replacement, ensure_ascii=False)
            return quoted if self.bare else quoted[1:-1]
        return replacement


class Overflow(Struct, frozen=True):
    """A candidate grew past the hold limit. No text from there on is released."""

    chars: int


Segment: TypeAlias = str | PatternMatch | Overflow
"""Free text, a match, or the end of what may be released."""


class _Machine(Protocol):
    @property
    def width(self) -> int: ...
    def find(self, buffer: bytes, start: int) -> tuple[int, int] | None: ...
    def end_at(self, buffer: bytes, start: int) -> int | None: ...
    def starts(self) -> frozenset[int]: ...
    def hold(self, buffer: bytes, start: int) -> int: ...


class PatternSet:
    """Patterns and word lists compiled together: immutable, shared by all streams. ``scanner()`` starts a text."""

    def __init__(
        self, patterns: Sequence[Pattern], words: Mapping[str, Sequence[str]] | None = None, hold_chars: int = HOLD_CHARS
    ) -> None:
        lists = dict(words or {})
        if not patterns and not lists:
            raise ConfigError("there is no pattern and no word to look for: name at least one detector, pattern or word")
        if hold_chars < RESCAN_CHARS:
            raise ConfigError(f"hold_chars is {hold_chars}; at least {RESCAN_CHARS} characters must be allowed to wait")
        self.patterns = (*patterns, *(Pattern(name, "") for name in lists))
        self.hold_chars = hold_chars
        word_lists = [Words(of_list) for of_list in lists.values()]
        expressions = [compiled(pattern.expression) for pattern in patterns]
        self.each: tuple[_Machine, ...] = (*expressions, *word_lists)
        union = compiled_union(tuple(pattern.expression for pattern in patterns))
        alone: list[_Machine] = [search for search in expressions if search.width]
        self.quick: tuple[_Machine, ...] = (*([] if union is None else [union]), *alone, *word_lists)
        """One search for all plain patterns, and one for each lookbehind and word list: they answer most questions."""
        self.context_chars = max(CONTEXT_CHARS, *(machine.width for machine in self.each))

    def scanner(self) -> Scanner:
        return Scanner(self)

    def matches_at(self, buffer: bytes, start: int) -> list[tuple[int, Pattern]]:
        """The ends of the matches that begin here with their patterns: the longest first, of equal ones the first in the list."""
        code = buffer[start]
        ends: list[tuple[int, Pattern]] = []
        for machine, pattern in zip(self.each, self.patterns, strict=True):
            if code >= 128 or code in machine.starts():
                end = machine.end_at(buffer, start)
                if end is not None:
                    ends.append((end, pattern))
        return sorted(ends, key=lambda pair: -pair[0])

    def segments(self, text: str) -> list[Segment]:
        """The segments of a complete text."""
        scanner = Scanner(self)
        return [*scanner.feed(text), *scanner.close()]


@lru_cache(64)
def _next_scan(length: int, limit: int) -> int:
    """The length at which a candidate of this length is looked at again."""
    due = RESCAN_CHARS
    while due <= length:
        due += due // 16
    return min(due, limit)


class Scanner:
    """Scans one text. ``feed`` and ``close`` return segments; ``held`` is the text that waits."""

    __slots__ = ("_context", "_due", "_set", "_stopped", "held")

    def __init__(self, patterns: PatternSet) -> None:
        self._set = patterns
        self._context = b""
        self._due = patterns.hold_chars  # no candidate can pass the hold limit between two looks
        self._stopped = False
        self.held = ""

    def feed(self, text: str) -> list[Segment]:
        if self._stopped or not text:
            return []
        room = self._due - len(self.held)
        if len(text) <= room and (len(self.held) < RESCAN_CHARS or len(text) == room):
            return self._scan(text)
        given: list[Segment] = []
        at = 0
        while at < len(text) and not self._stopped:
            room = self._due - len(self.held)
            piece = text[at : at + room]
            at += len(piece)
            if len(self.held) >= RESCAN_CHARS and len(piece) < room:
                self.held += piece
            else:
                given += self._scan(piece)
        return joined(given)

    def close(self) -> list[Segment]:
        """The end of the text: what is held is decided now."""
        if self._stopped:
            return []
        self._stopped = True
        text, self.held = self.held, ""
        if not text:
            return []
        buffer = self._context + text.encode("utf-8", SURROGATES)
        start = len(self._context)
        if all(machine.find(buffer, start) is None for machine in self._set.quick):
            return [text]
        given: list[Segment] = []
        start, _ = self._resolve(buffer, start, None, given)
        if start < len(buffer):
            given.append(buffer[start:].decode("utf-8", SURROGATES))
        return given

    def _scan(self, piece: str) -> list[Segment]:
        text = self.held + piece
        context = self._context
        buffer = context + text.encode("utf-8", SURROGATES)
        start = len(context)
        hold, found = len(buffer), False
        for machine in self._set.quick:
            place = machine.hold(buffer, start)
            if place < hold:
                hold = place
        for machine in self._set.quick:
            span = machine.find(buffer, start)
            if span is not None and span[0] < hold:
                found = True
                break
        given: list[Segment] = []
        if found:
            start, hold = self._resolve(buffer, start, hold, given)
        if hold > start:
            given.append(buffer[start:hold].decode("utf-8", SURROGATES))
        self.held = buffer[hold:].decode("utf-8", SURROGATES) if hold < len(buffer) else ""
        if hold > len(context):
            # Four bytes a character at most: enough context in any script, without decoding all of the text.
            near = buffer[max(0, hold - 4 * self._set.context_chars) : hold].decode("utf-8", "replace")
            self._context = near[-self._set.context_chars :].encode()
        size = len(self.held)
        self._due = self._set.hold_chars if size < RESCAN_CHARS else _next_scan(size, self._set.hold_chars)
        if size >= self._set.hold_chars:
            self._stopped = True
            self.held = ""
            given.append(Overflow(size))
        return given

    def _resolve(self, buffer: bytes, start: int, hold: int | None, given: list[Segment]) -> tuple[int, int]:
        """Takes the final matches in order: leftmost, then longest, then first in the list. With ``hold`` None all are final."""
        quick = self._set.quick
        at = start  # no match begins before it
        while True:
            begins = [span[0] for machine in quick if (span := machine.find(buffer, at)) is not None]
            begin = min(begins, default=len(buffer))
            if begin >= (len(buffer) if hold is None else hold):
                return start, len(buffer) if hold is None else hold
            for end, pattern in self._set.matches_at(buffer, begin):
                text = buffer[begin:end].decode("utf-8", SURROGATES)
                if pattern.accepts(text):
                    if begin > start:
                        given.append(buffer[start:begin].decode("utf-8", SURROGATES))
                    given.append(PatternMatch(text, pattern.name, pattern.label, text))
                    at = start = end
                    if hold is not None and hold < start:
                        hold = min(machine.hold(buffer, start) for machine in quick)
                    break
            else:  # no check accepts what begins here
                at = begin + _width(buffer[begin])


def _width(first: int) -> int:
    """The number of bytes of a character, by its first byte."""
    return 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4


def joined(segments: list[Segment]) -> list[Segment]:
    """The same segments, with adjacent free texts joined."""
    joined: list[Segment] = []
    pending: list[str] = []
    for segment in segments:
        if isinstance(segment, str):
            pending.append(segment)
            continue
        if pending:
            joined.append("".join(pending))
            pending.clear()
        joined.append(segment)
    if pending:
        joined.append("".join(pending))
    return joined


# --- word lists


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
