"""Responses that are known whole, and the encoding of status lines and header fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import Struct, field

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
STATUS_LINES: Final = {status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n" for status in range(200, 600)}
"""By status. Interim responses (1xx) are no answers, and there is nothing above 599."""
JSON: Final = "application/json"
LONGEST_RETRY: Final = 86_400
"""Seconds, one day: the most that a client is told to wait. Upstreams and budgets may name more, or no finite number."""
_FORBIDDEN_IN_VALUE: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f]")


class Reply(Struct):
    """A whole response: its body is sent with its length."""

    status: int
    body: bytes = b""
    media_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


def error_reply(status: int, code: str, message: str, type: str = "invalid_request_error", **headers: str) -> Reply:
    """A refusal where no dialect is known yet: in the shape that most clients read."""
    body = msgspec.json.encode({"error": {"message": message, "type": type, "param": None, "code": code}})
    return Reply(status, body, JSON, headers)


def sent_status(status: int) -> int:
    """This status if HTTP has it, else 502: all of ours are valid, so another one was made up by an upstream."""
    return status if status in STATUS_LINES else 502


def header_lines(headers: Mapping[str, str]) -> str:
    """The fields as lines. Characters that would end a value, such as line ends, become question marks."""
    if _FORBIDDEN_IN_VALUE.search("".join(headers.values())) is not None:
        headers = {name: header_value(value) for name, value in headers.items()}
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


def header_value(text: str) -> str:
    """Text from outside as the value of a header field."""
    return _FORBIDDEN_IN_VALUE.sub("?", text)


def retry_after(seconds: float) -> str:
    """The value of Retry-After for a time that may come from outside: no number, infinite, or negative."""
    if not seconds >= 1:  # so written, it is true of what is no number too
        return "1"
    return str(round(min(seconds, LONGEST_RETRY)))
