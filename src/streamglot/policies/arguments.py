"""Finds patterns in JSON that comes in pieces: the arguments of a tool call.

A secret inside a JSON string may be escaped (a private key has ``\\n`` where its lines end). Therefore patterns see the decoded
string, and a replacement is escaped. Each string is searched alone: a match never crosses a quotation mark. A number that
contains a match is replaced by a string. Valid JSON stays valid JSON, and free text is not changed. If the text turns out not to
be JSON, the rest is searched as plain text.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final

from msgspec import structs

from ..json.tokenizer import escape
from ..patterns.scanner import Overflow, PatternMatch, PatternSet, Scanner, Segment, joined

_PLAIN: Final = re.compile(r'[^"\\]+')
_STRUCTURE: Final = re.compile(r"[\s{}\[\]:,]+")
_WORD: Final = re.compile(r"[^\s{}\[\]:,\"]+")
_BEGUN: Final = re.compile(
    r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?)?|t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?"
)
"""A number, ``true``, ``false`` or ``null``, or the beginning of one."""


class JsonScanner:
    """The same interface as a ``Scanner``, over JSON text."""

    __slots__ = ("_is_json", "_patterns", "_rest", "_scanner", "_stopped", "_tokens", "_within", "_word")

    def __init__(self, patterns: PatternSet) -> None:
        self._patterns = patterns
        self._is_json = True
        self._within = False  # a string
        self._word = ""  # a number or a name that has not ended
        self._rest = ""  # an incomplete escape
        self._scanner: Scanner | None = None  # for the open string, or for text that is not JSON
        self._tokens: deque[tuple[str, str]] = deque()  # what the scanner holds, as (decoded, as written)
        self._stopped = False

    @property
    def held(self) -> str:
        return "".join(written for _, written in self._tokens) + self._rest + self._word

    def feed(self, text: str) -> list[Segment]:
        given: list[Segment] = []
        text, self._rest, at = self._rest + text, "", 0
        while at < len(text) and not self._stopped:
            if not self._is_json:
                self._scan(text[at:], text[at:], given)
                break
            at = self._in_string(text, at, given) if self._within else self._between(text, at, given)
            if at < 0:  # the escape is incomplete
                break
        return joined(given)

    def close(self) -> list[Segment]:
        given: list[Segment] = []
        if self._rest and not self._stopped:
            self._scan(self._rest, self._rest, given)
            self._rest = ""
        self._end_word(given)
        self._end_text(given)
        self._stopped = True
        return joined(given)

    def _in_string(self, text: str, at: int, given: list[Segment]) -> int:
        char = text[at]
        if char == '"':
            self._end_text(given)
            self._within = False
            given.append('"')
            return at + 1
        if char == "\\":
            found = escape(text, at)
            if found is None:
                self._rest = text[at:]
                return -1
            end, meaning = found if found[0] > at else (at + 1, char)  # what is not an escape of JSON passes unchanged
            self._scan(meaning, text[at:end], given)
            return end
        plain = _PLAIN.match(text, at)
        assert plain is not None
        self._scan(plain[0], plain[0], given)
        return plain.end()

    def _between(self, text: str, at: int, given: list[Segment]) -> int:
        word = _WORD.match(text, at)
        if word is not None:
            self._word += word[0]
            if _BEGUN.fullmatch(self._word[: self._patterns.hold_chars]) is None:
                self._is_json = False
                begun, self._word = self._word, ""
                self._scan(begun, begun, given)
            elif len(self._word) >= self._patterns.hold_chars:
                self._stop(Overflow(self._patterns.hold_chars), given)
            return word.end()
        self._end_word(given)
        if text[at] == '"':
            self._within = True
            given.append('"')
            return at + 1
        structure = _STRUCTURE.match(text, at)
        assert structure is not None
        given.append(structure[0])
        return structure.end()

    def _end_word(self, given: list[Segment]) -> None:
        word, self._word = self._word, ""
        if word:
            found = next((each for each in self._patterns.segments(word) if isinstance(each, PatternMatch)), None)
            given.append(word if found is None else structs.replace(found, text=word, raw=word, bare=True))

    def _scan(self, decoded: str, written: str, given: list[Segment]) -> None:
        if self._scanner is None:
            self._scanner = Scanner(self._patterns)
        self._tokens.append((decoded, written))
        self._take(self._scanner.feed(decoded), given)

    def _end_text(self, given: list[Segment]) -> None:
        if self._scanner is not None:
            self._take(self._scanner.close(), given)
            self._scanner = None

    def _take(self, segments: list[Segment], given: list[Segment]) -> None:
        for segment in segments:
            if isinstance(segment, str):
                given.append(self._written(len(segment)))
            elif isinstance(segment, PatternMatch):
                given.append(structs.replace(segment, raw=self._written(len(segment.text)), in_string=self._within))
            else:
                self._stop(segment, given)

    def _stop(self, overflow: Overflow, given: list[Segment]) -> None:
        self._stopped = True
        self._tokens.clear()
        self._word = ""
        given.append(overflow)

    def _written(self, chars: int) -> str:
        """The next ``chars`` decoded characters, as they were written."""
        pieces: list[str] = []
        while chars:
            decoded, written = self._tokens.popleft()
            if len(decoded) > chars:  # only a plain run is longer than one character
                self._tokens.appendleft((decoded[chars:], written[chars:]))
                decoded, written = decoded[:chars], written[:chars]
            pieces.append(written)
            chars -= len(decoded)
        return "".join(pieces)
