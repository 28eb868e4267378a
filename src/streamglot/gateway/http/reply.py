"""Responses, and the encoding of status lines and header fields."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import Struct, field

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
STATUS_LINES: Final = {status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n" for status in range(200, 600)}
"""Status lines by status. Interim responses (1xx) are not answers, and no status is above 599."""
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream; charset=utf-8"
NO_BODY: Final = frozenset((204, 304))
"""Statuses whose responses have no body, and no header fields about one."""
LONGEST_RETRY: Final = 86_400
"""Seconds, one day: the longest Retry-After. Upstreams and budgets may give more, or no finite number."""
_FORBIDDEN_IN_VALUE: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f]")


class Reply(Struct):
    """A whole response, sent with its Content-Length. Without a media type it has no Content-Type."""

    status: int
    body: bytes = b""
    media_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, str]:
        """All header fields."""
        kind = {"content-type": self.media_type} if self.media_type else {}
        about = {} if self.status in NO_BODY else {**kind, "content-length": str(len(self.body))}
        return {**about, **self.headers}


class StreamedReply(Struct):
    """A response whose pieces are sent as they come. ``ended`` is called however it ends, even before its first piece."""

    pieces: AsyncIterator[bytes]
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)
    ended: Callable[[], Awaitable[None]] | None = None


class StreamCutError(Exception):
    """Ends the pieces of a ``StreamedReply`` in place of their end: the connection is closed without the end that HTTP requires.
    ``data`` is the last piece."""

    def __init__(self, data: bytes = b"") -> None:
        super().__init__()
        self.data = data


def error_reply(status: int, code: str, message: str, type: str = "invalid_request_error", **headers: str) -> Reply:
    """A refusal for a client whose dialect is not known yet, in the shape that most clients read."""
    body = msgspec.json.encode({"error": {"message": message, "type": type, "param": None, "code": code}})
    return Reply(status, body, JSON, headers)


def sent_status(status: int) -> int:
    """This status if HTTP allows it, else 502.

    The gateway's own statuses are valid, so an upstream sent an invalid one.
    """
    return status if status in STATUS_LINES else 502


def header_lines(headers: Mapping[str, str]) -> str:
    """The fields as lines. Characters that would end a value, such as line ends, become question marks."""
    if _FORBIDDEN_IN_VALUE.search("".join(headers.values())) is not None:
        headers = {name: header_value(value) for name, value in headers.items()}
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


def header_value(text: str) -> str:
    """Untrusted text as a valid header field value."""
    return _FORBIDDEN_IN_VALUE.sub("?", text)


def retry_after(seconds: float) -> str:
    """The value of Retry-After for an untrusted time: it may be NaN, infinite or negative."""
    if not seconds >= 1:  # this form is also true for NaN
        return "1"
    return str(round(min(seconds, LONGEST_RETRY)))
