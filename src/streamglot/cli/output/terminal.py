"""Text for a terminal: without control characters, wrapped between words, and in colour only if the terminal supports it."""

from __future__ import annotations

import atexit
import os
import re
import sys
import unicodedata
from contextlib import suppress
from typing import Any, Final, TextIO

from ...text import neutral as neutral
from ...text import one_line as one_line

DEFAULT_COLUMNS: Final = 80
"""The width of a terminal that does not tell it."""
TAB_COLUMNS: Final = 8
"""The distance of a terminal's tab stops, in columns."""
_WIDE: Final = "\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6"
"""Letters of languages that are written without spaces. A line may end after each of them."""
_WITHOUT_SPACES: Final = re.compile(f"[{_WIDE}]")
_PIECES: Final = re.compile(rf"\n|[ \t]+|[{_WIDE}]|[^ \t\n{_WIDE}]+")


def columns_of(file: TextIO) -> int:
    """The width of a terminal. The variable COLUMNS counts more than the terminal, as for other programs."""
    with suppress(ValueError):
        if (columns := int(os.environ.get("COLUMNS", ""))) > 0:
            return columns
    with suppress(OSError, ValueError):  # it is closed, or not a terminal
        return os.get_terminal_size(file.fileno()).columns or DEFAULT_COLUMNS
    return DEFAULT_COLUMNS


def wrapped(text: str, columns: int) -> str:
    """The whole text, wrapped."""
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
    """The columns of a text that begins at a column."""
    if text.isascii() and "\t" not in text:
        return len(text)
    end = column
    for letter in text:
        if letter == "\t":
            end += TAB_COLUMNS - end % TAB_COLUMNS
        elif not unicodedata.combining(letter):
            end += 2 if unicodedata.east_asian_width(letter) in "WF" else 1
    return end - column


try:
    import termios
except ModuleNotFoundError:  # not on Windows
    termios = None  # type: ignore[assignment]  # there is no other way to say that a module may be missing

BOLD: Final = "\x1b[1m"
DIM: Final = "\x1b[2m"
RED: Final = "\x1b[31m"
GREEN: Final = "\x1b[32m"
CYAN: Final = "\x1b[36m"
RESET: Final = "\x1b[0m"


def well_formed(text: str) -> str:
    """Replaces bytes that are not UTF-8 by U+FFFD in text from the command line, a file name or the keyboard. No request and no
    database accepts such bytes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def coloured(file: TextIO) -> bool:
    """May this file be written to in colour?"""
    return is_terminal(file) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_terminal(file: TextIO) -> bool:
    try:
        return file.isatty()
    except ValueError:  # it is closed
        return False


def readable(text: str, file: TextIO) -> str:
    """The text without control characters, and for a terminal wrapped between words."""
    return wrapped(neutral(text), columns_of(file)) if is_terminal(file) else neutral(text)


def print_status(text: str) -> None:
    """Prints text on standard error, beside the answer on standard output."""
    print(readable(text, sys.stderr), file=sys.stderr, flush=True)


def print_error(message: str) -> None:
    """Prints an error on standard error. A failure to write is ignored: it cannot be reported."""
    start, end = (RED, RESET) if coloured(sys.stderr) else ("", "")
    with suppress(OSError):
        print(f"{start}{readable(f'streamglot: {message}', sys.stderr)}{end}", file=sys.stderr, flush=True)


class EchoOff:
    """Switches the terminal's echo off while a command draws on it: each echoed character, and the ``^C`` of an interrupt, would
    move the cursor. The next prompt reads what is typed meanwhile."""

    def __init__(self, file: TextIO) -> None:
        self._number = -1
        self._before: list[Any] | None = None  # Any: the attributes, as termios has them
        if termios is None or not is_terminal(file) or os.tcgetpgrp(file.fileno()) != os.getpgrp():
            return  # the system stops a background process that changes its terminal
        try:
            before = termios.tcgetattr(file.fileno())
            quiet = [*before]
            quiet[3] &= ~termios.ECHO
            termios.tcsetattr(file.fileno(), termios.TCSADRAIN, quiet)
        except termios.error:  # the terminal was closed
            return
        self._number, self._before = file.fileno(), before
        atexit.register(self.end)  # an interrupt may arrive before the caller's `finally` is active

    def end(self) -> None:
        """Restores the terminal. It may be called more than once."""
        before, self._before = self._before, None
        atexit.unregister(self.end)
        if termios is not None and before is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._number, termios.TCSADRAIN, before)
