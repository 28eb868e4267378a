"""Prepares text for a terminal: removes control characters, and adds colour only if the terminal supports it."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import Any, Final, TextIO

from ...characters import neutral as neutral
from ...characters import one_line as one_line
from .wrapping import columns_of, wrapped

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
    """Returns the text without control characters, and for a terminal wrapped between words."""
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
