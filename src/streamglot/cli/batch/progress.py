"""The progress of a batch: one line that is redrawn at a terminal, or a new line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Final, TextIO

from msgspec import Struct

from ..output.terminal import is_terminal
from ..output.units import money

DRAWN_SECONDS: Final = 0.2
"""Seconds between two drawings at a terminal: short enough to look smooth."""
PRINTED_SECONDS: Final = 10.0
"""Seconds between two lines elsewhere, so that the log of a run of hours stays readable."""
BAR_CELLS: Final = 20


class Counts(Struct):
    """The counts of a batch. ``fraction`` is the part that is done, from 0 to 1. Unknown costs are not counted."""

    done: int = 0
    failed: int = 0
    retried: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    fraction: float = 0.0
    before: int = 0

    def line(self, seconds: float, began_at: float = 0.0) -> str:
        """The line. ``began_at`` is the fraction that was done when the clock started."""
        words = [f"{self.done} done", f"{self.failed} failed", f"{self.retried} retried"]
        if self.before:
            words.append(f"{self.before} before")
        words.append(f"{self.input_tokens} tokens in, {self.output_tokens} out")
        words.append("cost unknown" if self.cost is None else money(self.cost))
        made = self.done + self.failed
        words.append(f"{made / seconds if seconds > 0 else 0.0:.1f} items/s")
        if self.fraction < 1.0:
            part = self.fraction - began_at
            left = f"{_clock(seconds * (1.0 - self.fraction) / part)} left" if part > 0 and made else "time left unknown"
            words.append(left)
        cells = round(BAR_CELLS * self.fraction)
        return f"[{'#' * cells}{'.' * (BAR_CELLS - cells)}] {self.fraction:4.0%}  {', '.join(words)}"


class ProgressBar:
    """Shows counts on standard error. ``quiet`` shows the last line only."""

    clock = staticmethod(time.monotonic)

    def __init__(self, file: TextIO | None = None, *, quiet: bool = False) -> None:
        self._file = file or sys.stderr
        self._drawn = is_terminal(self._file)
        self._quiet = quiet
        self._began = self._last = self.clock()
        self._began_at: float | None = None

    def update(self, counts: Counts) -> None:
        now = self.clock()
        if self._began_at is None:
            self._began_at = counts.fraction
        if self._quiet or now - self._last < (DRAWN_SECONDS if self._drawn else PRINTED_SECONDS):
            return
        self._last = now
        self._show(counts, last=False)

    def end(self, counts: Counts) -> None:
        """Prints the last line, which stays on the screen."""
        self._show(counts, last=True)

    def _show(self, counts: Counts, *, last: bool) -> None:
        line = counts.line(self.clock() - self._began, self._began_at or 0.0)
        start, end = ("\r\x1b[K", "\n" if last else "") if self._drawn else ("", "\n")
        with suppress(OSError):  # a batch does not stop because its progress cannot be shown
            self._file.write(f"{start}{line}{end}")
            self._file.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(min(seconds, 359_999.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
