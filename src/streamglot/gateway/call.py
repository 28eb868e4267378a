"""One HTTP call of a client: its headers and body, and the answer, over raw ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qs

import msgspec

from ..engine.deadlines import Deadline
from ..errors import LimitExceeded, RequestError, excerpt
from .connection import connection_of

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_decode = msgspec.json.Decoder().decode


class ClientGone(Exception):
    """The client hung up: nobody is there to be told."""


class Call:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: Mapping[str, str] = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.started = False
        self.ended = False
        self.bytes_sent = 0
        self._query: bytes = scope.get("query_string", b"")
        self._receive = receive
        self._send = send
        self._connection = connection_of(scope)
        self._watcher: asyncio.Task[None] | None = None

    def query(self, name: str) -> str:
        return parse_qs(self._query.decode("latin-1")).get(name, [""])[0] if self._query else ""

    # --- what the client says

    async def body(self, most: int, deadline: Deadline) -> bytes:
        """The whole body, within a size and a time."""
        length = self.headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            raise self._too_large(most)
        pieces: list[bytes] = []
        size, more = 0, True
        try:
            with deadline:
                while more:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    pieces.append(message.get("body", b""))
                    size += len(pieces[-1])
                    if size > most:
                        raise self._too_large(most)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise self._too_slow(deadline.seconds) from None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def watch(self, gone: Callable[[], None]) -> None:
        """Calls ``gone`` when the client hangs up: at once where the connection is ours, by a task on any other server."""
        if self._connection is not None:
            self._connection.watch(gone)
        else:
            self._watcher = asyncio.ensure_future(self._disconnected(gone))

    def task(self) -> asyncio.Task[Any] | None:
        """The task in which this call is answered."""
        return asyncio.current_task()

    def unwatch(self) -> None:
        if self._connection is not None:
            self._connection.watch(None)
        if self._watcher is not None:
            self._watcher.cancel()

    async def _disconnected(self, gone: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.ended:
            gone()

    def cut(self) -> None:
        """Hangs up on a client that does not take what it is sent."""
        self.ended = True
        if self._connection is not None:
            self._connection.cut()

    def _too_large(self, most: int) -> LimitExceeded:
        return LimitExceeded(f"the body is larger than the limit of {most} bytes (server.max_body_bytes)", code="body_too_large")

    def _too_slow(self, seconds: float) -> RequestError:
        return RequestError(f"the body did not come within {seconds:g} s (server.body_seconds)", code="body_too_slow", status=408)

    # --- what we say

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        pairs = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, data: bytes) -> None:
        """Waiting here is the backpressure."""
        self.bytes_sent += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        if not self.ended:
            self.ended = True
            self.bytes_sent += len(data)
            await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def reply(self, status: int, body: bytes, media_type: str, headers: Mapping[str, str]) -> None:
        length = {"content-type": media_type, "content-length": str(len(body))}
        await self.start(status, {**length, **headers})
        await self.end(body)


class Unheard(Call):
    """A call whose client is gone, or has its answer already: what is said from now on goes nowhere."""

    def __init__(self, call: Call) -> None:
        call.unwatch()
        self.method, self.path, self.headers, self._query = call.method, call.path, call.headers, call._query
        self.started = call.started and not call.ended
        self.ended = False
        self.bytes_sent = call.bytes_sent
        self._send = _nowhere
        self._connection = self._watcher = None


async def _nowhere(_: MutableMapping[str, Any]) -> None:
    """Nobody is there."""


def json_object(body: bytes) -> dict[str, Any]:
    """The body as the object that every dialect sends."""
    try:
        value = _decode(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON ({error}): {excerpt(body)}", code="not_json") from None
    if not isinstance(value, dict):
        raise RequestError(f"the body must be a JSON object, not {excerpt(value)}")
    return value
