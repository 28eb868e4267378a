"""One client connection: requests in, responses out, in order.

Theory of operation. The parser names requests as they come; ``_receiving`` is the one whose body is still arriving and ``_call``
the one that is being answered. Usually they are the same.

- **Order.** A request that comes before the previous one is answered must wait: parsed in ``_queue`` if it came in the same read,
  else as bytes in ``_held``. Reading never stops for that, so a disconnect is noticed at once.
- **Half-closed connections.** A client may close its sending half after a request and wait for the answer. A client that is gone
  looks the same until something is sent to it, so the connection sends ``100 Continue`` before an answer, and the pieces of a
  stream do it after that. The system then reports the reset.
- **Deadlines.** There is one, ``deadline``; the server checks it a few times a second. It covers the wait for a request, a slow
  head, the rest of a body that no endpoint reads, a client that does not read, and a close that the client does not answer. While
  an endpoint works there is none: endpoints have their own limits.
- **Answers.** Bytes that cannot be parsed are answered with an error and a close. Before the connection to a client that may
  still be sending is closed, the rest of its bytes is read and dropped for a moment: a close with unread bytes resets the
  connection, and the answer is lost with it.
- **Writes** of several connections are sent together at the end of a turn of the event loop: each write wakes the peer's process,
  and that costs more than the write itself.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from math import inf
from typing import Final, Protocol

from .call import STATUS_LINES, error_reply, header_lines
from .http_call import Address, ClientConnection, ConnectionServer, HTTPCall, T
from .parser import ProtocolError, RequestHead, RequestParser

HEAD_SECONDS: Final = 20.0
"""Seconds for a request's head, from the connection or from its first byte: a slow connection needs one second."""
KEEP_ALIVE_SECONDS: Final = 75.0
"""Seconds that a connection waits for its next request: longer than the connection pools of known clients keep one."""
DISCARD_SECONDS: Final = 30.0
"""Seconds for the rest of a body after its response has been sent."""
DISCARD_BYTES: Final = 2**26
"""Bytes that are read and dropped, so that a client gets to read its response: twice the largest body that is allowed."""
LINGER_SECONDS: Final = 2.0
"""Seconds that a closed connection is still read while the response is being delivered."""
LAST_REQUEST_SECONDS: Final = 2.0
"""Seconds that a stopping server waits for the first request of a connection: a lost packet is sent again within two seconds."""
PIPELINED: Final = 32
"""Parsed requests that may wait for their turn: twice what load generators pipeline. Other clients do not pipeline."""
PIPELINED_BYTES: Final = 65_536
"""Unparsed bytes that may wait for their turn."""
FLUSH_BYTES: Final = 65_536
"""Bytes that may wait for the end of a turn of the event loop. Above this the transport's own limits apply."""
PROBE_SECONDS: Final = 0.5
"""Seconds between two looks whether a client that sends no more still reads. Most answers begin earlier."""
NEVER: Final = inf
_RESET: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which a close resets the connection."""


class FaultLog(Protocol):
    def log_fault(self, request_id: str, error: BaseException) -> None: ...


class HTTPServer(ConnectionServer, Protocol):
    """What HTTP connections use of their server."""

    crowded: bool

    @property
    def application(self) -> FaultLog: ...
    def opened(self, connection: HTTPProtocol) -> bool: ...
    def answer(self, call: HTTPCall) -> None: ...
    def flush_soon(self, connection: HTTPProtocol) -> None: ...


class HTTPProtocol(ClientConnection):
    __slots__ = (
        "_call",
        "_discarded",
        "_discarding",
        "_error",
        "_half_closed",
        "_head_timed",
        "_held",
        "_held_bytes",
        "_out",
        "_parser",
        "_queue",
        "_reading",
        "_receiving",
        "_transport",
    )

    server: HTTPServer
    head_seconds = HEAD_SECONDS
    keep_alive_seconds = KEEP_ALIVE_SECONDS
    discard_seconds = DISCARD_SECONDS
    last_request_seconds = LAST_REQUEST_SECONDS

    def __init__(self, server: HTTPServer) -> None:
        super().__init__(server)
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # connection_made is called first
        self._parser = RequestParser(self)
        self._call: HTTPCall | None = None
        self._receiving: HTTPCall | None = None
        self._queue: list[HTTPCall] = []
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._half_closed = False
        self._error: ProtocolError | None = None
        self._head_timed = True
        self._reading = True
        self._discarding = False
        self._discarded = 0
        self._out = b""

    @property
    def reusable(self) -> bool:
        """Whether the connection has been used and waits for another request, with nothing left to send."""
        waits = not self._head_timed and self._call is None and self._receiving is None and not self.closing
        return waits and not self._out and not self._transport.get_write_buffer_size()

    @property
    def addresses(self) -> tuple[Address | None, Address | None]:
        """The addresses of the client's and the server's end."""
        client, server = (self._transport.get_extra_info(name) for name in ("peername", "sockname"))
        return client and client[:2], server and server[:2]

    # --- the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's is no subclass
        self._transport = transport
        self.deadline = self.server.loop.time() + self.head_seconds
        if not self.server.opened(self):
            self._refuse(too_many_connections())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the signature of asyncio
        self.closing = True
        self.server.connections.discard(self)
        self._wake_writers()
        calls = [call for call in (self._call, *self._queue) if call is not None]
        self._call = self._receiving = None
        self._queue.clear()
        self._held.clear()
        self._parser.close()
        for call in calls:
            call.connection_lost()

    def data_received(self, data: bytes) -> None:
        if self._discarding:
            self._discard(len(data))
        elif self._call is not None and self._receiving is None:
            self._hold(data)
        else:
            self._feed(data)

    def eof_received(self) -> bool:
        """The client sends no more. If a whole request waits for its answer, the connection stays open for it."""
        if self._call is not None and self._receiving is None and self._transport.get_extra_info("sslcontext") is None:
            self._half_closed = self._call.half_closed = True
            if not self.paused:
                self.deadline = self.server.loop.time() + PROBE_SECONDS
            return True
        if self._call is None and self._receiving is None and not self._parser.idle and not self._discarding:
            self._refuse(cut_off())
        return False

    def resume_writing(self) -> None:
        self.paused = False
        self._wake_writers()
        if self._call is not None and not self.closing:
            self.deadline = self.server.loop.time() + PROBE_SECONDS if self._half_closed else NEVER
        else:
            self.deadline = self.server.loop.time() + self._limit_seconds()

    def _limit_seconds(self) -> float:
        """The seconds that the current wait may take while no endpoint works."""
        if self.closing:
            return self.server.stall_seconds
        if self._receiving is not None:
            return self.discard_seconds
        return self.keep_alive_seconds if self._parser.idle else self.head_seconds

    # --- for calls

    def write(self, data: bytes) -> None:
        if self._out:
            self._out += data
        elif self.closing:
            return
        elif self.server.crowded:
            self._out = data
            self.server.flush_soon(self)
        else:
            self._transport.write(data)
            return
        if len(self._out) > FLUSH_BYTES:
            self.flush()

    def write_soon(self, data: bytes) -> None:
        """Sends the data together with other writes of this turn of the event loop."""
        if not self._out:
            self.server.flush_soon(self)
        self._out += data

    def flush(self) -> None:
        data, self._out = self._out, b""
        if data and not self.closing:
            self._transport.write(data)

    def resume_reading(self) -> None:
        if not self._reading and not self.closing:
            self._reading = True
            self._transport.resume_reading()

    @property
    def can_switch(self) -> bool:
        """Whether nothing was read after the current request."""
        return self._receiving is None and not self._queue and self._error is None and not self._discarding

    def switch(self, head: bytes, make: Callable[[ConnectionServer, asyncio.Transport], T]) -> T:
        """Sends the head of a 101 answer and hands the transport over to another protocol. This protocol is then done."""
        self._transport.write(self._out + head)
        protocol = make(self.server, self._transport)
        self.server.connections ^= {self, protocol}
        self.closing, self._call = True, None
        self._parser.close()
        self._transport.set_protocol(protocol)
        protocol.data_received(b"".join(self._held))  # frames that came before the answer
        return protocol

    def response_ended(self, call: HTTPCall) -> None:
        if self._call is not call:
            return
        self._call = None
        self.resume_reading()
        if not call.keep_alive:
            self._close()
        elif self._receiving is call:
            if not self.paused:
                self.deadline = self.server.loop.time() + self.discard_seconds
        else:
            self._next()

    def abort(self) -> None:
        """Closes at once and drops what still waits to be sent."""
        self.closing = True
        self._transport.abort()

    def reset(self) -> None:
        """Sends what can be sent at once, and resets the connection."""
        self.flush()
        opened = self._transport.get_extra_info("socket")
        if opened is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.abort()

    # --- the parser

    def request_started(self, head: RequestHead) -> None:
        if self._discarding or len(self._queue) >= PIPELINED:
            raise NotRead
        call = self._receiving = HTTPCall(self, head)
        if self._call is None:
            self._start(call)
        else:
            self._queue.append(call)

    def body_received(self, data: bytes) -> None:
        call = self._receiving
        if call is None or call.ended:
            self._discard(len(data))
        elif not call.receive(data) and self._reading and not self.closing:
            self._reading = False
            self._transport.pause_reading()

    def request_ended(self) -> None:
        call, self._receiving = self._receiving, None
        if call is None:
            return
        call.finish()
        self.resume_reading()  # a large body may have paused reading, and a disconnect must be noticed
        if not call.keep_alive:
            self._discarding = True  # nothing after this request is parsed
        elif call.ended and self._call is None:
            self._next()

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
        except ProtocolError as error:
            self._broken(error)
        except Exception as error:
            self.server.application.log_fault("", error)
            self._broken(internal_error())
        if self._call is None and not self._head_timed and self._receiving is None and not self._parser.idle and not self.closing:
            self._head_timed = True
            self.deadline = self.server.loop.time() + self.head_seconds

    def _broken(self, error: ProtocolError) -> None:
        """Stops parsing. Requests before the error are answered first."""
        if self._discarding:
            return
        self._discarding = True
        call, self._receiving = self._receiving, None
        if isinstance(error, NotRead):
            self._queue[-1].keep_alive = False
        elif call is not None and not call.ended:
            call.fail(error)
        elif call is not None:
            self._close()
        elif self._call is not None:
            self._error = error
        else:
            self._refuse(error)

    # --- request queue

    def _start(self, call: HTTPCall) -> None:
        self._call = call
        if self.server.stopping and not self._queue:
            call.keep_alive = False
        call.half_closed = self._half_closed
        if not self.paused:
            self.deadline = self.server.loop.time() + PROBE_SECONDS if self._half_closed else NEVER
        self.server.answer(call)

    def _next(self) -> None:
        self._wait_for_request()
        if self._queue:
            self._start(self._queue.pop(0))
        elif self._held:
            data = b"".join(self._held)
            self._held.clear()
            self._held_bytes = 0
            self._feed(data)
        elif self._error is not None:
            self._refuse(self._error)
        elif self.server.stopping or self._half_closed:
            self._close()

    def _wait_for_request(self) -> None:
        self._head_timed = False
        if not self.paused:
            self.deadline = self.server.loop.time() + self.keep_alive_seconds

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > PIPELINED_BYTES:
            self._discarding = True
            self._held.clear()
            last = self._queue[-1] if self._queue else self._call
            assert last is not None
            last.keep_alive = False  # the client sends the others again over another connection

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > DISCARD_BYTES:
            self.abort()

    # --- ends

    def expire(self) -> None:
        """Called when the deadline has passed and another turn of the event loop did not change that."""
        if self._half_closed and self._call is not None and not self.closing and not self.paused:
            self._probe(self._call)
        elif self.closing or self.paused or self._receiving is not None:
            self.abort()
        elif self._parser.idle:
            self.abort()  # nothing is in transit in either direction
        elif self._call is None:
            self._refuse(shutting_down() if self.server.stopping else headers_too_slow(self.head_seconds))

    def _probe(self, call: HTTPCall) -> None:
        """Finds out whether a client that sends no more still reads."""
        opened = self._transport.get_extra_info("socket")
        if opened is not None and opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.abort()
            return
        self.deadline = self.server.loop.time() + PROBE_SECONDS
        call.probe()

    def shut_down(self) -> None:
        """Accepts no more requests on this connection, because the server stops."""
        now = self.server.loop.time()
        if self._call is not None:
            if not self._held:  # else the connection closes after the requests that wait
                (self._queue or [self._call])[-1].keep_alive = False
        elif self.reusable:
            self.deadline = now  # a request that is still unread in the socket is answered
        elif self._receiving is None and not self._head_timed:
            self._close()  # after the rest of the response has been sent
        elif not self.closing:
            self.deadline = min(self.deadline, now + self.last_request_seconds)

    def _refuse(self, error: ProtocolError) -> None:
        """Answers bytes that could not be parsed as a request."""
        self._discarding = True
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        reply = error_reply(error.status, error.code, error.message, kind)
        fields = {"content-type": reply.media_type, "content-length": str(len(reply.body)), "connection": "close"}
        self.write(f"{STATUS_LINES[error.status]}{header_lines(fields)}\r\n".encode() + reply.body)
        self._close()

    def _close(self) -> None:
        """Closes after a response: our side at once, the other when the client has closed its side, or soon after."""
        if self.closing:
            return
        self.flush()
        self.closing = self._discarding = True
        if self._transport.can_write_eof() and not self._half_closed:
            self._transport.write_eof()
        else:
            self._transport.close()
        unsent = self._transport.get_write_buffer_size()
        self.deadline = self.server.loop.time() + (self.server.stall_seconds if unsent else LINGER_SECONDS)


class NotRead(ProtocolError):
    """Too many requests come before this one, or the previous one was the last on this connection. It is not read."""

    def __init__(self) -> None:
        super().__init__(503, "not_read", "the connection closes before this request; send it again over another connection")


def too_many_connections() -> ProtocolError:
    message = "all connections are in use; try again in a moment, and close unused ones"
    return ProtocolError(503, "too_many_connections", message)


def cut_off() -> ProtocolError:
    return ProtocolError(400, "cut_off", "the request ends before its headers do; send it whole")


def headers_too_slow(seconds: float) -> ProtocolError:
    return ProtocolError(408, "headers_too_slow", f"the headers did not come within {seconds:g} s; send them faster")


def shutting_down() -> ProtocolError:
    return ProtocolError(503, "shutting_down", "the gateway is shutting down; send the request again")


def internal_error() -> ProtocolError:
    return ProtocolError(500, "internal_error", "internal error of the gateway; its log has the details")
