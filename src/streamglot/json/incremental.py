"""JSON that is still being written: its value so far, and a check against a schema at each character."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from ..json_types import JSON_ERRORS, JsonValue
from .schema import Schema
from .tokenizer import BEGIN_STRING, END_STRING, KEY, SCALAR, Tokenizer

MAX_DEPTH: Final = 128
"""Levels of nested lists and objects of a value that is read before it is complete. Deeper values would overflow the recursion of
JSON parsers."""
MAX_CHECKED_DEPTH: Final = 512
"""Levels of nesting of a value that is checked. Real values are not nested deeper."""
_BEGIN: Final = re.compile(r"\s*(?:```[A-Za-z]*\s*)?")
"""Some models put JSON into a code block although the prompt forbids it."""
_SPECIAL: Final = re.compile(r'["{}\[\],:]')
_IN_STRING: Final = re.compile(r'["\\]')
_UNFINISHED_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?$")
_HALF_OF_A_PAIR: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")
_OPENING: Final = frozenset(["{", "["])
_BEGINNING: Final = _OPENING | {BEGIN_STRING, SCALAR}
_CLOSING: Final = frozenset(["}", "]", END_STRING, SCALAR])
_KINDS: Final = {"{": "object", "[": "array", BEGIN_STRING: "string"}
_SCALAR_KINDS: Final = {"t": "boolean", "f": "boolean", "n": "null"}


class PartialJson:
    """Accepts text in pieces and closes it at any point: ``{"city": "Par`` becomes ``{"city": "Par"}``. A number, or a word such as
    ``true``, is left out until the character after it has come. A key without its value is left out.

    The text is scanned once, without tokens: numbers and whole strings cost nothing, and what is no JSON shows when it is decoded.
    ``value`` decodes all of it, so callers should not read it after every character."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._closers: list[str] = []
        self._in_string = self._escaped = False
        self._begun = False
        self._safe = 0
        """The text before this position is complete: it ends after a value or an opening bracket."""
        self._string_at = 0
        self._string_is_key = False
        self._expects_key = False
        self._length = 0

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def feed(self, text: str) -> None:
        if not self._begun:
            text = (self.text + text).lstrip()
            self._pieces = []
            begin = _BEGIN.match(text)
            assert begin is not None  # every part of the pattern is optional
            rest = text[begin.end() :]
            self._begun = bool(rest) and not (rest[0] == "`" and len(rest) < 3)
            if not self._begun:
                self._pieces = [text]
                return
            text = rest
        self._pieces.append(text)
        self._scan(text)
        self._length += len(text)

    def _scan(self, text: str) -> None:
        base, at = self._length, 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_IN_STRING if self._in_string else _SPECIAL).search(text, at)
            if found is None:
                return
            mark, at = found[0], found.end()
            if self._in_string:
                if mark == "\\":
                    self._escaped = True
                else:
                    self._in_string = False
                    if not self._string_is_key:
                        self._safe = base + at
            elif mark == '"':
                self._in_string = True
                self._string_at = base + at - 1
                self._string_is_key = self._expects_key
            else:
                self._bracket(mark, base + at)

    def _bracket(self, mark: str, end: int) -> None:
        if mark in "{[":
            self._closers.append("}" if mark == "{" else "]")
            self._expects_key = mark == "{"
            self._safe = end
        elif mark in "}]":
            if self._closers:
                self._closers.pop()
            self._safe = end
            self._expects_key = False
        elif mark == ",":
            self._safe = end - 1
            self._expects_key = bool(self._closers) and self._closers[-1] == "}"
        else:
            self._expects_key = False

    def value(self, *, open_text: bool = True) -> JsonValue:
        """The value so far; ``msgspec.UNSET`` if nothing can be read.

        ``open_text`` includes the string that is still being written.
        """
        if not self._closers or len(self._closers) > MAX_DEPTH:
            return self.whole() if not self._closers else msgspec.UNSET
        text, closers = self.text, "".join(reversed(self._closers))
        candidates = [text[: self._safe] + closers]
        if open_text and self._in_string and not self._string_is_key:
            rest = text[self._safe :]
            rest = (
                rest[: -len(found[0])]
                if (found := _UNFINISHED_ESCAPE.search(rest, len(rest) - 6)) and self._escaped_at_end(rest)
                else rest
            )
            rest = rest[: -len(half[0])] if (half := _HALF_OF_A_PAIR.search(rest, len(rest) - 6)) else rest
            candidates.insert(0, f'{text[: self._safe]}{rest}"{closers}')
        for candidate in candidates:
            try:
                return msgspec.json.decode(candidate)
            except JSON_ERRORS:
                continue
        return msgspec.UNSET

    def _escaped_at_end(self, rest: str) -> bool:
        """Whether the backslash at the end begins an escape and is not itself escaped."""
        before = rest[: rest.rindex("\\")]
        return (len(before) - len(before.rstrip("\\"))) % 2 == 0

    def whole(self) -> JsonValue:
        """The value if it is complete; ``msgspec.UNSET`` otherwise."""
        text = self.text.rstrip().removesuffix("```")
        try:
            return msgspec.json.decode(text)
        except JSON_ERRORS:
            return msgspec.UNSET


class JsonChecker:
    """Checks JSON while it is written: syntax, the type of the whole, and each member of the top level against its schema.

    A fault is reported at the character that shows it, for any division of the text: words and numbers are judged at the character
    after them, names of properties at their end, members of the top level when they are complete. The whole value is checked once
    more at its end. Each character is decoded twice at most. ``feed`` returns the position of a fault in its text, or None; ``fault``
    describes it."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._tokens = Tokenizer(MAX_CHECKED_DEPTH)
        self._text: list[str] = []  # of the whole value
        self._member: list[str] | None = None  # of the member of the top level that is being written, in earlier pieces
        self._name: str | int = 0
        self.fault = ""

    def feed(self, text: str) -> int | None:
        begin = 0  # of the member in this piece
        for kind, at, end, written, level in self._tokens.feed(text):
            if level > 1 and (level > 2 or kind not in _OPENING):
                continue  # inside a member
            if kind in _BEGINNING:
                outside = level - (kind in _OPENING)
                begin = self._begin_value(kind, written, outside, at, begin)
            if kind in _CLOSING:
                self._end_value(text, begin, end, written, level)
            elif level == 1:
                self._at_top(kind, written)
            if self.fault:
                return at
        if self._tokens.fault:
            self.fault = self._tokens.fault
            return self._tokens.fault_at
        if self._member is not None:
            self._member.append(text[begin:])
        self._text.append(text)
        return None

    def _begin_value(self, kind: str, written: str, level: int, at: int, begin: int) -> int:
        """Where the text of the member begins."""
        if level == 1:
            self._member = []
            return at
        if level == 0:
            name = _KINDS.get(kind) or _SCALAR_KINDS.get(written[0], "number")
            if not (self._schema.allows_type(name) or (name == "number" and self._schema.allows_type("integer"))):
                self.fault = f"the value is of type {name}, which the schema does not allow"
        return begin

    def _end_value(self, text: str, begin: int, end: int, scalar: str, level: int) -> None:
        if self.fault:
            return
        if level == 1 and self._member is not None:
            value = self._decoded(scalar or "".join((*self._member, text[begin:end])))
            self.fault = self.fault or self._schema.fault_of_member(self._name, value)
            self._member = None
        elif level == 0:
            value = self._decoded("".join((*self._text, text[:end])))
            self.fault = self.fault or self._schema.fault(value)

    def _at_top(self, kind: str, written: str) -> None:
        """A token of the top-level object or array itself."""
        if kind == KEY:
            self._name = self._decoded(f'"{written}"')
            if not self.fault and self._schema.member(self._name) is False:
                self.fault = f"the property {self._name!r} is not allowed"
        elif kind == "," and isinstance(self._name, int):
            self._name += 1

    def _decoded(self, text: str) -> JsonValue:
        try:
            return msgspec.json.decode(text)
        except JSON_ERRORS as error:
            self.fault = f"the text is not valid JSON: {error}"
            return None
