"""A call: one HTTP request and its response, as the endpoints see it. The server of our own and ASGI each have a class for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from types import TracebackType
from typing import Any, Final, Protocol, cast
from urllib.parse import parse_qs

import msgspec

from ...errors import LimitExceeded, RequestError, excerpt

_decode = msgspec.json.Decoder().decode


class ClientGone(Exception):
    """The client hung up: there is nobody to answer."""


class Deadline(Protocol):
    """A time limit: ``with`` it, a wait that takes longer than ``seconds`` raises a TimeoutError."""

    seconds: float

    def __enter__(self) -> None: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> None: ...


class Call(Protocol):
    """``headers`` has lower-case names. ``started``: the status is decided. ``ended``: the response is complete or given up."""

    method: str
    path: str
    headers: dict[str, str]
    extra_headers: dict[str, str]
    """Header fields that every response to this call gets, whatever it is: those of CORS."""
    started: bool
    ended: bool
    bytes_sent: int
    remembers: bool
    """The connection remembers responses by the ids that we give them, whether they are stored or not."""

    def query(self, name: str) -> str:
        """The first value of this parameter in the query string, or nothing."""

    # --- the request

    async def body(self, most: int, deadline: Deadline) -> bytes:
        """Reads the whole body, within a size and a time."""

    def watch(self, gone: Callable[[], None]) -> None:
        """Calls ``gone`` when the client hangs up."""

    def unwatch(self) -> None:
        """Takes ``watch`` back."""

    def task(self) -> asyncio.Task[Any] | None:
        """The task in which this call is answered."""

    # --- the response

    def start(self, status: int, headers: Mapping[str, str]) -> Awaitable[None]:
        """Begins a streamed response."""

    def write(self, data: bytes) -> Awaitable[None]:
        """Sends a piece of the body. Waiting for it is the backpressure."""

    def end(self, data: bytes = b"") -> Awaitable[None]:
        """Sends the last piece."""

    def reply(self, status: int, body: bytes, media_type: str, headers: Mapping[str, str]) -> Awaitable[None]:
        """Sends a whole response."""

    def cut(self) -> None:
        """Closes the connection at once, whatever still waits to be sent."""


class _Done:
    """An awaitable that is done. A coroutine would be made and thrown away for every chunk."""

    def __await__(self) -> Generator[Any, None, None]:
        return _NOTHING


_NOTHING: Final = cast("Generator[Any, None, None]", iter(()))  # it is exhausted, so one serves all waits
DONE: Final = _Done()


class DetachedCall:
    """The call of a client that is gone, or has its answer for now. The exchange goes on, and its output goes nowhere."""

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

    def query(self, name: str) -> str:
        return self._call.query(name)

    async def body(self, most: int, deadline: Deadline) -> bytes:
        return await self._call.body(most, deadline)

    def watch(self, gone: Callable[[], None]) -> None:
        """Nobody is there to hang up."""

    def unwatch(self) -> None:
        """Nobody is watched."""

    def task(self) -> asyncio.Task[Any] | None:
        return self._call.task()

    def start(self, status: int, headers: Mapping[str, str]) -> Awaitable[None]:  # noqa: ARG002
        self.started = True
        return DONE

    def write(self, data: bytes) -> Awaitable[None]:
        self.bytes_sent += len(data)
        return DONE

    def end(self, data: bytes = b"") -> Awaitable[None]:
        self.ended = True
        self.bytes_sent += len(data)
        return DONE

    def reply(self, status: int, body: bytes, media_type: str, headers: Mapping[str, str]) -> Awaitable[None]:  # noqa: ARG002
        self.started = True
        return self.end(body)

    def cut(self) -> None:
        self.ended = True


def query_value(query_string: bytes, name: str) -> str:
    return parse_qs(query_string.decode("latin-1")).get(name, [""])[0] if query_string else ""


def check_length(headers: Mapping[str, str], most: int) -> None:
    """Refuses a body that says itself that it is too large, before any of it is read."""
    length = headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 20 or int(length) > most):
        raise too_large(most)


def too_large(most: int) -> LimitExceeded:
    return LimitExceeded(f"the body is larger than the limit of {most} bytes (server.max_body_bytes)", code="body_too_large")


def too_slow(seconds: float) -> RequestError:
    return RequestError(f"the body did not come within {seconds:g} s (server.body_seconds)", code="body_too_slow", status=408)


def json_object(body: bytes) -> dict[str, Any]:
    """The body as the object that every dialect sends."""
    try:
        value = _decode(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON ({error}): {excerpt(body)}", code="not_json") from None
    if not isinstance(value, dict):
        raise RequestError(f"the body must be a JSON object, not {excerpt(value)}")
    return value
