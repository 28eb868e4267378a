"""JSON that arrives in pieces: its tokens, and its depth. The pieces may be cut anywhere, also inside an escape or a pair of halves.

Three ways to read, from strict to quick. ``Tokenizer`` gives the tokens of a text that must be JSON, and the character that shows
that it is none. ``escape`` reads one escape of a string, for those who also accept text that is no JSON. ``JsonDepth`` only finds
where a value ends.
"""

from __future__ import annotations

import re
from json import JSONDecoder
from typing import Final, TypeAlias

import msgspec

BEGIN_STRING: Final = "begin string"
END_STRING: Final = "end string"
KEY: Final = "key"
SCALAR: Final = "scalar"

Token: TypeAlias = tuple[str, int, int, str, int]
"""The kind, begin and end in the piece, the text, and how many brackets are open after it. The kind of a bracket, a comma or a colon
is the character itself. The text is that of a ``KEY`` (without its quotation marks, with its escapes) or of a ``SCALAR`` (a number,
``true``, ``false`` or ``null``), which comes with the character after it."""
_VALUE, _NAME, _COLON, _NEXT = "a value", "a property name", "a colon", "a comma or the end"
_RUN: Final = r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u(?![dD][89abAB])[0-9a-fA-F]{4}))*+'
"""What a string may have, except halves of pairs. It never goes back: each repeat is possessive."""
_INSIDE: Final = re.compile(_RUN)
_LOOSE: Final = re.compile(r'(?:[^"\\]++|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))*+')
_TEXT: Final = msgspec.json.Decoder(str)
_LENIENT: Final = JSONDecoder(strict=False)
_OUTSIDE: Final = re.compile(rf'([ \t\r\n]++)|([^\s{{}}\[\]:,"]++)|"({_RUN})"|.', re.DOTALL)
_SCALAR: Final = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_OPENER: Final = {"}": "{", "]": "["}
_UNICODE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
_BEGUN: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_LOW_HALF: Final = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_LOW_BEGUN: Final = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?")
_LETTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
_STRUCTURE: Final = re.compile(r'["{}\[\]]')
_IN_STRING: Final = re.compile(r'["\\]')


def escape(text: str, at: int) -> tuple[int, str] | None:
    """The end and the meaning of the escape at this place; None if more of it must come first. A pair of halves is one escape, and half
    a pair means itself. What is not an escape has its own place as its end."""
    letter = text[at + 1 : at + 2]
    if letter and letter != "u":
        return at + 2, _LETTERS.get(letter, letter)
    found = _UNICODE.match(text, at)
    if found is None:
        return None if _BEGUN.fullmatch(text, at) else (at, "")
    code = int(found[1], 16)
    if 0xD800 <= code < 0xDC00:
        low = _LOW_HALF.match(text, found.end())
        if low is not None:
            return low.end(), chr(0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00)
        if _LOW_BEGUN.fullmatch(text, found.end()):
            return None
    return found.end(), chr(code)


def run(text: str, at: int) -> tuple[int, str]:
    """The end and the meaning of what stands in a string from here on, up to its end or to an escape for ``escape``: half a pair, one
    that is not complete, or one that JSON does not have. Control characters mean themselves."""
    found = _LOOSE.match(text, at)
    assert found is not None  # it matches the empty text
    meaning = found[0]
    if "\\" in meaning:
        try:
            meaning = _TEXT.decode(f'"{meaning}"')
        except ValueError:  # a control character, or half a pair that was decoded before
            meaning = _LENIENT.decode(f'"{meaning}"')
    return found.end(), meaning


class Tokenizer:
    """``feed`` gives the tokens of a piece. The first character that cannot be part of a JSON value ends the tokens: ``fault`` describes
    it, and ``fault_at`` is its place in the piece."""

    __slots__ = (
        "_expects",
        "_key",
        "_max_depth",
        "_may_close",
        "_spoiled",
        "_word",
        "done",
        "fault",
        "fault_at",
        "held",
        "in_string",
        "is_key",
        "open",
    )

    def __init__(self, max_depth: int) -> None:
        self._max_depth = max_depth
        self._expects = _VALUE
        self._may_close = False  # directly after an opening bracket
        self._spoiled = False  # the string has an escape that JSON does not have; it is judged at its end
        self.is_key = False
        self._key: list[str] = []
        self._word = ""  # a number or a name that may go on
        self.held = ""
        """The beginning of an escape, which the next piece completes."""
        self.open: list[str] = []
        """The brackets that are open."""
        self.in_string = self.done = False
        self.fault = ""
        self.fault_at = 0

    def feed(self, text: str) -> list[Token]:
        tokens: list[Token] = []
        shift, at = 0, 0
        if self.in_string and not self.is_key and not self.held and _INSIDE.fullmatch(text):
            return tokens  # most pieces are a part of a string
        if self.held:
            text, shift, self.held = self.held + text, len(self.held), ""
        size = len(text)
        while at < size and not self.fault:
            if self.in_string:
                at = self._string(text, at, shift, tokens)
                continue
            found = _OUTSIDE.match(text, at)
            assert found is not None  # it matches any character
            begin, at = at, found.end()
            kind = found.lastindex
            if kind == 2:
                self._add_to_word(found[2], begin - shift)
                continue
            if self._word:
                self._end_word(begin - shift, tokens)
            if kind == 3 and not self.fault:
                self._begin_string(begin - shift, tokens)
                if not self.fault:
                    self._end_string(at - shift, found[3], tokens)
            elif kind is None and not self.fault:
                self._mark(text[begin], begin - shift, tokens)
        return tokens

    def close(self) -> list[Token]:
        """The end of the text: a number at the top level ends here. A value that is not complete is a fault."""
        tokens: list[Token] = []
        if self._word and not self.fault:
            self._end_word(0, tokens)
        if not self.done and not self.fault:
            self._refuse(f"{'the end of a string' if self.in_string else self._expects} is missing", 0)
        return tokens

    def _string(self, text: str, at: int, shift: int, tokens: list[Token]) -> int:
        """Reads on in a string. Returns the place after what was read."""
        found = _INSIDE.match(text, at)
        assert found is not None  # it matches the empty text
        if self.is_key:
            self._key.append(found[0])
        at = found.end()
        if at == len(text):
            return at
        if text[at] == '"':
            self.in_string = False
            self._end_string(at + 1 - shift, "".join(self._key), tokens)
            return at + 1
        if text[at] != "\\":
            self._refuse("a string contains a control character", at - shift)
            return at
        escaped = escape(text, at)
        if escaped is None:
            self.held = text[at:]
            return len(text)
        end = max(escaped[0], at + 1)
        self._spoiled = self._spoiled or end <= at + 2
        if self.is_key:
            self._key.append(text[at:end])
        return end

    def _refuse(self, fault: str, at: int) -> None:
        self.fault, self.fault_at = fault, at

    def _end_value(self) -> None:
        self._expects = _NEXT
        self.done = not self.open

    def _begin_string(self, at: int, tokens: list[Token]) -> None:
        if self.done:
            self._refuse("there is text after the JSON value", at)
        elif self._expects == _VALUE:
            self.is_key = False
            tokens.append((BEGIN_STRING, at, at + 1, "", len(self.open)))
        elif self._expects == _NAME:
            self.is_key = True
            self._key = []
        else:
            self._refuse(f"there is '\"' where {self._expects} must be", at)
        self._may_close = False

    def _end_string(self, end: int, key: str, tokens: list[Token]) -> None:
        if self._spoiled:
            self._refuse("the text is not valid JSON: a string has an escape that JSON does not have", end - 1)
        elif self.is_key:
            self._expects = _COLON
            tokens.append((KEY, end - 1, end, key, len(self.open)))
        else:
            self._end_value()
            tokens.append((END_STRING, end - 1, end, "", len(self.open)))

    def _add_to_word(self, word: str, at: int) -> None:
        if self.done:
            self._refuse("there is text after the JSON value", at)
        elif not self._word and self._expects != _VALUE:
            self._refuse(f"{self._expects} is missing before {word[0]!r}", at)
        self._word += word

    def _end_word(self, at: int, tokens: list[Token]) -> None:
        word, self._word = self._word, ""
        if _SCALAR.fullmatch(word) is None:
            self._refuse(f"{word[:40]!r} is not a JSON value", at)
            return
        self._may_close = False
        self._end_value()
        tokens.append((SCALAR, at, at, word, len(self.open)))

    def _mark(self, char: str, at: int, tokens: list[Token]) -> None:
        """Takes a character that stands alone outside of strings."""
        expects = self._expects
        if char == '"':
            self._begin_string(at, tokens)
            self.in_string = not self.fault
            return
        if self.done:
            self._refuse("there is text after the JSON value", at)
        elif char == "," and expects == _NEXT:
            self._expects = _NAME if self.open[-1] == "{" else _VALUE
        elif char == ":" and expects == _COLON:
            self._expects = _VALUE
        elif char in "{[" and expects == _VALUE:
            self.open.append(char)
            self._expects, self._may_close = (_NAME if char == "{" else _VALUE), True
            if len(self.open) > self._max_depth:
                self._refuse(f"the value is nested more than {self._max_depth} times", at)
            tokens.append((char, at, at + 1, "", len(self.open)))
            return
        elif char in "}]" and self.open and self.open[-1] == _OPENER[char] and (expects == _NEXT or self._may_close):
            self.open.pop()
            self._end_value()
        else:
            self._refuse(f"there is {char!r} where {expects} must be", at)
        self._may_close = False
        if not self.fault:
            tokens.append((char, at, at + 1, "", len(self.open)))


class JsonDepth:
    """The depth of one JSON text, which may be split anywhere, and whether its value is complete. It visits strings and brackets only,
    so it is several times as fast as the tokens, and it tests nothing else."""

    def __init__(self) -> None:
        self.depth = 0
        self._string = False
        self._escaped = False
        self.seen = False

    @property
    def complete(self) -> bool:
        """Whether the text so far is one complete value. A number or a bare word counts as complete if nothing follows."""
        return self.seen and self.depth == 0 and not self._string

    def feed(self, piece: str, position: int = 0) -> int:
        """Reads from ``position`` to the end of an object, array or string at the top level. Returns the position after it, or
        -1."""
        if self._escaped and position < len(piece):
            self._escaped = False
            position += 1
        while position < len(piece):
            if self._string:
                found = _IN_STRING.search(piece, position)
                if found is None:
                    return -1
                position = found.end()
                if found[0] == "\\":
                    if position == len(piece):
                        self._escaped = True
                    position += 1
                    continue
                self._string = False
            else:
                found = _STRUCTURE.search(piece, position)
                if found is None:
                    self.seen = self.seen or bool(piece[position:].strip())
                    return -1
                self.seen = True
                position = found.end()
                mark = found[0]
                if mark == '"':
                    self._string = True
                    continue
                self.depth += 1 if mark in "{[" else -1
            if self.depth <= 0 and not self._string:
                return position
        return -1
