"""Renders an answer as markdown on a terminal, live.

Complete paragraphs and fenced blocks are printed once. Only the last, unfinished block is redrawn, a few times a second.
Therefore the cost grows linearly with the text, and an answer may be longer than the screen.
"""

from __future__ import annotations

import time
from typing import Final, TextIO

from rich.live import Live
from rich.markdown import Markdown
from rich.spinner import Spinner

from .console import Console
from .terminal import EchoOff, neutral
from .text_output import PlainPrinter

FRAMES: Final = 10
"""How many times a second the unfinished block is redrawn."""
FENCES: Final = ("```", "~~~")


class MarkdownPrinter(PlainPrinter):
    def __init__(self, out: TextIO, err: TextIO, *, reasoning: bool = True) -> None:
        super().__init__(out, err, reasoning=reasoning)
        self._console = Console(file=out, highlight=False, soft_wrap=False)
        self._live: Live | None = None
        self._pending: list[str] = []
        self._drawn = 0.0
        self._keyboard = EchoOff(out)
        self._wait()

    # --- overridden

    def text(self, text: str) -> None:
        self.thought()
        self._pending.append(neutral(text))
        now = time.monotonic()
        if now - self._drawn > 1 / FRAMES:
            self._drawn = now
            self._commit_whole_blocks()
            self._draw()

    def end_of_text(self) -> None:
        self._settle()

    def write(self, text: str) -> None:
        self._settle()
        super().write(text)

    def think(self, text: str) -> None:
        self._settle()
        super().think(text)

    def remark(self, text: str) -> None:
        self._settle()
        super().remark(text)

    def close(self) -> None:
        try:
            self._settle()
            super().close()
        finally:
            self._keyboard.end()

    # --- drawing

    def _wait(self) -> None:
        """Shows a spinner until the first word arrives."""
        self._live = Live(Spinner("dots"), console=self._console, refresh_per_second=FRAMES, transient=True)
        self._live.start()

    def _draw(self) -> None:
        source = "".join(self._pending)
        if not source.strip():
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(self._rendered(_tail(source, self._console.height - 3)), refresh=True)

    def _settle(self) -> None:
        """Prints the unfinished block for the last time."""
        self._stop_drawing()
        source, self._pending = "".join(self._pending), []
        if source.strip():
            self._print(source)

    def _commit_whole_blocks(self) -> None:
        source = "".join(self._pending)
        whole, rest = split_blocks(source)
        if whole.strip():
            self._stop_drawing()
            self._print(whole)
        self._pending = [rest] if rest else []

    def _print(self, source: str) -> None:
        self._console.print(self._rendered(source))
        self._at_start = True

    def _stop_drawing(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _rendered(self, source: str) -> Markdown:
        return Markdown(
            source, hyperlinks=False, code_theme="ansi_dark"
        )  # the user sees the address of a link, not only its text


def split_blocks(source: str) -> tuple[str, str]:
    """Splits at the last blank line outside of fences."""
    fence, cut, place = "", 0, 0
    listed = False
    for line in source.splitlines(keepends=True):
        bare = line.strip()
        place += len(line)
        if fence:
            if bare.startswith(fence) and not bare.strip(fence[0]) and line.endswith("\n"):
                fence, cut = "", place
        elif bare.startswith(FENCES):
            if not listed:
                cut = place - len(line)
            fence = bare[: len(bare) - len(bare.lstrip(bare[0]))]
        elif not bare and line.endswith("\n") and not listed:
            cut = place
        elif bare:
            listed = bare[0] in "-*+|" or bare[:1].isdigit() or line[0] in " \t"  # a list continues after blank lines
    return source[:cut], source[cut:]


def _tail(source: str, lines: int) -> str:
    """Returns the last lines of a block that is longer than the screen, with its opening fence."""
    every = source.splitlines(keepends=True)
    if len(every) <= lines or lines < 1:
        return source
    first = every[0] if every[0].strip().startswith(FENCES) else ""
    return first + "".join(every[-lines:])
