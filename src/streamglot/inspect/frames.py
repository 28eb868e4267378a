"""Cuts bytes into the frames of their wire format, for display. The joined frames are the original bytes.

The framings in ``framing/`` return the content of a frame. A cutter returns the bytes of the frame.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

import msgspec

from ..dialects import DIALECTS
from ..errors import StreamglotError
from ..framing.aws_eventstream import read_headers
from ..json.tokenizer import JsonDepth
from ..text import neutral
from .detection import EVENTS

MAX_ROW_CHARS: Final = 8_192
"""Characters of one frame or event that are shown. Inline images are longer, and people do not read them."""
AWS: Final = "application/vnd.amazon.eventstream"
LINES: Final = "application/x-ndjson"
_JSON: Final = (b"{", b"[")
"""First bytes of a whole body, and of a saved stream: an array of chunks, or one chunk after another."""
_BLANK_LINE: Final = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_KEPT_TAIL: Final = 3
"""Bytes before a chunk that may begin its first blank line: CR LF CR."""
_AWS_PRELUDE: Final = 12
_AWS_CHECKSUM: Final = 4
_MAX_AWS_BYTES: Final = 64 * 2**20
"""Bytes. A frame that declares a greater length is not waited for: the rest of the stream is shown as one piece."""
_ODD: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Cutter(Protocol):
    def feed(self, data: bytes) -> list[bytes]: ...
    def close(self) -> list[bytes]: ...


def cutter_for(dialect: str, first: bytes) -> Cutter:
    """The cutter for a body of this dialect. ``first`` is its first byte that is not white space."""
    if dialect == EVENTS:
        return LineCutter()
    media_type = DIALECTS[dialect].media_type if dialect in DIALECTS else ""
    if media_type == AWS:
        return ElementCutter() if first in _JSON else AwsCutter()
    if media_type == LINES:
        return LineCutter()
    return ElementCutter() if first in _JSON else SseCutter()


class SseCutter:
    """Cuts after blank lines. The cost of a long frame in many chunks is linear in its length."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes]:
        window = self._tail + data
        before = len(self._tail)
        frames: list[bytes] = []
        cut = 0
        for end in _ends_with_returns(window) if b"\r" in window else _ends(window):
            frames.append(b"".join((*self._pieces, data[cut : end - before])))
            self._pieces.clear()
            cut = end - before
        rest = data[cut:]
        if rest:
            self._pieces.append(rest)
        self._tail = rest[-_KEPT_TAIL:] if frames else window[-_KEPT_TAIL:]
        return frames

    def close(self) -> list[bytes]:
        return _rest(self._pieces)


def _ends(window: bytes) -> list[int]:
    """The ends of blank lines if lines end with LF alone. This is the usual case, and ``find`` is fast."""
    ends = []
    place = window.find(b"\n\n")
    while place >= 0:
        ends.append(place + 2)
        place = window.find(b"\n\n", place + 2)
    return ends


def _ends_with_returns(window: bytes) -> list[int]:
    """The ends of blank lines if lines may end with CR. A CR at the very end may be half of a CRLF."""
    ends = [found.end() for found in _BLANK_LINE.finditer(window)]
    return ends[:-1] if ends and ends[-1] == len(window) and window[-1:] == b"\r" else ends


class LineCutter:
    """One frame per line."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        lines = data.splitlines(keepends=True)
        if not lines:
            return []
        rest = lines.pop() if not data.endswith(b"\n") else b""
        if lines and self._pieces:
            lines[0] = b"".join((*self._pieces, lines[0]))
            self._pieces.clear()
        if rest:
            self._pieces.append(rest)
        return lines

    def close(self) -> list[bytes]:
        return _rest(self._pieces)


class ElementCutter:
    """The objects of a JSON array, or one after another, each with the comma, bracket or white space before it. What stands after
    the last one belongs to it, so a body that is one object is one frame.

    The bytes are read as Latin-1, because JSON's structural characters are ASCII.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._depth: JsonDepth | None = None
        self._ended: bytes | None = None

    def feed(self, data: bytes) -> list[bytes]:
        text = data.decode("latin-1")
        frames: list[bytes] = []
        cut = place = 0
        while place < len(text):
            if self._depth is None:
                begin = text.find("{", place)
                if begin < 0:
                    break
                self._depth, place = JsonDepth(), begin
                if self._ended is not None:
                    frames.append(self._ended)
                    self._ended = None
            end = self._depth.feed(text, place)
            if end < 0:
                break
            self._ended = b"".join((*self._pieces, data[cut:end]))
            self._pieces.clear()
            self._depth = None
            cut = place = end
        if data[cut:]:
            self._pieces.append(data[cut:])
        return frames

    def close(self) -> list[bytes]:
        if self._ended is not None and self._depth is None:
            self._pieces.insert(0, self._ended)
        return _rest(self._pieces)


class AwsCutter:
    """Binary frames, each of which begins with its length. After an impossible length, the rest is one piece."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._broken = False

    def feed(self, data: bytes) -> list[bytes]:
        self._held += data
        frames: list[bytes] = []
        place = 0
        while not self._broken and len(self._held) - place >= _AWS_CHECKSUM:
            size = int.from_bytes(self._held[place : place + 4], "big")
            if not _AWS_PRELUDE + _AWS_CHECKSUM <= size <= _MAX_AWS_BYTES:
                self._broken = True
            elif len(self._held) - place < size:
                break
            else:
                frames.append(bytes(self._held[place : place + size]))
                place += size
        del self._held[:place]
        return frames

    def close(self) -> list[bytes]:
        held, self._held = bytes(self._held), bytearray()
        return [held] if held else []


def _rest(pieces: list[bytes]) -> list[bytes]:
    rest = b"".join(pieces)
    pieces.clear()
    return [rest] if rest else []


# --- shown


def readable(frame: bytes) -> str:
    """The frame as displayable text: a binary frame as its headers and payload, with control characters made visible."""
    if frame[:1] == b"\0":
        return _binary(frame)
    return shown(frame[: 4 * MAX_ROW_CHARS].decode("utf-8", "replace").rstrip("\r\n"), len(frame))


def shown(text: str, size: int = 0) -> str:
    """The text with control characters made visible, cut if it is too long. ``size`` is its real length."""
    cut = len(text) > MAX_ROW_CHARS
    if cut:
        text = text[:MAX_ROW_CHARS]
    text = text.replace("\r\n", "\n")
    if _ODD.search(text) is not None:
        text = neutral(text)
    return f"{text}… ({size or len(text)} bytes in all)" if cut else text


def _binary(frame: bytes) -> str:
    headers = int.from_bytes(frame[4:8], "big")
    end = _AWS_PRELUDE + headers
    try:
        named = read_headers(frame[_AWS_PRELUDE:end])
    except StreamglotError:
        named = {}
    if not named:
        return f"{frame[:256].hex(' ')}{' …' if len(frame) > 256 else ''} ({len(frame)} bytes)"
    payload = frame[end:-_AWS_CHECKSUM]
    try:
        content = msgspec.json.format(payload, indent=-1).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        content = payload.decode("utf-8", "replace")
    return shown("\n".join((*(f"{name}: {value}" for name, value in named.items()), content)), len(frame))
