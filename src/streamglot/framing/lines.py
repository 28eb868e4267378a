"""Bytes to lines, which end at LF, CR or CRLF and nowhere else (not at U+2028, not at U+0085)."""

from __future__ import annotations

from ..errors import LimitExceeded
from ..limits import Limits

_BOM = b"\xef\xbb\xbf"


class Lines:
    """Stores the unfinished line in pieces, so that a long line in many reads costs linear and not quadratic time."""

    def __init__(self, limits: Limits) -> None:
        self.error: LimitExceeded | None = None
        self._limits = limits
        self._pieces: list[bytes] = []
        self._held = 0
        self._after_cr = False
        self._started = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes. After a line that is too long nothing more is returned, only ``error`` is set."""
        if self.error:
            return []
        if not self._started:
            chunk = self._without_bom(chunk)
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == 10:
                chunk = chunk[1:]
        if b"\n" not in chunk and b"\r" not in chunk:
            if chunk:
                self._hold(chunk)
            return []
        if self._pieces:
            chunk = b"".join((*self._pieces, chunk))
            self._pieces.clear()
            self._held = 0
        lines = chunk.splitlines()
        last = chunk[-1]
        if last == 13:
            self._after_cr = True
        elif last != 10:
            self._hold(lines.pop())
        if len(chunk) > self._limits.line_bytes:
            return self._until_too_long(lines)
        return lines

    def close(self) -> list[bytes]:
        """The last line, which had no line end."""
        rest = b"".join(self._pieces)
        self._pieces.clear()
        return [rest] if rest and not self.error else []

    def _hold(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held > self._limits.line_bytes:
            self.error = self._limits.exceeded("line_bytes")

    def _until_too_long(self, lines: list[bytes]) -> list[bytes]:
        for number, line in enumerate(lines):
            if len(line) > self._limits.line_bytes:
                self.error = self._limits.exceeded("line_bytes")
                return lines[:number]
        return lines

    def _without_bom(self, chunk: bytes) -> bytes:
        start = b"".join((*self._pieces, chunk))
        self._pieces.clear()
        self._held = 0
        if start and _BOM.startswith(start):
            self._hold(start)
            return b""
        self._started = bool(start)
        return start.removeprefix(_BOM)
