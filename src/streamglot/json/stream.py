"""Checks JSON while it is written: syntax, the type of the whole, and each member of the top level against its schema.

A fault is reported at the character that shows it, for any division of the text: words and numbers are judged at the character
after them, names of properties at their end, members of the top level when they are complete. The whole value is checked once
more at its end. Each character is decoded twice at most."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from ..json_types import JSON_ERRORS, JsonValue
from .schema import Schema

MAX_DEPTH: Final = 512
"""Levels of nesting. Real values are not nested deeper."""
_SPACE: Final = re.compile(r"[ \t\r\n]+")
_STRING_RUN: Final = re.compile(r'[^"\\\x00-\x1f]+')
_WORD: Final = re.compile(r"[^\s{}\[\]:,\"]+")
_SCALAR: Final = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_VALUE, _KEY, _COLON, _NEXT = "a value", "a property name", "a colon", "a comma or the end"


class JsonChecker:
    """``feed`` returns the position of a fault in its text, or None; ``fault`` describes it."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._stack: list[str] = []
        self._expects = _VALUE
        self._may_close = False  # directly after an opening bracket
        self._in_string = self._escaped = self._is_key = False
        self._word: list[str] = []
        self._text: list[str] = []  # of the whole value
        self._member: list[str] | None = None  # of the member of the top level that is being written
        self._key: list[str] = []
        self._name: str | int = 0
        self._done = False
        self.fault = ""

    def feed(self, text: str) -> int | None:
        at = 0
        while at < len(text):
            end = self._step(text, at)
            if self.fault:
                return at
            at = end
        return None

    def _step(self, text: str, at: int) -> int:
        """Reads from ``at``. Returns the position after what was read, or sets ``fault``."""
        if self._in_string:
            return self._string(text, at)
        word = _WORD.match(text, at)
        if word is not None:
            if self._done:
                self.fault = "there is text after the JSON value"
            elif not self._word and self._expects != _VALUE:
                self.fault = f"{self._expects} is missing before {word[0][0]!r}"
            self._word.append(word[0])
            return word.end()
        if self._word:
            self._end_word()
            if self.fault:
                return at
        space = _SPACE.match(text, at)
        if space is not None:
            self._keep(space[0])
            return space.end()
        self._mark(text[at])
        return at + 1

    def _string(self, text: str, at: int) -> int:
        char = text[at]
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            self._keep(char)
            if self._is_key:
                self._expects = _COLON
                if len(self._stack) == 1:
                    self._end_key()
            else:
                self._end_value()
            return at + 1
        else:
            run = _STRING_RUN.match(text, at)
            if run is None:
                self.fault = "a string contains a control character"
                return at
            self._keep(run[0])
            if self._is_key and len(self._stack) == 1:
                self._key.append(run[0])
            return run.end()
        self._keep(char)
        if self._is_key and len(self._stack) == 1:
            self._key.append(char)
        return at + 1

    def _end_key(self) -> None:
        name = self._decoded(['"', *self._key, '"'])
        if not self.fault:
            self._name = name
            if self._schema.member(name) is False:
                self.fault = f"the property {name!r} is not allowed"

    def _end_word(self) -> None:
        word = "".join(self._word)
        self._word = []
        if _SCALAR.fullmatch(word) is None:
            self.fault = f"{word[:40]!r} is not a JSON value"
            return
        self._begin_value({"t": "boolean", "f": "boolean", "n": "null"}.get(word[0], "number"))
        if not self.fault:
            self._keep(word)
            self._end_value()

    def _mark(self, char: str) -> None:
        if self._done:
            self.fault = "there is text after the JSON value"
        elif char == '"' and self._expects in (_VALUE, _KEY):
            self._is_key = self._expects == _KEY
            if self._is_key:
                self._key = []
            else:
                self._begin_value("string")
            self._in_string = True
            self._keep(char)
        elif char in "{[" and self._expects == _VALUE:
            self._begin_value("object" if char == "{" else "array")
            self._keep(char)
            self._stack.append(char)
            self._expects, self._may_close = (_KEY if char == "{" else _VALUE), True
            if len(self._stack) > MAX_DEPTH:
                self.fault = f"the value is nested more than {MAX_DEPTH} times"
            return
        elif (
            char in "}]"
            and self._stack
            and self._stack[-1] == {"}": "{", "]": "["}[char]
            and (self._expects == _NEXT or self._may_close)
        ):
            self._stack.pop()
            self._keep(char)
            self._end_value()
        elif char == ":" and self._expects == _COLON:
            self._keep(char)
            self._expects = _VALUE
        elif char == "," and self._expects == _NEXT and self._stack:
            self._keep(char)
            self._expects = _KEY if self._stack[-1] == "{" else _VALUE
            if len(self._stack) == 1 and isinstance(self._name, int) and self._stack[0] == "[":
                self._name += 1
        else:
            self.fault = f"there is {char!r} where {self._expects} must be"
        self._may_close = False

    def _begin_value(self, kind: str) -> None:
        self._may_close = False
        schema = self._schema
        if not self._stack and not (schema.allows_type(kind) or (kind == "number" and schema.allows_type("integer"))):
            self.fault = f"the value is of type {kind}, which the schema does not allow"
        elif len(self._stack) == 1:
            self._member = []

    def _keep(self, text: str) -> None:
        self._text.append(text)
        if self._member is not None:
            self._member.append(text)

    def _end_value(self) -> None:
        self._expects = _NEXT
        if len(self._stack) == 1 and self._member is not None:
            value = self._decoded(self._member)
            if not self.fault:
                self.fault = self._schema.fault_of_member(self._name, value)
            self._member = None
        elif not self._stack:
            self._done = True
            value = self._decoded(self._text)
            if not self.fault:
                self.fault = self._schema.fault(value)

    def _decoded(self, pieces: list[str]) -> JsonValue:
        try:
            return msgspec.json.decode("".join(pieces))
        except JSON_ERRORS as error:
            self.fault = f"the text is not valid JSON: {error}"
            return None
