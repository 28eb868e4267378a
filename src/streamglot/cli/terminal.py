"""What may go to a terminal: text of others without its control characters, and colour only where it is wanted."""

from __future__ import annotations

import os
import sys
from typing import Final, TextIO

from ..characters import neutral as neutral

DIM: Final = "\x1b[2m"
RED: Final = "\x1b[31m"
CYAN: Final = "\x1b[36m"
RESET: Final = "\x1b[0m"


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
