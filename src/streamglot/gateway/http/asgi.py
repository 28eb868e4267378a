"""ASGI: the gateway on any ASGI server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias

from ...errors import ConfigError
from .call import (
    CallDeadline,
    ClientDisconnected,
    Reply,
    check_length,
    header_value,
    query_value,
    sent_status,
    too_large,
    too_slow,
)
from .encodings import decoded
from .origins import authority

Scope: TypeAlias = MutableMapping[str, Any]  # Any: ASGI defines a type for each key
Message: TypeAlias = MutableMapping[str, Any]  # Any: the same
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

DENIAL: Final = "websocket.http.response"
"""The ASGI extension by which an application answers a WebSocket request with HTTP."""


async def refuse_websocket(scope: Scope, send: Send) -> None:
    """Refuses a WebSocket, which only the gateway's own server supports.

    If the ASGI server can send it, the status 426 tells the client to use HTTP.
    """
    if DENIAL in scope.get("extensions", {}):
        await send({"type": f"{DENIAL}.start", "status": 426, "headers": [(b"upgrade", b"HTTP/1.1"), (b"content-length", b"0")]})
        await send({"type": f"{DENIAL}.body", "body": b""})
    else:
        await send({"type": "websocket.close", "code": 1000})


class ASGICall:
    """A call on any ASGI server."""

    remembers = False

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self._root: str = scope.get("root_path", "")
        self.path = _path_below(self._root, scope["path"])
        self.headers: dict[str, str] = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.extra_headers: dict[str, str] = {}
        self.started = False
        self.ended = False
        self.bytes_sent = 0
        self.half_closed = False
        self.query_string: bytes = scope.get("query_string", b"")
        self._scheme: str = scope.get("scheme", "http")
        self._server: tuple[str, int | None] | None = scope.get("server")
        self._receive = receive
        self._send = send
        self._complete = False
        """Whether the whole body has been read."""
        self._watching: asyncio.Task[None] | None = None

    @property
    def base_url(self) -> str:
        return f"{self._scheme}://{authority(self.headers.get('host', ''), self._server, self._scheme)}{self._root}"

    def query(self, name: str) -> str:
        return query_value(self.query_string, name)

    # --- the request

    async def body(self, max_bytes: int, deadline: CallDeadline) -> bytes:
        check_length(self.headers, max_bytes)
        body = bytearray()
        try:
            with deadline:
                while piece := await self.read():
                    body += piece
                    if len(body) > max_bytes:
                        raise too_large(max_bytes)
        except TimeoutError:
            raise too_slow(deadline.seconds) from None
        return decoded(bytes(body), self.headers, max_bytes)

    async def read(self) -> bytes:
        while not self._complete:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            self._complete = not message.get("more_body", False)
            if piece := message.get("body", b""):
                return bytes(piece)
        return b""

    def watch(self, on_disconnect: Callable[[], None]) -> None:
        """Waits in a task: an ASGI server reports a disconnect only to an application that asks."""
        self._watching = asyncio.ensure_future(self._wait(on_disconnect))

    def unwatch(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _wait(self, on_disconnect: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.ended:
            on_disconnect()

    def task(self) -> asyncio.Task[object] | None:
        return asyncio.current_task()

    # --- the response

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        fields = (*headers.items(), *self.extra_headers.items())
        pairs = [(name.encode("latin-1"), header_value(value).encode("latin-1", "replace")) for name, value in fields]
        await self._send({"type": "http.response.start", "status": sent_status(status), "headers": pairs})

    async def write(self, data: bytes) -> None:
        self.bytes_sent += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        if not self.ended:
            self.ended = True
            self.bytes_sent += len(data)
            await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def break_off(self, data: bytes) -> None:
        """The server sees a response without an end, and closes the connection."""
        if data:
            await self.write(data)
        self.ended = True

    async def reply(self, status: int, body: bytes, media_type: str, headers: Mapping[str, str]) -> None:
        await self.start(status, {"content-type": media_type, "content-length": str(len(body)), **headers})
        await self.end(body)

    async def send(self, reply: Reply) -> None:
        await self.start(reply.status, reply.fields)
        await self.end(reply.body)

    def send_head(self) -> None:
        """Does nothing: ``start`` has sent the head."""

    def cut(self) -> None:
        """Marks the call as ended.

        Another server's connection cannot be closed from here, but that server sees an incomplete response.
        """
        self.ended = True


def _path_below(root: str, path: str) -> str:
    """The path below the one at which another application mounts the gateway. Some servers leave that out of the path."""
    below = path.removeprefix(root)
    return below if below[:1] in ("", "/") else path


async def run_lifespan(running: AbstractAsyncContextManager[object], receive: Receive, send: Send) -> None:
    """Starts and stops an application on the lifespan messages of an ASGI server."""
    await receive()  # lifespan.startup
    try:
        async with running:
            await send({"type": "lifespan.startup.complete"})
            await receive()
    except ConfigError as error:
        await send({"type": "lifespan.startup.failed", "message": error.message})
    else:
        await send({"type": "lifespan.shutdown.complete"})
