"""Server-sent events, parsed as the standard says, with two deviations for LLM streams.

An event without its blank line at the end of the input is still returned: the reader above knows whether it is complete. And a
line that is not a field of the standard (``error: {…}``, a bare JSON object) is returned as a stray frame, because upstreams
report errors that way.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import LimitExceeded
from ..limits import DEFAULT_LIMITS, Limits
from .frame import Frame
from .lines import Lines

_IGNORED = (b"id", b"retry")


class Sse:
    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.error: LimitExceeded | None = None
        self._limits = limits
        self._lines = Lines(limits)
        self._data: list[bytes] = []
        self._size = 0
        self._event = ""

    def feed(self, chunk: bytes) -> list[Frame]:
        frames = self._read(self._lines.feed(chunk))
        self.error = self.error or self._lines.error
        return frames

    def close(self) -> list[Frame]:
        frames = self._read(self._lines.close())
        if self._data and not self.error:
            frames.append(self._dispatch())
        return frames

    def _read(self, lines: Iterable[bytes]) -> list[Frame]:
        frames: list[Frame] = []
        if self.error:
            return frames
        for line in lines:
            if line[:6] == b"data: ":
                self._append(line[6:])
            elif not line:
                if self._data:
                    frames.append(self._dispatch())
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

    def _dispatch(self) -> Frame:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        return Frame(data, self._event)

    def _field(self, line: bytes, frames: list[Frame]) -> None:
        name, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if name == b"data":
            self._append(value)
        elif name == b"event":
            self._event = value.decode("utf-8", "replace")
        elif not name:
            frames.append(Frame(value, kind="comment"))
        elif name not in _IGNORED:
            frames.append(Frame(line, kind="stray"))


def event(data: bytes, name: bytes = b"") -> bytes:
    """One event as every client accepts it: LF, one data line, a space after the colon, no id, no retry."""
    return b"event: %b\ndata: %b\n\n" % (name, data) if name else b"data: %b\n\n" % data


def comment(text: str) -> bytes:
    """A keep-alive between two events. Line breaks in the text would break the frame; they become spaces."""
    return b": %b\n\n" % b" ".join(text.encode("utf-8", "replace").splitlines())
