"""HTTP responses as a strict client reads them from raw bytes."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct


class Malformed(AssertionError):
    """The server sent something that is not an HTTP/1.1 response."""


class Response(Struct):
    status: int
    headers: dict[str, str]
    body: bytes
    framed: bool = True
    """Its end was marked by a length or a last chunk, and not only by the end of the connection."""

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        """The code of an error in the shape that most clients read."""
        code: str = self.json()["error"]["code"]
        return code


def parse_responses(data: bytes, *methods: str, closed: bool = True) -> list[Response]:
    """All responses in these bytes, to requests with these methods in turn. Interim responses are left out.

    ``closed`` means that the connection has ended: a response that is not whole is then Malformed, else it is left out too.
    """
    found: list[Response] = []
    asked = list(methods)
    while data:
        head, separator, rest = data.partition(b"\r\n\r\n")
        if not separator:
            break
        status, headers = _head(head)
        if 100 <= status < 200:
            data = rest
            continue
        method = asked.pop(0) if asked else ""
        body = _body(status, headers, rest, method, closed)
        if body is None:
            break
        content, data, framed = body
        found.append(Response(status, headers, content, framed))
        if headers.get("connection") == "close" and data:
            raise Malformed(f"{data[:80]!r} behind a response that was the last one")
    else:
        return found
    if closed:
        raise Malformed(f"the connection ended inside {data[:200]!r}")
    return found


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    status = rest.partition(" ")[0]
    if version != "HTTP/1.1" or not status.isdecimal() or not 100 <= int(status) <= 599:
        raise Malformed(f"no status line: {lines[0][:200]!r}")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or any(ord(letter) < 32 and letter != "\t" for letter in line):
            raise Malformed(f"no header field: {line[:200]!r}")
        if name.lower() in headers and name.lower() in ("content-length", "transfer-encoding", "connection"):
            raise Malformed(f"twice: {line[:200]!r}")
        headers[name.lower()] = value.strip()
    return int(status), headers


def _body(status: int, headers: dict[str, str], data: bytes, method: str, closed: bool) -> tuple[bytes, bytes, bool] | None:
    """The body, the bytes after it, and whether its end was marked; None if the body is incomplete."""
    if method == "HEAD" or status in (204, 304):
        return b"", data, True
    if "content-length" in headers:
        length = int(headers["content-length"])
        return (data[:length], data[length:], True) if len(data) >= length else None
    if headers.get("transfer-encoding") != "chunked":
        return (data, b"", False) if closed else None
    pieces: list[bytes] = []
    while True:
        line, separator, rest = data.partition(b"\r\n")
        if not separator:
            return None
        size = int(line, 16)
        if len(rest) < size + 2:
            return None
        if rest[size : size + 2] != b"\r\n":
            raise Malformed(f"no chunk: {rest[:80]!r}")
        if not size:
            return b"".join(pieces), rest[2:], True
        pieces.append(rest[:size])
        data = rest[size + 2 :]
