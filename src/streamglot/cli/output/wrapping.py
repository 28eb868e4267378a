"""Wraps text between words at the width of a terminal. A terminal itself wraps in the middle of a word."""

from __future__ import annotations

import os
import re
import unicodedata
from contextlib import suppress
from typing import Final, TextIO

DEFAULT_COLUMNS: Final = 80
"""The width of a terminal that does not tell it."""
TAB_COLUMNS: Final = 8
"""The distance of a terminal's tab stops, in columns."""
_WIDE: Final = "\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6"
"""Letters of languages that are written without spaces. A line may end after each of them."""
_WITHOUT_SPACES: Final = re.compile(f"[{_WIDE}]")
_PIECES: Final = re.compile(rf"\n|[ \t]+|[{_WIDE}]|[^ \t\n{_WIDE}]+")


def columns_of(file: TextIO) -> int:
    """Returns the width of a terminal. The variable COLUMNS counts more than the terminal, as for other programs."""
    with suppress(ValueError):
        if (columns := int(os.environ.get("COLUMNS", ""))) > 0:
            return columns
    with suppress(OSError, ValueError):  # it is closed, or not a terminal
        return os.get_terminal_size(file.fileno()).columns or DEFAULT_COLUMNS
    return DEFAULT_COLUMNS


def wrapped(text: str, columns: int) -> str:
    """Returns the whole text, wrapped."""
    box = WordWrap(columns)
    return box.feed(text) + box.close()


class WordWrap:
    """Wraps text that arrives in pieces. It holds the last word back until its end is known, and at most one line.

    The lines of a wrapped paragraph have the indent of its first line. A word that is wider than the terminal is not changed.
    """

    def __init__(self, columns: int) -> None:
        self._columns = max(1, columns - 1)  # some terminals begin a line after a character in the last column
        self._column = 0
        self._indent = self._space = self._word = ""
        self._overlong = False
        """Whether the last word is wider than a line, and its end did not arrive yet."""

    def feed(self, text: str) -> str:
        written = []
        for piece in _PIECES.findall(text):
            if self._overlong and not piece.isspace():
                written.append(piece)  # no line of the terminal has room for this word
                self._advance(_width(piece))
                continue
            self._overlong = False
            if piece == "\n":
                written += (self._take_word(), "\n")
                self._column, self._indent, self._space = 0, "", ""
            elif piece.isspace():
                written.append(self._take_word())
                self._space += piece
            else:
                self._word += piece
                self._overlong = len(self._word) > self._columns
                if self._overlong or _WITHOUT_SPACES.match(piece):
                    written.append(self._take_word())
        return "".join(written)

    def close(self) -> str:
        return self._take_word() + self._space

    def _advance(self, columns: int) -> None:
        self._column += columns
        if self._column > self._columns:  # the terminal breaks a word that is wider than a line
            self._column = self._column % (self._columns + 1) or self._columns

    def _take_word(self) -> str:
        word, self._word = self._word, ""
        if not word:
            return ""
        space, self._space = self._space, ""
        size = _width(word)
        gap = _width(space, self._column)
        if not self._column:
            self._indent = space if gap <= self._columns // 2 else ""
        elif self._column + gap + size > self._columns:
            space = f"\n{self._indent}"
            self._column, gap = 0, _width(self._indent)
        self._advance(gap + size)
        return space + word


def _width(text: str, column: int = 0) -> int:
    """Returns the columns of a text that begins at a column."""
    if text.isascii() and "\t" not in text:
        return len(text)
    end = column
    for letter in text:
        if letter == "\t":
            end += TAB_COLUMNS - end % TAB_COLUMNS
        elif not unicodedata.combining(letter):
            end += 2 if unicodedata.east_asian_width(letter) in "WF" else 1
    return end - column
