"""Bytes to lines, which end at LF, CR or CRLF and nowhere else (not at U+2028, not at U+0085), and text that was split inside a
character."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable

from ..errors import LimitExceeded
from ..limits import DEFAULT_LIMITS, Limits
from .frame import Frame

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


class NdJson:
    """One JSON value per line."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._lines = Lines(limits)

    @property
    def error(self) -> LimitExceeded | None:
        return self._lines.error

    def feed(self, chunk: bytes) -> list[Frame]:
        return self._frames(self._lines.feed(chunk))

    def close(self) -> list[Frame]:
        return self._frames(self._lines.close())

    def _frames(self, lines: Iterable[bytes]) -> list[Frame]:
        return [Frame(line) for line in lines if line.strip()]


def ndjson_line(data: bytes) -> bytes:
    """One line. There are no keep-alive lines: clients fail on an empty one."""
    return data + b"\n"


_LONE = re.compile("[\ud800-\udfff]")


class Utf8:
    """Bytes to text: a code point that was split by a network read is held until the rest arrives; invalid bytes become
    U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")

    def feed(self, chunk: bytes) -> str:
        return self._decoder.decode(chunk)

    def close(self) -> str:
        return self._decoder.decode(b"", True)


class Surrogates:
    r"""Joins ``\ud83d\ude00`` pairs that were split between two JSON strings: the first half waits for the second."""

    def __init__(self) -> None:
        self._half = ""

    def feed(self, text: str) -> str:
        text = self._half + text
        self._half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return whole_characters(text)

    def close(self) -> str:
        half, self._half = self._half, ""
        return whole_characters(half)


def whole_characters(text: str) -> str:
    """Surrogate pairs joined, lone surrogates replaced by U+FFFD: text that every encoder accepts."""
    if not _LONE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
