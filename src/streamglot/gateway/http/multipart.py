"""Parses multipart/form-data (RFC 7578) as a stream: the fields of a form, and the bytes of its file in pieces. It never holds a
whole file.

Pure: ``feed(bytes) -> parts``. The result does not depend on how the body is cut.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from ...errors import RequestError, excerpt

HEAD_BYTES: Final = 16 * 2**10
"""Bytes of the headers of one part: a name, a file name, a media type."""
PARTS: Final = 64
"""Parts of one form. The supported forms have a handful."""
_BOUNDARY: Final = re.compile(r'multipart/form-data\s*;.*?boundary=(?:"([^"]{1,70})"|([^;,\s]{1,70}))', re.I | re.S)
_PARAMETER: Final = re.compile(r';\s*(name|filename)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))', re.I)


class PartStart(Struct, frozen=True):
    """The beginning of a part. ``filename`` is None for a plain field."""

    name: str
    filename: str | None = None


class PartData(Struct, frozen=True):
    """Bytes of the current part."""

    data: bytes


class PartEnd(Struct, frozen=True):
    """The end of the part."""


Part = PartStart | PartData | PartEnd


def boundary_of(content_type: str) -> bytes:
    """The boundary in a Content-Type."""
    found = _BOUNDARY.match(content_type.strip())
    if found is None:
        raise RequestError(
            f"the content type must be multipart/form-data with a boundary; it is {excerpt(content_type)}", code="invalid_form"
        )
    return (found[1] or found[2]).encode("latin-1", "replace")


class Multipart:
    """Reads one form. ``close`` raises if the form is incomplete."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._data = b"\r\n"  # the first boundary has no line end before it
        self._state = "preamble"
        self._parts = 0

    def feed(self, chunk: bytes) -> list[Part]:
        self._data += chunk
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def close(self) -> list[Part]:
        if self._state != "epilogue":
            raise RequestError("the form ended before its last boundary; send it again", code="invalid_form")
        return []

    def _step(self, parts: list[Part]) -> bool:
        """Reads one piece of the form. Returns False if more bytes are needed."""
        if self._state == "epilogue":
            self._data = b""
            return False
        if self._state == "head":
            return self._head(parts)
        if self._state == "boundary":
            return self._behind_boundary()
        return self._body(parts)

    def _body(self, parts: list[Part]) -> bool:
        """Reads up to the next boundary. Holds back bytes that may be the beginning of one."""
        place = self._data.find(self._delimiter)
        inside = self._state == "body"
        if place >= 0:
            if inside:
                if place:
                    parts.append(PartData(self._data[:place]))
                parts.append(PartEnd())
            self._data = self._data[place + len(self._delimiter) :]
            self._state = "boundary"
            return True
        keep = len(self._delimiter) - 1
        if len(self._data) > keep:
            if inside:
                parts.append(PartData(self._data[:-keep]))
            self._data = self._data[-keep:]
        return False

    def _behind_boundary(self) -> bool:
        if len(self._data) < 2:
            return False
        if self._data.startswith(b"--"):
            self._state = "epilogue"
            return True
        end = self._data.find(b"\r\n")
        if end < 0:
            self._check_head()
            return False
        if self._data[:end].strip(b" \t"):
            raise RequestError("a boundary of the form must be followed by a line end; send the form again", code="invalid_form")
        self._data = self._data[end:]
        self._state = "head"
        return True

    def _head(self, parts: list[Part]) -> bool:
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            self._check_head()
            return False
        self._parts += 1
        if self._parts > PARTS:
            raise RequestError(f"the form has more than {PARTS} parts", code="invalid_form", status=413)
        parts.append(_start(self._data[:end]))
        self._data = self._data[end + 4 :]
        self._state = "body"
        return True

    def _check_head(self) -> None:
        if len(self._data) > HEAD_BYTES:
            raise RequestError(f"the headers of a part have more than {HEAD_BYTES} bytes", code="invalid_form", status=413)


def _start(head: bytes) -> PartStart:
    for line in head.decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            found = {key.lower(): quoted if quoted else plain for key, quoted, plain in _PARAMETER.findall(value)}
            if "name" in found:
                filename = found.get("filename")
                return PartStart(_unquoted(found["name"]), None if filename is None else _unquoted(filename))
    raise RequestError("a part of the form has no name in its Content-Disposition", code="invalid_form")


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
