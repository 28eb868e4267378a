"""The lines that a terminal shows after a program's output."""

from __future__ import annotations

import re

_PIECE = re.compile(rb"\x1b\[(\??[0-9;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


def screen_lines(output: bytes, columns: int = 80) -> list[str]:
    """Follows what rich writes: text, line ends, cursor up, erase line, and colours, which are left out. It does not scroll, so
    the lines that left the screen are among the result."""
    lines: list[str] = [""]
    row = column = at = 0
    while at < len(output):
        piece = _PIECE.match(output, at)
        assert piece is not None, output[at : at + 20]
        at = piece.end()
        number, command, start, end, text = piece.groups()
        if start:
            column = 0
        elif end:
            row, column = row + 1, 0  # the terminal turns a line end into both
        elif text:
            for letter in text.decode():
                if column == columns:
                    row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
                lines[row] = lines[row].ljust(column)[:column] + letter + lines[row][column + 1 :]
                column += 1
        elif command == b"A":
            row -= int(number or 1)
        elif command == b"K":
            assert number == b"2", piece.group()
            lines[row] = ""
        else:
            assert command in b"mhl", piece.group()
        lines += [""] * (row + 1 - len(lines))
    return [line.rstrip() for line in lines]
