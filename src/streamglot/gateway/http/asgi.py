"""ASGI in both directions: the gateway's endpoints on any ASGI server, and any ASGI application on the gateway's server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, TypeAlias

from ...errors import ConfigError
from .call import CallDeadline, ClientDisconnected, check_length, query_value, too_large, too_slow
from .encodings import decoded
from .http_call import HTTPCall
from .reply import Reply, header_value, sent_status

Scope: TypeAlias = MutableMapping[str, Any]  # Any: ASGI defines a type for each key
Message: TypeAlias = MutableMapping[str, Any]  # Any: the same
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

DENIAL: Final = "websocket.http.response"
"""The ASGI extension by which an application answers a WebSocket request with HTTP."""
CALL: Final = "streamglot.call"
"""The scope key under which the gateway's server puts the call."""


async def read_body(receive: Receive, headers: Mapping[str, str], max_bytes: int, deadline: CallDeadline) -> bytes:
    """Reads the whole body of a request, within a size and a time."""
    check_length(headers, max_bytes)
    body = bytearray()
    try:
        with deadline:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                body += message.get("body", b"")
                if len(body) > max_bytes:
                    raise too_large(max_bytes)
                if not message.get("more_body", False):
                    return decoded(bytes(body), headers, max_bytes)
    except TimeoutError:
        raise too_slow(deadline.seconds) from None


async def refuse_websocket(scope: Scope, send: Send) -> None:
    """Refuses a WebSocket, which only the gateway's own server supports.

    If the ASGI server can send it, the status 426 tells the client to use HTTP.
    """
    if DENIAL in scope.get("extensions", {}):
        await send({"type": f"{DENIAL}.start", "status": 426, "headers": [(b"upgrade", b"HTTP/1.1"), (b"content-length", b"0")]})
        await send({"type": f"{DENIAL}.body", "body": b""})
    else:
        await send({"type": "websocket.close", "code": 1000})


def is_half_closed(scope: Scope) -> bool:
    """Whether the client sends no more, and may be gone. Other servers than the gateway's do not say."""
    call: HTTPCall | None = scope.get(CALL)
    return call is not None and call.half_closed


class DisconnectWatch:
    """Notices that the client disconnects: at once on the gateway's server, by a waiting task on any other."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._call: HTTPCall | None = scope.get(CALL)
        self._receive = receive
        self._task: asyncio.Task[None] | None = None

    def start(self, on_disconnect: Callable[[], None]) -> None:
        if self._call is not None:
            self._call.watch(on_disconnect)
        else:
            self._task = asyncio.ensure_future(self._wait(on_disconnect))

    def stop(self) -> None:
        if self._call is not None:
            self._call.unwatch()
        if self._task is not None:
            self._task.cancel()

    async def _wait(self, on_disconnect: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        on_disconnect()


class ASGICall:
    """A call on any ASGI server."""

    remembers = False

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[str, str] = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.extra_headers: dict[str, str] = {}
        self.started = False
        self.ended = False
        self.bytes_sent = 0
        self.half_closed = False
        self._query: bytes = scope.get("query_string", b"")
        self._receive = receive
        self._send = send
        self._watch = DisconnectWatch(scope, receive)

    def query(self, name: str) -> str:
        return query_value(self._query, name)

    # --- the request

    async def body(self, max_bytes: int, deadline: CallDeadline) -> bytes:
        return await read_body(self._receive, self.headers, max_bytes, deadline)

    def watch(self, on_disconnect: Callable[[], None]) -> None:
        self._watch.start(lambda: None if self.ended else on_disconnect())

    def unwatch(self) -> None:
        self._watch.stop()

    def task(self) -> asyncio.Task[object] | None:
        return asyncio.current_task()

    # --- the response

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        fields = {**headers, **self.extra_headers}.items()
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
        await self.write(data)
        self.ended = True

    async def reply(self, status: int, body: bytes, media_type: str, headers: Mapping[str, str]) -> None:
        await self.start(status, {"content-type": media_type, "content-length": str(len(body)), **headers})
        await self.end(body)

    async def send(self, reply: Reply) -> None:
        """Sends a response that no endpoint made."""
        kind = {"content-type": reply.media_type, "content-length": str(len(reply.body))} if reply.body else {}
        await self.start(reply.status, {**kind, **reply.headers})
        await self.end(reply.body)

    def cut(self) -> None:
        """Marks the call as ended.

        Another server's connection cannot be closed from here, but that server sees an incomplete response.
        """
        self.ended = True

    async def forward(self, message: Message) -> None:
        """Forwards a message of an application that is not an endpoint, and adds the headers that every response gets."""
        if self.extra_headers and message["type"] == "http.response.start":
            more = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.extra_headers.items()]
            message["headers"] = [*message["headers"], *more]
        await self._send(message)


async def run_asgi(application: Application, call: HTTPCall) -> None:
    """Answers a call on the gateway's server with an ASGI application."""

    async def receive() -> Message:
        if call.complete and received:
            await call.closed()
        elif not call.disconnected and not call.ended:
            with suppress(ClientDisconnected):
                data = await call.read()
                if call.complete:
                    received.append(True)
                return {"type": "http.request", "body": data, "more_body": not call.complete}
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
            await call.start(message["status"], headers)
            call.send_head()
        elif message.get("more_body", False):
            await call.write(message.get("body", b""))
        else:
            await call.end(message.get("body", b""))

    received: list[bool] = []
    await application(_scope(call), receive, send)


def _scope(call: HTTPCall) -> Scope:
    head, (client, server) = call.head, call.addresses
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": head.version,
        "server": server,
        "client": client,
        "scheme": "http",
        "root_path": "",
        "method": call.method,
        "path": call.path,
        "raw_path": head.target.partition(b"?")[0],
        "query_string": call.query_string,
        "headers": [(name.lower(), value) for name, value in head.raw_headers],
        "state": {},
        CALL: call,
    }


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
