"""A call on a connection of the gateway's server, from its head to the last byte of its response.

Endpoints and routes use it directly. Between them and the socket there are no messages, events or dictionaries per piece.
``ClientConnection`` is what HTTP and WebSocket connections share: the deadline that the server checks, and waiting for a client
that reads slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Final, Protocol, TypeVar
from urllib.parse import unquote

import httptools

from ...errors import RequestError, excerpt
from .call import (
    DONE,
    NO_BODY,
    STATUS_LINES,
    CallDeadline,
    ClientDisconnected,
    Reply,
    check_length,
    error_reply,
    header_lines,
    query_value,
    sent_status,
    too_large,
    too_slow,
)
from .encodings import decoded
from .origins import authority
from .parser import ProtocolError, RequestHead

Address = tuple[str, int]


class ConnectionServer(Protocol):
    """What connections use of their server."""

    loop: asyncio.AbstractEventLoop
    connections: set[ClientConnection]
    stopping: bool

    @property
    def stall_seconds(self) -> float:
        """Seconds that a client may read nothing of what it is sent."""

    def answered(self, task: asyncio.Task[object], error: BaseException | None) -> None:
        """Called when the task of a call has ended."""


class ClientConnection(asyncio.Protocol):
    """``expire`` must be called at ``deadline``. A ``reusable`` connection waits for its client."""

    __slots__ = ("_draining", "closing", "deadline", "paused", "server")

    def __init__(self, server: ConnectionServer) -> None:
        self.server = server
        self.deadline = inf
        self.paused = False
        """Whether the client reads too slowly, so that writers wait."""
        self.closing = False
        """Whether the connection is closed or closing, so that nothing more is written."""
        self._draining: list[asyncio.Future[None]] = []

    @property
    def reusable(self) -> bool:
        raise NotImplementedError

    def expire(self) -> None:
        raise NotImplementedError

    def shut_down(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def pause_writing(self) -> None:
        self.paused = True
        self.deadline = self.server.loop.time() + self.server.stall_seconds

    async def drained(self) -> None:
        """Waits until the client has read enough for more to be sent, or has disconnected."""
        while self.paused and not self.closing:
            waiter = self.server.loop.create_future()
            self._draining.append(waiter)
            try:
                await waiter
            finally:
                self._draining.remove(waiter)

    def _wake_writers(self) -> None:
        for waiter in self._draining:
            if not waiter.done():
                waiter.set_result(None)


READ_AHEAD_BYTES: Final = 65_536
"""Bytes of a body that may be buffered before the endpoint reads."""
SWITCHING: Final = "HTTP/1.1 101 Switching Protocols\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
PROBES_PER_CONTINUE: Final = 30
"""A client that is there gets one such head in 15 seconds, the first at once. The other looks only read the socket's state."""

# How the end of the response's body is marked.
CHUNKED, LENGTH, CLOSE, EMPTY = range(4)


T = TypeVar("T", bound=ClientConnection)


class CallConnection(Protocol):
    """What a call uses of its connection."""

    paused: bool

    @property
    def server(self) -> ConnectionServer: ...
    @property
    def addresses(self) -> tuple[Address | None, Address | None]: ...
    @property
    def can_switch(self) -> bool: ...

    def write(self, data: bytes) -> None: ...
    def write_soon(self, data: bytes) -> None: ...
    async def drained(self) -> None: ...
    def resume_reading(self) -> None: ...
    def response_ended(self, call: HTTPCall) -> None: ...
    def switch(self, head: bytes, make: Callable[[ConnectionServer, asyncio.Transport], T]) -> T: ...
    def reset(self) -> None: ...
    def abort(self) -> None: ...


class HTTPCall:
    __slots__ = (
        "_body",
        "_connection",
        "_error",
        "_expects",
        "_framing",
        "_head",
        "_left",
        "_limit",
        "_on_disconnect",
        "_probes",
        "_query",
        "_reading",
        "_received",
        "_task",
        "_waiters",
        "bytes_sent",
        "complete",
        "disconnected",
        "ended",
        "extra_headers",
        "half_closed",
        "head",
        "headers",
        "keep_alive",
        "method",
        "path",
        "started",
    )

    remembers = False

    def __init__(self, connection: CallConnection, head: RequestHead) -> None:
        self.head = head
        self.method = head.method
        self.headers = head.fields
        self.path, self._query = self._address(head.target)
        self.extra_headers: dict[str, str] = {}
        self.keep_alive = head.keep_alive
        self.complete = False
        """Whether the whole request has been received."""
        self.disconnected = False
        self.half_closed = False
        self._probes = 0
        self.started = False
        self.ended = False
        self.bytes_sent = 0
        self._connection = connection
        self._task: asyncio.Task[object] | None = None
        self._on_disconnect: Callable[[], None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._body: bytes | bytearray = b""
        self._received = 0
        self._limit = READ_AHEAD_BYTES
        self._reading = False
        self._error: RequestError | None = None
        self._expects = "expect" in head.fields and head.fields["expect"].lower() == "100-continue"
        self._head = b""
        self._framing = CHUNKED
        self._left = 0

    def _address(self, target: bytes) -> tuple[str, bytes]:
        """The unquoted path and the query string.

        A host in the target takes precedence over the header (RFC 9112, 3.2.2).
        """
        if not target.startswith(b"/") and target != b"*":
            try:
                url = httptools.parse_url(target)
            except httptools.HttpParserError:
                raise ProtocolError(
                    400, "bad_target", f"{excerpt(target)} is not a valid request target; send a path or a URL"
                ) from None
            host = b"[%b]" % url.host if url.host and b":" in url.host else url.host or b""
            self.headers["host"] = (b"%b:%d" % (host, url.port) if url.port else host).decode("latin-1")
            target = (url.path or b"/") + (b"?" + url.query if url.query else b"")
        elif b"#" in target:
            target = target.partition(b"#")[0]
        path, _, query = target.partition(b"?")
        return unquote(path.decode("ascii")) if b"%" in path else path.decode("ascii"), query

    @property
    def query_string(self) -> bytes:
        return self._query

    @property
    def base_url(self) -> str:
        return f"http://{authority(self.headers.get('host', ''), self._connection.addresses[1])}"

    def query(self, name: str) -> str:
        return query_value(self._query, name)

    # --- for the connection

    def runs_in(self, task: asyncio.Task[object]) -> None:
        self._task = task

    def receive(self, data: bytes) -> bool:
        """Adds a piece of the body. Returns False if reading should pause until the endpoint asks for more."""
        if not self._received:
            self._body = data
        elif type(self._body) is bytearray:
            self._body += data
        else:  # pieces may be as small as a byte, and a list of them would take fifty times their size
            self._body = bytearray(self._body) + data
        self._received += len(data)
        if self._received <= self._limit:
            return True
        self._wake()
        return self._reading

    def finish(self) -> None:
        """Marks the request as complete."""
        self.complete = True
        self._expects = False
        self._wake()

    def fail(self, error: ProtocolError) -> None:
        """Records that the body violated HTTP. The endpoint's next read raises the error."""
        self._error = RequestError(error.message, code=error.code, status=error.status)
        self.keep_alive = False
        self._wake()

    def connection_lost(self) -> None:
        """Records that the connection is lost."""
        self.disconnected = True
        self._wake()
        if self._on_disconnect is not None:
            on_disconnect, self._on_disconnect = self._on_disconnect, None
            on_disconnect()

    @property
    def unanswerable(self) -> bool:
        """Whether the client waits for a ``100 Continue`` that it did not get.

        It is then unknown whether the client will send the body.
        """
        return self._expects

    def probe(self) -> None:
        """Sends something to a client that may be gone. HTTP allows it before an answer; a stream does it itself."""
        if not self.started and self.head.version == "1.1":
            if self._probes % PROBES_PER_CONTINUE == 0:
                self._connection.write(CONTINUE)
            self._probes += 1

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- the request

    def watch(self, on_disconnect: Callable[[], None]) -> None:
        if self.disconnected:
            on_disconnect()
        else:
            self._on_disconnect = on_disconnect

    def unwatch(self) -> None:
        self._on_disconnect = None

    def task(self) -> asyncio.Task[object] | None:
        return self._task

    async def body(self, max_bytes: int, deadline: CallDeadline) -> bytes:
        if not self.complete:
            check_length(self.headers, max_bytes)
            self._ask_for_more(max_bytes)
            try:
                with deadline:
                    while not self.complete and self._received <= max_bytes:
                        await self._more()
            except TimeoutError:
                raise too_slow(deadline.seconds) from None
        if self._received > max_bytes:
            raise too_large(max_bytes)
        body = self._take()
        return decoded(body, self.headers, max_bytes) if "content-encoding" in self.headers else body

    async def read(self) -> bytes:
        """The next piece of the body, of any size; empty at the end."""
        if not self.complete:
            self._ask_for_more(0)
            while not self.complete and not self._received:
                await self._more()
        self._reading, self._limit, self._received = False, READ_AHEAD_BYTES, 0
        return self._take()

    def _take(self) -> bytes:
        data, self._body = self._body, b""
        return data if type(data) is bytes else bytes(data)

    def _ask_for_more(self, max_bytes: int) -> None:
        self._reading, self._limit = True, max_bytes
        self._connection.resume_reading()
        if self._expects:
            self._expects = False
            self._connection.write(CONTINUE)

    async def _more(self) -> None:
        if self.disconnected:
            raise ClientDisconnected
        if self._error is not None:
            raise self._error
        await self._wait()

    async def _wait(self) -> None:
        waiter = self._connection.server.loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)

    # --- the response

    def start(self, status: int, headers: Mapping[str, str]) -> Awaitable[None]:
        """Starts the response. The head is sent together with the first bytes of the body."""
        self.started = True
        framing = ""
        if status in NO_BODY or self.method == "HEAD":
            self._framing = EMPTY
        elif "content-length" in headers:
            self._framing, self._left = LENGTH, int(headers["content-length"])
        elif self.head.version == "1.1":
            self._framing, framing = CHUNKED, "transfer-encoding: chunked\r\n"
        else:
            self._framing, self.keep_alive = CLOSE, False
        self._head = self._encoded(status, headers, framing)
        return DONE

    def send_head(self) -> None:
        self._connection.write_soon(self._head)
        self._head = b""

    def write(self, data: bytes) -> Awaitable[None]:
        self.bytes_sent += len(data)
        connection = self._connection
        if self._framing == CHUNKED:
            connection.write(b"%b%x\r\n%b\r\n" % (self._head, len(data), data))
        else:
            connection.write(self._head + self._counted(data))
        self._head = b""
        return connection.drained() if connection.paused else DONE

    def end(self, data: bytes = b"") -> Awaitable[None]:
        if self.ended:
            return DONE
        self.ended = True
        self.bytes_sent += len(data)
        if self._framing != CHUNKED:
            data = self._head + self._counted(data)
            if self._left:
                raise RuntimeError(f"the response is {self._left} bytes shorter than its content-length")
        elif data:
            data = b"%b%x\r\n%b\r\n0\r\n\r\n" % (self._head, len(data), data)
        else:
            data = self._head + b"0\r\n\r\n"
        self._head = b""
        return self._last(data)

    def break_off(self, data: bytes) -> Awaitable[None]:
        drained = self.write(data) if data else DONE  # an empty piece would be the end
        self.ended, self.keep_alive = True, False
        connection = self._connection
        if self._framing == CLOSE:  # the close would be the end, so the connection is reset
            connection.reset()
        connection.response_ended(self)
        self._wake()
        return drained

    def reply(self, status: int, body: bytes, media_type: str, headers: Mapping[str, str]) -> Awaitable[None]:
        self.started = self.ended = True
        head = self._encoded(status, headers, f"content-type: {media_type}\r\ncontent-length: {len(body)}\r\n")
        if self.method != "HEAD":
            self.bytes_sent += len(body)
            head += body
        return self._last(head)

    def send(self, reply: Reply) -> Awaitable[None]:
        self.start(reply.status, reply.fields)
        return self.end(reply.body)

    def cut(self) -> None:
        self.ended = True
        self._connection.abort()

    @property
    def can_switch(self) -> bool:
        """Whether the connection can change to another protocol: the client has sent nothing after this request."""
        return self.complete and not self.disconnected and self._connection.can_switch

    def switch(self, headers: Mapping[str, str], make: Callable[[ConnectionServer, asyncio.Transport], T]) -> T:
        """Answers with 101. From then on the connection belongs to the protocol that ``make`` returns."""
        self.started = self.ended = True
        fields = header_lines({**headers, **self.extra_headers})
        return self._connection.switch(f"{SWITCHING}{fields}\r\n".encode("latin-1", "replace"), make)

    def _counted(self, data: bytes) -> bytes:
        if self._framing == EMPTY:
            return b""
        if self._framing == LENGTH:
            self._left -= len(data)
            if self._left < 0:
                raise RuntimeError(f"the response is {-self._left} bytes longer than its content-length")
        return data

    def _last(self, data: bytes) -> Awaitable[None]:
        connection = self._connection
        connection.write(data)
        connection.response_ended(self)
        self._wake()
        return connection.drained() if connection.paused else DONE

    def _encoded(self, status: int, headers: Mapping[str, str], framing: str) -> bytes:
        if self._expects or headers.get("connection") == "close":
            self.keep_alive = False
        if not self.keep_alive and "connection" not in headers:
            framing += "connection: close\r\n"
        if self.extra_headers:
            headers = {**headers, **self.extra_headers}
        return f"{STATUS_LINES[sent_status(status)]}{framing}{header_lines(headers)}\r\n".encode("latin-1", "replace")

    def task_ended(self, task: asyncio.Task[object]) -> None:
        """Called when the task has ended.

        Sends an error if there is no response, and cuts the connection if the response is incomplete.
        """
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self.ended or self.disconnected:
            if self._left and not self.disconnected:
                self.cut()  # the length differs from the Content-Length
        elif self.started:
            self.cut()
        elif isinstance(error, asyncio.CancelledError):
            self.send(error_reply(503, "shutting_down", "the gateway is shutting down; send the request again", "server_error"))
        else:
            self.send(
                error_reply(500, "internal_error", "internal error of the gateway; its log has the details", "server_error")
            )
            error = error or RuntimeError(f"nothing answered {self.method} {self.path}")
        self._connection.server.answered(task, error)
