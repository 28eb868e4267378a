"""Masks secrets in AWS event streams, whose frames have checksums and may contain their payload as base64."""

from __future__ import annotations

import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Final

from ..framing.aws_eventstream import MIN_BYTES, with_checksum
from ..limits import DEFAULT_LIMITS
from .secrets import SecretMask

MEDIA_TYPE: Final = "application/vnd.amazon.eventstream"
_LENGTH: Final = struct.Struct(">I")
_CHECKSUM_BYTES: Final = 4
_MAX_BYTES: Final = DEFAULT_LIMITS.event_bytes
"""Bytes of a frame that is held until it is complete: as many as the reader of the frames accepts."""
_BASE64: Final = re.compile(rb'"bytes"\s*:\s*"([A-Za-z0-9+/]*={0,2})')


def mask_for(secrets: Iterable[str], headers: Mapping[str, str]) -> SecretMask:
    """The mask for an answer with these headers."""
    return (FrameMask if headers.get("content-type", "").lower().startswith(MEDIA_TYPE) else SecretMask)(secrets)


class FrameMask(SecretMask):
    """A box from the bytes of an AWS event stream to the same frames with these secrets masked. A frame is returned once it is
    complete, because its checksum is at its end. Bytes that are not frames are masked as other text."""

    def __init__(self, secrets: Iterable[str]) -> None:
        super().__init__(secrets)
        self._text_mark, self.mark = self.mark, 0  # the first byte of every frame that is shorter than 16 MiB
        self._framed = bool(self._secrets)
        self._frames = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        if not self._framed:
            return super().feed(chunk)
        self._frames += chunk
        done: list[bytes] = []
        place = 0
        while len(self._frames) - place >= _LENGTH.size:
            [size] = _LENGTH.unpack_from(self._frames, place)
            if not MIN_BYTES <= size <= _MAX_BYTES:  # the reader of the frames reports it
                self._framed, self.mark = False, self._text_mark
                rest = bytes(self._frames[place:])
                self._frames.clear()
                self.held = b""
                return b"".join(done) + super().feed(rest)
            if len(self._frames) - place < size:
                break
            done.append(self._masked(bytes(self._frames[place : place + size])))
            place += size
        del self._frames[:place]
        self.held = bytes(self._frames[:1])  # tells the owner that bytes are held back
        return b"".join(done)

    def close(self) -> bytes:
        if not self._framed:
            return super().close()
        rest = self._without(bytes(self._frames))
        self._frames.clear()
        self.held = b""
        return rest

    def _masked(self, frame: bytes) -> bytes:
        masked = self._without(frame)
        if masked == frame:
            return frame
        if with_checksum(frame[:-_CHECKSUM_BYTES]) == frame:  # a wrong checksum stays wrong
            masked = with_checksum(masked[:-_CHECKSUM_BYTES])
        return masked

    def _without(self, data: bytes) -> bytes:
        data = self._replaced(data)
        found = _BASE64.search(data)
        if found is not None:
            start, end = found.span(1)
            end -= (end - start) % 4  # a frame that was cut may end inside a group
            inner = b64decode(data[start:end])
            masked = self._replaced(inner)
            if masked != inner:
                data = data[:start] + b64encode(masked) + data[end:]
        return data
