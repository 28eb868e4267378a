"""Parses the body of a message batch as a stream: ``{"requests": [{…}, {…}]}`` yields each request as a line of JSON."""

from __future__ import annotations

import re
from typing import Final

from ..errors import RequestError
from ..framing.lines import Utf8
from ..json.tokenizer import JsonDepth

OPENING_CHARS: Final = 1024
"""Characters before the first request: a name, two brackets and white space."""
_OPENING: Final = re.compile(r'\s*\{\s*"requests"\s*:\s*\[')
_NO_OPENING: Final = 'it must begin with {"requests": [, without other fields'
_LINE_ENDS: Final = str.maketrans("\r\n", "  ")
"""Replaces line ends by spaces. Outside of strings they are white space, and JSON does not allow them inside."""


class RequestArray:
    """``feed`` returns the requests that are complete. A request of more than ``most`` characters is refused."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._utf8 = Utf8()
        self._state = "opening"
        self._text = ""
        self._pieces: list[str] = []
        self._size = 0
        self._depth = JsonDepth()

    def feed(self, chunk: bytes) -> list[bytes]:
        return self._read(self._utf8.feed(chunk))

    def close(self) -> list[bytes]:
        lines = self._read(self._utf8.close())
        if self._state == "opening":
            raise _wrong(_NO_OPENING)
        if self._state != "end":
            raise _wrong("it ends before its last bracket")
        return lines

    def _read(self, text: str) -> list[bytes]:
        lines: list[bytes] = []
        position = 0
        if self._state == "opening":
            self._text += text
            found = _OPENING.match(self._text)
            if found is None:
                if len(self._text) > OPENING_CHARS:
                    raise _wrong(_NO_OPENING)
                return lines
            text, position, self._text = self._text, found.end(), ""
            self._state = "first"
        while position < len(text):
            if self._state == "element":
                position = self._element(text, position, lines)
            else:
                position = self._between(text, position)
        return lines

    def _between(self, text: str, position: int) -> int:
        """Reads white space, commas and closing brackets around the requests."""
        character = text[position]
        if character.isspace():
            return position + 1
        expected = {"first": "{]", "next": "{", "behind": ",]", "closing": "}", "end": ""}[self._state]
        if character not in expected:
            raise _wrong(f"it has {character!r} where {' or '.join(expected) or 'nothing'} belongs")
        if character == "{" and self._state in ("first", "next"):
            self._state = "element"
            return position
        self._state = {",": "next", "]": "closing", "}": "end"}[character]
        return position + 1

    def _element(self, text: str, position: int, lines: list[bytes]) -> int:
        end = self._depth.feed(text, position)
        piece = text[position : end if end >= 0 else None]
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > self._maximum:
            raise RequestError(
                f"a request has more than {self._maximum} characters (server.max_body_bytes)",
                code="request_too_large",
                status=413,
            )
        if end < 0:
            return len(text)
        lines.append("".join(self._pieces).translate(_LINE_ENDS).encode())
        self._pieces, self._size, self._depth, self._state = [], 0, JsonDepth(), "behind"
        return end


def _wrong(what: str) -> RequestError:
    return RequestError(f'the body must be {{"requests": [{{"custom_id": …, "params": {{…}}}}, …]}}: {what}')
