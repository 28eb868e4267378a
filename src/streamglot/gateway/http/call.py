"""A call: one HTTP request and its response, as the endpoints see it. The gateway's server and ASGI each implement it.

Status lines and header fields are encoded here for both.
"""

from __future__ import annotations

import asyncio
import re
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Final, Protocol, cast
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct, field

from ...errors import LimitExceeded, RequestError, excerpt
from ...json_types import JsonObject

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
_decode = msgspec.json.Decoder().decode

HALF_CLOSED_SECONDS: Final = 2.0
"""Seconds of silence towards a client that sends no more and may be gone. Its upstream works for nobody until that is known."""


class ClientDisconnected(Exception):
    """The client disconnected before it was answered."""


class CallDeadline(Protocol):
    """A time limit: a wait inside ``with`` that takes longer than ``seconds`` raises a TimeoutError."""

    seconds: float

    def __enter__(self) -> None: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None: ...


class Call(Protocol):
    """``headers`` has lower-case names. ``started``: the status is decided. ``ended``: the response is complete or abandoned."""

    method: str
    path: str
    headers: dict[str, str]
    extra_headers: dict[str, str]
    """Header fields that every response to this call gets: those of CORS."""
    started: bool
    ended: bool
    bytes_sent: int
    half_closed: bool
    """Whether the client sends no more. It may be gone, or wait for its answer."""
    remembers: bool
    """Whether the connection remembers responses by the gateway's ids, even if they are not stored."""

    def query(self, name: str) -> str:
        """The first value of this query parameter; empty if it is absent."""

    # --- the request

    async def body(self, max_bytes: int, deadline: CallDeadline) -> bytes:
        """Reads the whole body, within a size and a time."""

    def watch(self, on_disconnect: Callable[[], None]) -> None:
        """Calls ``on_disconnect`` when the client disconnects."""

    def unwatch(self) -> None:
        """Undoes ``watch``."""

    def task(self) -> asyncio.Task[object] | None:
        """The task in which this call is answered."""

    # --- the response

    def start(self, status: int, headers: Mapping[str, str]) -> Awaitable[None]:
        """Begins a streamed response."""

    def write(self, data: bytes) -> Awaitable[None]:
        """Sends a piece of the body. Awaiting it applies backpressure."""

    def end(self, data: bytes = b"") -> Awaitable[None]:
        """Sends the last piece."""

    def break_off(self, data: bytes) -> Awaitable[None]:
        """Sends the last piece of a broken body, and closes the connection without the end that HTTP requires."""

    def reply(self, status: int, body: bytes, media_type: str, headers: Mapping[str, str]) -> Awaitable[None]:
        """Sends a whole response."""

    def cut(self) -> None:
        """Closes the connection at once and drops what still waits to be sent."""


class RoutedCall(Call, Protocol):
    """A call that came over HTTP by itself, as the table of routes sees it."""

    @property
    def query_string(self) -> bytes:
        """The query as it was sent."""

    @property
    def base_url(self) -> str:
        """The address of the gateway as the client named it, without a path of ours."""

    async def read(self) -> bytes:
        """The next piece of the body, of any size; empty at the end. The content encoding is not decoded."""

    def send_head(self) -> None:
        """Sends the head of a streamed response before any bytes of its body, for a client that waits for it."""

    def send(self, reply: Reply) -> Awaitable[None]:
        """Sends a whole response."""


class _Done:
    """An awaitable that is already done. A coroutine would have to be created for every chunk."""

    def __await__(self) -> Generator[object, None, None]:
        return _NOTHING


_NOTHING: Final = cast("Generator[object, None, None]", iter(()))  # an exhausted iterator can serve all waits
DONE: Final = _Done()


class DetachedCall:
    """Replaces the call of a client that has disconnected, or that fetches its answer later.

    The exchange continues, and its output is dropped.
    """

    def __init__(self, call: Call) -> None:
        call.unwatch()
        self._call = call
        self.method = call.method
        self.path = call.path
        self.headers = call.headers
        self.extra_headers = call.extra_headers
        self.started = call.started and not call.ended
        self.ended = False
        self.bytes_sent = call.bytes_sent
        self.remembers = call.remembers
        self.half_closed = False

    def query(self, name: str) -> str:
        return self._call.query(name)

    async def body(self, max_bytes: int, deadline: CallDeadline) -> bytes:
        return await self._call.body(max_bytes, deadline)

    def watch(self, on_disconnect: Callable[[], None]) -> None:
        """Does nothing: there is no client that could disconnect."""

    def unwatch(self) -> None:
        """Does nothing: there is no client."""

    def task(self) -> asyncio.Task[object] | None:
        return self._call.task()

    def start(self, status: int, headers: Mapping[str, str]) -> Awaitable[None]:  # noqa: ARG002  # nobody receives it
        self.started = True
        return DONE

    def write(self, data: bytes) -> Awaitable[None]:
        self.bytes_sent += len(data)
        return DONE

    def end(self, data: bytes = b"") -> Awaitable[None]:
        self.ended = True
        self.bytes_sent += len(data)
        return DONE

    def break_off(self, data: bytes) -> Awaitable[None]:
        return self.end(data)

    def reply(self, status: int, body: bytes, media_type: str, headers: Mapping[str, str]) -> Awaitable[None]:  # noqa: ARG002  # as above
        self.started = True
        return self.end(body)

    def cut(self) -> None:
        self.ended = True


def query_value(query_string: bytes, name: str) -> str:
    return parse_qs(query_string.decode("latin-1")).get(name, [""])[0] if query_string else ""


def check_length(headers: Mapping[str, str], max_bytes: int) -> None:
    """Refuses a body whose Content-Length is too large, before any of it is read."""
    length = headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 20 or int(length) > max_bytes):
        raise too_large(max_bytes)


def too_large(max_bytes: int) -> LimitExceeded:
    return LimitExceeded(f"the body is larger than the limit of {max_bytes} bytes (server.max_body_bytes)", code="body_too_large")


def too_slow(seconds: float) -> RequestError:
    return RequestError(f"the body did not come within {seconds:g} s (server.body_seconds)", code="body_too_slow", status=408)


def json_object(body: bytes) -> JsonObject:
    """The body as the JSON object that every dialect sends."""
    try:
        value = _decode(body.removeprefix(BOM_UTF8))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON ({error}): {excerpt(body)}", code="not_json") from None
    if not isinstance(value, dict):
        raise RequestError(f"the body must be a JSON object, not {excerpt(value)}")
    return value


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
