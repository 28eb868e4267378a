"""AWS event stream: binary messages of a prelude, headers and a payload, each part under a checksum.

    total length (4)  headers length (4)  CRC32 of those eight (4)  headers  payload  CRC32 of all before it (4)

A message is returned once it is complete and both checksums are right. The header ``:event-type`` names its event; if
``:message-type`` is exception or error, the frame is of the kind "exception" and its event is the exception's name.
"""

from __future__ import annotations

import struct
from typing import Final, Literal
from zlib import crc32

import msgspec

from ..errors import StreamglotError, UpstreamProtocolError, UpstreamTruncated, excerpt
from ..limits import DEFAULT_LIMITS, Limits
from .frame import Frame

_PRELUDE: Final = struct.Struct(">III")
_LENGTHS: Final = struct.Struct(">II")
_CHECKSUM: Final = struct.Struct(">I")
_SHORT: Final = struct.Struct(">H")
MIN_BYTES: Final = 16
"""Bytes of a message without headers and payload: the prelude and the last checksum."""
_FIXED: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Bytes of a header value by its type: true, false, byte, short, integer, long, time, uuid."""
_COUNTED: Final = (6, 7)
"""Types whose value has a length before it: bytes and text."""
_TEXT: Final = 7
_CACHED_HEADERS: Final = 64
"""Header sections in the cache: a stream repeats about ten of them."""


class AwsEventStream:
    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.error: StreamglotError | None = None
        self._limits = limits
        self._held = bytearray()
        self._wanted = _PRELUDE.size
        self._meanings: dict[bytes, tuple[str, Literal["data", "exception"], str]] = {}

    def feed(self, chunk: bytes) -> list[Frame]:
        if self.error:
            return []
        self._held += chunk
        frames: list[Frame] = []
        if len(self._held) < self._wanted:
            return frames
        position = 0
        try:
            while len(self._held) - position >= _PRELUDE.size:
                total, headers = self._prelude(position)
                if len(self._held) - position < total:
                    self._wanted = total
                    break
                frames.append(self._message(position, total, headers))
                position += total
            else:
                self._wanted = _PRELUDE.size
        except StreamglotError as error:
            self.error = error
            self._held.clear()
        del self._held[:position]
        return frames

    def close(self) -> list[Frame]:
        """Discards an incomplete message and sets ``error``."""
        if self._held and not self.error:
            self.error = UpstreamTruncated(f"the stream ended inside a frame, after {len(self._held)} bytes of it")
        return []

    def _prelude(self, position: int) -> tuple[int, int]:
        total, headers, checksum = _PRELUDE.unpack_from(self._held, position)
        start = bytes(self._held[position : position + _PRELUDE.size])
        if crc32(start[: _LENGTHS.size]) != checksum:
            raise UpstreamProtocolError(f"the checksum of a frame's prelude is wrong: {excerpt(start)}", code="bad_checksum")
        if total < MIN_BYTES or headers > total - MIN_BYTES:
            raise UpstreamProtocolError(f"a frame of {total} bytes has {headers} bytes of headers", code="bad_frame")
        if total > self._limits.event_bytes:
            raise self._limits.exceeded("event_bytes")
        return total, headers

    def _message(self, position: int, total: int, headers: int) -> Frame:
        message = bytes(self._held[position : position + total])
        end = total - _CHECKSUM.size
        if crc32(memoryview(message)[:end]) != _CHECKSUM.unpack_from(message, end)[0]:
            raise UpstreamProtocolError(f"the checksum of a frame is wrong: {excerpt(message)}", code="bad_checksum")
        start = _PRELUDE.size + headers
        section = message[_PRELUDE.size : start]
        meaning = self._meanings.get(section)
        if meaning is None:
            meaning = _meaning(read_headers(section))
            if len(self._meanings) < _CACHED_HEADERS:
                self._meanings[section] = meaning
        event, kind, error_message = meaning
        data = message[start:end]
        if error_message and not data:
            data = msgspec.json.encode({"message": error_message})
        return Frame(data, event, kind)


def read_headers(section: bytes) -> dict[str, str]:
    """The headers with text values; the others are skipped."""
    found: dict[str, str] = {}
    position = 0
    try:
        while position < len(section):
            end = position + 1 + section[position]
            name, kind = section[position + 1 : end].decode("utf-8", "replace"), section[end]
            position = end + 1
            size = _FIXED.get(kind, 0)
            if kind in _COUNTED:
                size = _SHORT.unpack_from(section, position)[0]
                position += _SHORT.size
            elif kind not in _FIXED:
                raise UpstreamProtocolError(
                    f"the header {excerpt(name)} has a value of the unknown type {kind}", code="bad_frame"
                )
            if position + size > len(section):
                raise IndexError
            if kind == _TEXT:
                found[name] = section[position : position + size].decode("utf-8", "replace")
            position += size
    except (IndexError, struct.error):
        raise UpstreamProtocolError(f"the headers of a frame end in the middle: {excerpt(section)}", code="bad_frame") from None
    return found


def _meaning(headers: dict[str, str]) -> tuple[str, Literal["data", "exception"], str]:
    """The name of the event, whether it is an exception, and the message of an error without a payload."""
    match headers.get(":message-type"):
        case "exception":
            return headers.get(":exception-type", "exception"), "exception", ""
        case "error":
            return headers.get(":error-code", "error"), "exception", headers.get(":error-message", "the upstream gave no reason")
    return headers.get(":event-type", ""), "data", ""


def frame(data: bytes, headers: dict[str, str]) -> bytes:
    """One message with these text headers and this payload."""
    section = b"".join(_header(name.encode(), value.encode()) for name, value in headers.items())
    lengths = _LENGTHS.pack(MIN_BYTES + len(section) + len(data), len(section))
    message = b"".join((lengths, _CHECKSUM.pack(crc32(lengths)), section, data))
    return with_checksum(message)


def with_checksum(message: bytes) -> bytes:
    """The message followed by its checksum."""
    return message + _CHECKSUM.pack(crc32(message))


def _header(name: bytes, value: bytes) -> bytes:
    return b"".join((bytes((len(name),)), name, bytes((_TEXT,)), _SHORT.pack(len(value)), value))
