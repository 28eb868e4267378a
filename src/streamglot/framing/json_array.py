r"""A streamed JSON array: ``[{…},\r\n{…}]`` gives a frame for each element as soon as it is complete."""

from __future__ import annotations

from ..errors import LimitExceeded
from ..json.tokenizer import JsonDepth
from ..limits import DEFAULT_LIMITS, Limits
from .frame import Frame
from .lines import Utf8


class JsonArray:
    """Elements are objects; brackets, commas and white space between them are skipped."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.error: LimitExceeded | None = None
        self._limits = limits
        self._text = Utf8()
        self._pieces: list[str] = []
        self._size = 0
        self._depth = JsonDepth()

    def feed(self, chunk: bytes) -> list[Frame]:
        return self._read(self._text.feed(chunk))

    def close(self) -> list[Frame]:
        frames = self._read(self._text.close())
        if self._pieces and not self.error:
            frames.append(self._dispatch())
        return frames

    def _read(self, text: str) -> list[Frame]:
        frames: list[Frame] = []
        position = 0
        while position < len(text) and not self.error:
            if not self._pieces:
                position = text.find("{", position)
                if position < 0:
                    break
            end = self._depth.feed(text, position)
            self._hold(text[position : end if end > 0 else None])
            if end < 0:
                break
            if not self.error:
                frames.append(self._dispatch())
            position = end
        return frames

    def _dispatch(self) -> Frame:
        element = "".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._depth = JsonDepth()
        return Frame(element.encode())

    def _hold(self, piece: str) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > self._limits.event_bytes:
            self.error = self._limits.exceeded("event_bytes")
