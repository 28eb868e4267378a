"""Tracks the depth of a JSON text that arrives in pieces, and whether its value is complete. It visits structural characters
only."""

from __future__ import annotations

import re

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


class JsonDepth:
    """Tracks one JSON text; it may be split anywhere."""

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
