"""What may go to a terminal: text of others without its control characters, and colour only where it is wanted."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import Any, Final, TextIO

from ...characters import neutral as neutral
from ...characters import one_line as one_line

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
    """Text from the command line, a file name or the keyboard, without the bytes that are not UTF-8: they become U+FFFD. With
    them it could go into no request and no database."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def coloured(file: TextIO) -> bool:
    """May this file be written to in colour?"""
    return is_terminal(file) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_terminal(file: TextIO) -> bool:
    try:
        return file.isatty()
    except ValueError:  # it is closed
        return False


def complain(message: str) -> None:
    """Prints a line on standard error, without control characters. If that cannot be written, nobody can be told."""
    start, end = (RED, RESET) if coloured(sys.stderr) else ("", "")
    with suppress(OSError):
        print(f"{start}streamglot: {neutral(message)}{end}", file=sys.stderr, flush=True)


class QuietKeyboard:
    """While a terminal is drawn on, it does not echo what is typed: each echoed character, and the ``^C`` of an interrupt, would
    move the cursor away from where the drawing left it. What is typed meanwhile is read by the next prompt."""

    def __init__(self, file: TextIO) -> None:
        self._number = -1
        self._before: list[Any] | None = None  # the attributes, as termios has them
        if termios is None or not is_terminal(file) or os.tcgetpgrp(file.fileno()) != os.getpgrp():
            return  # a process in the background would be stopped for changing its terminal
        try:
            before = termios.tcgetattr(file.fileno())
            quiet = [*before]
            quiet[3] &= ~termios.ECHO
            termios.tcsetattr(file.fileno(), termios.TCSADRAIN, quiet)
        except termios.error:  # the terminal is gone
            return
        self._number, self._before = file.fileno(), before
        atexit.register(self.end)  # an interrupt may come before the caller has put this into a `finally`

    def end(self) -> None:
        """The terminal is as it was. It may be called more than once."""
        before, self._before = self._before, None
        atexit.unregister(self.end)
        if termios is not None and before is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._number, termios.TCSADRAIN, before)
