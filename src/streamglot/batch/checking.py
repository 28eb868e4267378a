"""Splits an input file into lines and checks each line. Pure: the result does not depend on how the bytes are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ..errors import StreamglotError, excerpt
from ..json_types import JsonValue
from .model import FILE_API, LineError

CUSTOM_ID_CHARS: Final = 512
"""Characters of the longest custom_id. It is part of a database index."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

Route = Callable[[str], str]
"""Returns the upstream for a model, or raises the error of an unusable model."""


class _RequestLine(Struct):
    custom_id: JsonValue = None
    method: JsonValue = "POST"
    url: JsonValue = None
    body: Raw | UnsetType = UNSET
    params: Raw | UnsetType = UNSET


class _Body(Struct):
    model: JsonValue = None


_line: Final = msgspec.json.Decoder(_RequestLine)
_body: Final = msgspec.json.Decoder(_Body)


class CheckedLine(Struct):
    """One line: a request for an upstream, or a ``fault``."""

    line: int
    custom_id: str | None
    body: bytes
    upstream: str = ""
    model: str = ""
    fault: LineError | None = None


class LineSplitter:
    """Splits bytes into lines with their numbers, from 1. A line of more than ``most`` bytes is returned as None."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._number = 0
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[tuple[int, bytes | None]]:
        *whole, rest = chunk.split(b"\n")
        lines = []
        for piece in whole:
            self._hold(piece)
            lines.append(self._take())
        self._hold(rest)
        return lines

    def close(self) -> list[tuple[int, bytes | None]]:
        return [self._take()] if self._size else []

    def _hold(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= self._maximum:
            self._held.append(piece)
        else:
            self._held.clear()

    def _take(self) -> tuple[int, bytes | None]:
        self._number += 1
        line = b"".join(self._held) if self._size <= self._maximum else None
        self._held.clear()
        self._size = 0
        if line is not None and self._number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        return self._number, line


class LineChecker:
    """Checks the lines of one batch. ``route`` finds the upstream of a model."""

    def __init__(self, api: str, endpoint: str, line_bytes: int, route: Route) -> None:
        self._api = api
        self._endpoint = endpoint
        self._line_bytes = line_bytes
        self._route = route

    def check(self, number: int, line: bytes | None) -> CheckedLine:
        if line is None:
            what = f"the line has more than {self._line_bytes} bytes (server.max_body_bytes); send less in one request"
            return _fault(number, None, "request_too_large", what)
        try:
            found = _line.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            return _fault(number, None, "invalid_json_line", f"the line is not a JSON object: {error}")
        custom_id = found.custom_id
        if not isinstance(custom_id, str) or not custom_id:
            return _fault(number, None, "missing_required_parameter", "custom_id must be a string that is not empty", "custom_id")
        if len(custom_id) > CUSTOM_ID_CHARS or not custom_id.isprintable():
            rule = f"custom_id must have at most {CUSTOM_ID_CHARS} characters, all of them printable; it is {excerpt(custom_id)}"
            return _fault(number, None, "invalid_custom_id", rule, "custom_id")
        body = found.params
        if self._api == FILE_API:
            body = found.body
            if found.method != "POST":
                return _fault(
                    number, custom_id, "invalid_method", f"method must be POST; it is {excerpt(found.method)}", "method"
                )
            if found.url != self._endpoint:
                rule = f"url must be the endpoint of the batch, {self._endpoint}; it is {excerpt(found.url)}"
                return _fault(number, custom_id, "mismatched_endpoint", rule, "url")
        return self._with_body(number, custom_id, body)

    def _with_body(self, number: int, custom_id: str, body: Raw | UnsetType) -> CheckedLine:
        name = "body" if self._api == FILE_API else "params"
        try:
            model = _body.decode(body).model if body is not UNSET else None
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return _fault(number, custom_id, "invalid_request", f"{name} must be an object", name)
        if body is UNSET or not isinstance(model, str):
            missing = name if body is UNSET else f"{name}.model"
            return _fault(number, custom_id, "missing_required_parameter", f"{missing} is required", missing)
        try:
            upstream = self._route(model)
        except StreamglotError as error:
            return _fault(number, custom_id, error.code, error.message, f"{name}.model")
        return CheckedLine(number, custom_id, bytes(body), upstream, model)


def repeated(entry: CheckedLine, line: int | None) -> CheckedLine:
    """The entry for a custom_id that another line has. It has no custom_id, because each custom_id is reported once."""
    other = f"line {line}" if line is not None else "another line"
    what = f"the custom_id {excerpt(entry.custom_id)} is used by {other}; give each request a unique custom_id"
    return _fault(entry.line, None, "duplicate_custom_id", what, "custom_id")


def _fault(line: int, custom_id: str | None, code: str, message: str, param: str | None = None) -> CheckedLine:
    return CheckedLine(line, custom_id, b"", fault=LineError(code, message, line, param))
