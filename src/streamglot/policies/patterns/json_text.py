"""Finds patterns in JSON that comes in pieces: the arguments of a tool call.

A secret inside a JSON string may be escaped (a private key has ``\\n`` where its lines end), so patterns must see the decoded string,
and a replacement must be escaped. Each string is a text of its own, and so is everything between two strings, where numbers are: a
match never crosses a quotation mark, and what is valid JSON stays valid JSON. Free text leaves exactly as it was written.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final

from msgspec import structs

from .scanner import Found, PatternSet, Scanner, Segment, joined

_PLAIN: Final = re.compile(r'[^"\\]+')
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([^u]))", re.DOTALL)
_LOW_HALF: Final = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_SOMETHING: Final = re.compile(r"[^\s{}\[\]:,]")
_LETTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
ESCAPE_CHARS: Final = 12
"""Characters of the longest escape, a pair of surrogates."""


class JsonScanner:
    """The same interface as a ``Scanner``, over JSON text."""

    __slots__ = ("_patterns", "_rest", "_scanner", "_stopped", "_tokens", "_within")

    def __init__(self, patterns: PatternSet) -> None:
        self._patterns = patterns
        self._within = False  # a string
        self._rest = ""  # an escape that is not whole
        self._scanner: Scanner | None = None
        self._tokens: deque[tuple[str, str]] = deque()  # what the scanner holds, as (decoded, as written)
        self._stopped = False

    @property
    def held(self) -> str:
        return "".join(written for _, written in self._tokens) + self._rest

    def feed(self, text: str) -> list[Segment]:
        given: list[Segment] = []
        text, self._rest, at = self._rest + text, "", 0
        while at < len(text) and not self._stopped:
            char = text[at]
            if char == '"':
                self._end_text(given)
                self._within = not self._within
                given.append('"')
                at += 1
            elif char == "\\" and self._within:
                token = _escape(text, at)
                if token is None:
                    self._rest = text[at:]
                    break
                self._scan(*token, given)
                at += len(token[1])
            elif self._within:
                end = _PLAIN.match(text, at).end()  # type: ignore[union-attr]  # a plain character stands at ``at``
                self._scan(text[at:end], text[at:end], given)
                at = end
            else:
                end = text.find('"', at)
                end = len(text) if end < 0 else end
                self._scan(text[at:end], text[at:end], given)
                at = end
        return joined(given)

    def close(self) -> list[Segment]:
        given: list[Segment] = []
        if self._rest and not self._stopped:
            self._scan(self._rest, self._rest, given)
            self._rest = ""
        self._end_text(given)
        self._stopped = True
        return joined(given)

    def _scan(self, decoded: str, written: str, given: list[Segment]) -> None:
        if self._scanner is None:
            if not self._within:  # brackets, commas and spaces behind a string
                found = _SOMETHING.search(decoded)
                begin = len(decoded) if found is None else found.start()
                given.append(decoded[:begin])
                decoded = written = decoded[begin:]
                if not decoded:
                    return
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
            elif isinstance(segment, Found):
                raw = self._written(len(segment.text))
                given.append(structs.replace(segment, raw=raw, in_string=self._within, bare=not self._within))
            else:
                self._stopped = True
                self._tokens.clear()
                given.append(segment)

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


def _escape(text: str, at: int) -> tuple[str, str] | None:
    """The escape at this place, decoded and as written; None if more of it must come first."""
    found = _ESCAPE.match(text, at)
    if found is None:
        whole = len(text) - at >= 6 or (len(text) - at >= 2 and text[at + 1] != "u")
        return (text[at], text[at]) if whole else None  # no escape that JSON knows: passes as it is
    if found[2] is not None:
        return _LETTERS.get(found[2], found[2]), found[0]
    code = int(found[1], 16)
    if not 0xD800 <= code < 0xDC00:
        return chr(code), found[0]
    low = _LOW_HALF.match(text, found.end())
    if low is not None:
        return chr(0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00), found[0] + low[0]
    following = text[found.end() :]
    may_come = len(following) < 6 and "\\u".startswith(following[:2])
    return None if may_come else (chr(code), found[0])
