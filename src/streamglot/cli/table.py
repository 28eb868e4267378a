"""Rows for people: columns at a terminal cut to its width, whole in a pipe. What others wrote is on one line, and harmless."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from ..characters import one_line as one_line
from .console import Console
from .terminal import is_terminal

PIPE_COLUMNS: Final = 10_000
"""A pipe has no width."""


def show(names: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> None:
    """``numbers`` are the columns that stand to the right. The last column gives way where there is no room."""
    terminal = is_terminal(sys.stdout)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=name != names[-1])
    for row in rows:
        table.add_row(*(Text(one_line(cell), no_wrap=True, overflow="ellipsis") for cell in row))
    console = Console(file=sys.stdout, highlight=False, force_terminal=terminal, width=None if terminal else PIPE_COLUMNS)
    console.print(table)
