"""The short way from a client's connection to its exchange: no messages between server and application.

Most requests are plain POSTs to a face. What ASGI makes of one (a scope, an event, a dictionary for each piece of the body
and of the answer) costs more than reading it does. All that is not as plain goes through ASGI as on any other server.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from ..engine.deadlines import Deadline
from .app import Gateway
from .call import Call, ClientGone
from .connection import Connection
from .endpoints import Endpoint, endpoint_for

_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
STATUS_LINES: Final = {status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n" for status in range(200, 600)}
_NOT_IN_A_VALUE: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f]")


class DirectConnection(Connection):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.gateway = cast(Gateway, self.app)
        self._answered = 0.0

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    # --- the parser's words

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._in_headers = True

    def begin(self) -> None:
        found = self._face()
        if found is None:
            self._through_asgi()
            return
        call = DirectCall(self)
        if "origin" in call.headers:
            self._through_asgi()
            return
        self.cycle = call  # type: ignore[assignment]  # as much of a cycle as the server uses
        face, model = found
        task = call.its_task = self.loop.create_task(self._run(call, self.gateway.exchange(face, call, model)))
        self.tasks.add(task)

    def on_body(self, body: bytes) -> None:
        cycle: Any = self.cycle
        if type(cycle) is DirectCall and not cycle.response_complete:
            cycle.put(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._size = self._discarded = 0
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()

    def _face(self) -> tuple[Endpoint, str] | None:
        """The face that is asked for, if it is asked in the plain way."""
        parser, url = self.parser, self.url
        if (
            parser.get_method() != b"POST"
            or self.expect_100_continue
            or (self.cycle is not None and not self.cycle.response_complete)
            or parser.get_http_version() != "1.1"
            or parser.should_upgrade()
            or b"%" in url
            or not url.isascii()
        ):
            return None
        path, _, query = url.decode("ascii").partition("?")
        return endpoint_for(path, "sse" if "alt=sse" in query else "")

    def _through_asgi(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self._in_headers = False  # they have come: what follows is the body
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().begin()

    async def _run(self, call: DirectCall, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except BaseException as error:
            self.logger.error("an exchange was ended from outside", exc_info=error)
            if not call.response_complete:
                self.transport.close()
        finally:
            self.tasks.discard(call.its_task)

    # --- between two requests: one timer that looks again, in place of one for each

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._answered = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._size or not self.cycle.response_complete:
            return  # the end of the next answer sets it again
        left = self._answered + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _unset_keepalive_if_required(self) -> None:
        """The timer looks for itself whether the client was silent."""


class DirectCall(Call):
    """A call whose connection is ours. For the server it is the cycle of a request and its answer."""

    def __init__(self, connection: DirectConnection) -> None:
        path, _, self._query = connection.url.partition(b"?")
        self.path = path.decode("ascii")
        self.method = "POST"
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in connection.headers}
        self.started = False
        self.ended = False
        self.bytes_sent = 0
        self.its_task: asyncio.Task[None] | None = None
        self._line = self._connection = connection
        self._watcher = None
        self._pieces: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._head = b""
        # what the server asks of a cycle
        self.keep_alive: bool = connection.parser.should_keep_alive()
        self.more_body = True
        self.disconnected = False
        self.response_complete = False

    @property
    def message_event(self) -> DirectCall:
        """What the server sets when something has come: here that wakes who waits for it."""
        return self

    def set(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def put(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        self.set()

    def watch(self, gone: Callable[[], None]) -> None:
        super().watch(gone)
        if self.disconnected:  # between its last byte and now
            gone()

    def unwatch(self) -> None:
        cycle: Any = self._line.cycle
        if cycle is self:  # else the line is another call's by now
            super().unwatch()

    def task(self) -> asyncio.Task[Any] | None:
        return self.its_task

    # --- what the client says

    async def body(self, most: int, deadline: Deadline) -> bytes:
        if self.more_body and self._size <= most:
            length = self.headers.get("content-length", "")
            if length.isdigit() and int(length) > most:
                raise self._too_large(most)
            try:
                with deadline:
                    while self.more_body and self._size <= most:
                        if self.disconnected:
                            raise ClientGone
                        self._waiter = self._line.loop.create_future()
                        await self._waiter
            except TimeoutError:
                raise self._too_slow(deadline.seconds) from None
        if self._size > most:
            raise self._too_large(most)
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # --- what we say

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """The head goes out with the first bytes behind it."""
        self.started = True
        self._head = self._encoded(status, headers, "transfer-encoding: chunked\r\n")

    async def write(self, data: bytes) -> None:
        self.bytes_sent += len(data)
        if self._line.flow.write_paused and not self.disconnected:
            await self._line.flow.drain()
        self._deliver(b"%b%x\r\n%b\r\n" % (self._head, len(data), data))

    async def end(self, data: bytes = b"") -> None:
        if self.ended:
            return
        self.ended = True
        self.bytes_sent += len(data)
        if self._line.flow.write_paused and not self.disconnected:
            await self._line.flow.drain()
        if data:
            self._deliver(b"%b%x\r\n%b\r\n0\r\n\r\n" % (self._head, len(data), data), last=True)
        else:
            self._deliver(self._head + b"0\r\n\r\n", last=True)

    async def reply(self, status: int, body: bytes, media_type: str, headers: Mapping[str, str]) -> None:
        self.started = self.ended = True
        self.bytes_sent += len(body)
        if self._line.flow.write_paused and not self.disconnected:
            await self._line.flow.drain()
        head = self._encoded(status, headers, f"content-type: {media_type}\r\ncontent-length: {len(body)}\r\n")
        self._line.gateway.pool.connections.writes.add(self._finish, head + body)

    def _finish(self, data: bytes) -> None:
        self._deliver(data, last=True)

    def _encoded(self, status: int, headers: Mapping[str, str], framing: str) -> bytes:
        if "connection" in headers:
            self.keep_alive = False
        elif not self.keep_alive:
            framing += "connection: close\r\n"
        values = "".join(headers.values())
        if _NOT_IN_A_VALUE.search(values) is not None:
            headers = {name: _NOT_IN_A_VALUE.sub("?", value) for name, value in headers.items()}
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        return f"{STATUS_LINES[status]}{framing}{lines}\r\n".encode("latin-1", "replace")

    def _deliver(self, data: bytes, last: bool = False) -> None:
        line = self._line
        transport = line.transport
        if self.disconnected or transport.is_closing():
            return
        self._head = b""
        transport.write(data)
        if last:
            self.response_complete = True
            if not self.keep_alive:
                transport.close()
            line.on_response_complete()
