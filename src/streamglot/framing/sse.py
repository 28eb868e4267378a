"""Server-sent events, parsed as the standard says, with three deviations for LLM streams.

An event without its blank line at the end of the input is still returned: the reader above knows whether it is complete. A line
that is not a field of the standard (``error: {…}``, a bare JSON object) is returned as a stray frame, because upstreams report
errors that way. And an event whose lines of data are several whole JSON documents is returned as so many frames, because some
servers end an event with one line end instead of two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from ..errors import LimitExceeded
from ..limits import DEFAULT_LIMITS, Limits
from .frame import Frame
from .lines import Lines

_IGNORED = (b"id", b"retry")
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_OPENING: Final = ("{", "[")
_LAST: Final = "[DONE]"
"""The line that ends many streams. It is no JSON, and may stand behind a document."""
_decode: Final = json.JSONDecoder().raw_decode


class Sse:
    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.error: LimitExceeded | None = None
        self._limits = limits
        self._lines = Lines(limits)
        self._data: list[bytes] = []
        self._size = 0
        self._event = ""
        self._earlier: list[tuple[int, str]] = []
        """For the names of an event that has several: the line of data before which a name ended, and the name."""

    def feed(self, chunk: bytes) -> list[Frame]:
        frames = self._read(self._lines.feed(chunk))
        self.error = self.error or self._lines.error
        return frames

    def close(self) -> list[Frame]:
        frames = self._read(self._lines.close())
        if self._data and not self.error:
            frames += self._dispatch()
        return frames

    def _read(self, lines: Iterable[bytes]) -> list[Frame]:
        frames: list[Frame] = []
        if self.error:
            return frames
        for line in lines:
            if line[:6] == b"data: ":
                self._append(line[6:])
            elif not line:
                if len(self._data) == 1:  # nearly all events
                    frames.append(Frame(self._data[0], self._event))
                    self._data.clear()
                    self._size = 0
                    if self._earlier:
                        self._earlier.clear()
                elif self._data:
                    frames += self._dispatch()
                self._event = ""
            else:
                self._field(line, frames)
            if self.error:
                break
        return frames

    def _append(self, value: bytes) -> None:
        self._data.append(value)
        self._size += len(value) + 1
        if self._size > self._limits.event_bytes:
            self.error = self._limits.exceeded("event_bytes")
        elif len(self._data) > self._limits.event_lines:
            self.error = self._limits.exceeded("event_lines")

    def _dispatch(self) -> list[Frame]:
        pieces = _documents(self._data)
        frames = [Frame(data, self._name_at(line) if len(pieces) > 1 else self._event) for line, data in pieces]
        self._data.clear()
        self._earlier.clear()
        self._size = 0
        return frames

    def _name_at(self, line: int) -> str:
        """The name of the event to which a line of data belongs."""
        return next((name for end, name in self._earlier if line < end), self._event)

    def _field(self, line: bytes, frames: list[Frame]) -> None:
        name, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            self._append(value)
        elif name == b"event":
            if self._data:
                self._earlier.append((len(self._data), self._event))
            self._event = value.decode("utf-8", "replace")
        elif not name:
            frames.append(Frame(value, kind="comment"))
        elif name not in _IGNORED:
            frames.append(Frame(line, kind="stray"))


def _documents(lines: list[bytes]) -> list[tuple[int, bytes]]:
    """The JSON documents in the lines of one event, each with the number of its first line; one piece if there are not several.
    What follows the last whole document is a piece, too: the reader reports it."""
    data = b"\n".join(lines)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return [(0, data)]
    pieces: list[tuple[int, bytes]] = []
    line = place = 0
    while (first := _SPACE.match(text, place).end()) < len(text):  # type: ignore[union-attr]  # it matches nothing, too
        line += text.count("\n", place, first)
        place = _end_of_document(text, first)
        pieces.append((line, text[first:place].encode()))
        line += text.count("\n", first, place)
    return pieces if len(pieces) > 1 else [(0, data)]


def _end_of_document(text: str, first: int) -> int:
    """Where the document that begins here ends; the end of the text if it is not whole, or does not end with its line."""
    end = len(text)
    if text.startswith(_LAST, first):
        end = first + len(_LAST)
    elif text.startswith(_OPENING, first):
        with suppress(ValueError, RecursionError):
            _, end = _decode(text, first)
    return end if text[end : end + 1] in ("", "\n", "\r", " ", "\t") else len(text)


def event(data: bytes, name: bytes = b"") -> bytes:
    """One event as every client accepts it: LF, one data line, a space after the colon, no id, no retry."""
    return b"event: %b\ndata: %b\n\n" % (name, data) if name else b"data: %b\n\n" % data


def comment(text: str) -> bytes:
    """A keep-alive between two events. Line breaks in the text would break the frame; they become spaces."""
    return b": %b\n\n" % b" ".join(text.encode("utf-8", "replace").splitlines())
