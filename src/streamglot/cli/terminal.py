"""What may go to a terminal: text of others without its control characters, and colour only where it is wanted."""

from __future__ import annotations

import os
import sys
from typing import Final, TextIO

_LINE_BREAKS: Final = {ord("\n"): "\n", ord("\t"): "\t"}
_CONTROLS: Final = {
    **{code: chr(0x2400 + code) for code in range(0x20)},  # the pictures of control characters
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
    **dict.fromkeys((0x2028, 0x2029), "\n"),
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C), "\ufffd"),  # order of writing
    **_LINE_BREAKS,
}
DIM: Final = "\x1b[2m"
RED: Final = "\x1b[31m"
CYAN: Final = "\x1b[36m"
RESET: Final = "\x1b[0m"


def neutral(text: str) -> str:
    """The text with every control character made visible: no escape sequence survives without its escape. Each character
    stands for itself, so that it does not matter where a stream was cut."""
    return text.translate(_CONTROLS)


def coloured(file: TextIO) -> bool:
    """May this file be written to in colour?"""
    return is_terminal(file) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_terminal(file: TextIO) -> bool:
    try:
        return file.isatty()
    except ValueError:  # it is closed
        return False


def complain(message: str) -> None:
    """One line on standard error, whatever the message holds."""
    start, end = (RED, RESET) if coloured(sys.stderr) else ("", "")
    print(f"{start}streamglot: {neutral(message)}{end}", file=sys.stderr, flush=True)
