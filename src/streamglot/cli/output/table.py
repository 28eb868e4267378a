"""Prints rows in columns: cut to the width of a terminal, complete in a pipe. Control characters and line breaks are removed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size

from ...text import one_line as one_line
from .terminal import BOLD, RESET, coloured, is_terminal

GAP: Final = "  "
ELLIPSIS: Final = "…"
NARROWEST: Final = 8
"""The smallest width of a cell in columns: a shorter text is not readable."""


def show(names: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> None:
    """Prints a table. ``numbers`` names the columns that are aligned to the right. If a terminal is too narrow, the widest
    columns are made narrower, the last one first."""
    cells = [[one_line(cell) for cell in row] for row in (names, *rows)]
    lengths = [[cell_len(cell) for cell in row] for row in cells]
    widths = [max(column) for column in zip(*lengths, strict=True)]
    if is_terminal(sys.stdout):
        fit(widths, shutil.get_terminal_size().columns)
    start, end = (BOLD, RESET) if coloured(sys.stdout) else ("", "")
    for number, row in enumerate(cells):
        line = [_cell(cell, width, name in numbers) for cell, width, name in zip(row, widths, names, strict=True)]
        text = GAP.join(line).rstrip()
        print(text if number else f"{start}{text}{end}")


def fit(widths: list[int], room: int) -> None:
    """Makes columns narrower until a row fits."""
    over = sum(widths) + len(GAP) * (len(widths) - 1) - room
    last = len(widths) - 1
    while over > 0 and max(widths) > NARROWEST:
        widest = last if widths[last] > NARROWEST else widths.index(max(widths))
        taken = min(over, widths[widest] - NARROWEST)
        widths[widest] -= taken
        over -= taken


def _cell(text: str, width: int, is_number: bool) -> str:
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + ELLIPSIS
    padding = " " * (width - length)
    return padding + text if is_number else text + padding
