"""An answer as markdown on a terminal, live.

Blocks that no later text can change (paragraphs, headings, lists, fenced code, tables) are printed once. Only the last, unfinished
block is redrawn, a few times a second. Therefore the cost grows linearly with the text, and an answer may be longer than the
screen. One empty line separates two blocks, wherever the text was cut.
"""

from __future__ import annotations

import errno
import time
from typing import Final, TextIO

import rich.console
from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment, SegmentLines
from rich.spinner import Spinner

from ...events import Event, StepEnd
from .printers import PlainPrinter
from .terminal import EchoOff, neutral


class Console(rich.console.Console):
    def on_broken_pipe(self) -> None:
        """Raises the error. Rich itself would exit here with its own status."""
        raise BrokenPipeError(errno.EPIPE, "the reader of the output closed the pipe")


FRAMES: Final = 10
"""How many times a second the unfinished block is redrawn."""
IDLE_FACTOR: Final = 4
"""The pause after a redraw is at least this many times as long as the redraw took. A long unfinished block, such as a list of a
thousand items, then takes at most a fifth of the time."""
FENCES: Final = ("```", "~~~")
_PARSER: Final = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
"""HTML is text: rich's own parser would read it as such and then show nothing of it."""
_BLOCK_PARSER: Final = MarkdownIt("commonmark", {"html": False}).enable("table").disable("inline")
"""Finds the same blocks, and does not read the text inside of them."""
_CLOSED_BY_BLANK_LINE: Final = ("paragraph_close", "blockquote_close", "table_close")
_CLOSED_AT_ONCE: Final = ("heading_close", "hr")

Line = list[Segment]


class MarkdownPrinter(PlainPrinter):
    def __init__(self, out: TextIO, err: TextIO, *, reasoning: bool = True) -> None:
        super().__init__(out, err, reasoning=reasoning)
        self._console = Console(file=out, highlight=False, soft_wrap=False)
        self._live: Live | None = None
        self._pending: list[str] = []
        self._next_frame = 0.0
        self._gap: list[Line] | None = None
        """The empty lines that separate the last printed block from the next one. None if no block precedes."""
        self._keyboard = EchoOff(out)
        self._wait()

    # --- overridden

    def feed(self, event: Event) -> None:
        if isinstance(event, StepEnd):
            self._settle()  # the text of the next model turn begins a new block
        super().feed(event)

    def text(self, text: str) -> None:
        self.thought()
        self._pending.append(neutral(text))
        now = time.monotonic()
        if now >= self._next_frame:
            self._show_frame(now)

    def end_of_text(self) -> None:
        """Shows the text up to here. The next text block may continue its paragraph."""
        if self._pending:
            self._show_frame(time.monotonic())

    def write(self, text: str) -> None:
        self._settle()
        self._gap = None
        super().write(text)

    def think(self, text: str) -> None:
        self._settle()
        self._gap = None
        super().think(text)

    def remark(self, text: str) -> None:
        self._settle()
        self._gap = None
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

    def _show_frame(self, began: float) -> None:
        self._commit_whole_blocks()
        self._draw()
        took = time.monotonic() - began
        self._next_frame = began + took + max(1 / FRAMES, IDLE_FACTOR * took)

    def _draw(self) -> None:
        most = max(1, self._console.height - 3)  # more lines would scroll, and could not be erased
        lines = self._rendered(_tail("".join(self._pending), most))
        if not lines:
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(SegmentLines(lines[-most:], new_lines=True), refresh=True)

    def _settle(self) -> None:
        """Prints the unfinished block for the last time."""
        self._stop_drawing()
        source, self._pending = "".join(self._pending), []
        self._print(source)

    def _commit_whole_blocks(self) -> None:
        whole, rest = split_blocks("".join(self._pending))
        if whole.strip():
            self._stop_drawing()
            self._print(whole)
        self._pending = [rest] if rest else []

    def _print(self, source: str) -> None:
        lines = self._rendered(source)
        if not lines:
            return
        end = len(lines)
        while _is_blank(lines[end - 1]):  # the padding of code and tables is not printed at the end of an answer
            end -= 1
        self._console.print(SegmentLines(lines[:end], new_lines=True), end="")
        self._gap = [*lines[end:], []]
        self._at_start = True

    def _stop_drawing(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _rendered(self, source: str) -> list[Line]:
        """The lines of some blocks, after the gap that separates them from the block before. The list is empty if there is
        nothing to see."""
        markdown = Markdown("", hyperlinks=False, code_theme="ansi_dark")  # the user sees the address of a link too
        markdown.parsed = [token for token in _PARSER.parse(source) if not _is_invisible(token)]
        lines: list[Line] = []
        for line in self._console.render_lines(markdown, pad=False):
            if _text(line) or (lines and _text(lines[-1])):  # rich writes two empty lines between a rule and a list
                lines.append(line)
        while lines and not _text(lines[-1]):
            lines.pop()
        start = next((number for number, line in enumerate(lines) if not _is_blank(line)), None)
        if start is None:
            return []
        return lines[start:] if self._gap is None else [*self._gap, *lines]


def split_blocks(source: str) -> tuple[str, str]:
    """Splits between the blocks that no later text can change and the rest. An unfinished last line belongs to the rest."""
    complete = source[: source.rfind("\n") + 1]
    blocks = [token for token in _BLOCK_PARSER.parse(complete) if token.level == 0]
    if not blocks:
        return "", source
    last = blocks[-1]
    lines = complete.split("\n")[:-1]
    closed = last.type in _CLOSED_AT_ONCE or (last.type in _CLOSED_BY_BLANK_LINE and not lines[-1].strip())
    if last.type == "fence" and last.map is not None:
        first, end = last.map
        closed = last.content.count("\n") == end - first - 2  # the lines without both fences
    if closed:
        return complete, source[len(complete) :]
    start = next(token.map[0] for token in reversed(blocks) if token.map is not None)
    cut = sum(len(line) + 1 for line in lines[:start])
    return source[:cut], source[cut:]


def _is_invisible(token: Token) -> bool:
    """Rich shows nothing of empty code, but the empty lines around it."""
    return token.type in ("fence", "code_block") and not token.content.strip()


def _text(line: Line) -> str:
    return "".join(segment.text for segment in line)


def _is_blank(line: Line) -> bool:
    return not _text(line).strip()


def _tail(source: str, lines: int) -> str:
    """The last lines of a block that is longer than the screen, with its opening fence."""
    every = source.splitlines(keepends=True)
    if len(every) <= lines or lines < 1:
        return source
    first = every[0] if every[0].strip().startswith(FENCES) else ""
    return first + "".join(every[-lines:])
