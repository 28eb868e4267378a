"""WebSocket connections (RFC 6455) on the gateway's server: text messages in, text frames out.

Theory of operation. An upgrade request is a call like any other until ``accept`` answers it with 101. From then on the
``WebSocket`` is the protocol of the transport, and the HTTP connection is done. wsproto parses the input: masks, fragments,
UTF-8, close codes. The output is built here, because a server's text frame is only a header of at most ten bytes and the data.

- **Limits.** A message has at most ``max_message_bytes`` bytes and ``message_seconds`` seconds from its first frame to its
  last. Messages wait in ``_messages``; above ``WAITING_BYTES`` reading pauses. Pongs are not sent to a client that does not
  read.
- **Deadlines.** There is one, as on an HTTP connection; the server checks it a few times a second. A silent client is pinged and
  then dropped. A client that does not read is dropped too.
- **Ends.** ``close`` sends a close frame and waits a moment for the client's. ``receive`` then raises ``WebSocketClosed``. When
  the server stops, an idle connection is closed with 1001 at once, any other one as soon as its owner calls ``settle``.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Final

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, generate_accept_token

from .call import DONE
from .http_call import ClientConnection, ConnectionServer

if TYPE_CHECKING:
    from .http_call import HTTPCall

PING_SECONDS: Final = 25.0
"""Seconds of silence after which a client is pinged. Proxies drop connections that are silent for a minute."""
PONG_SECONDS: Final = 20.0
"""Seconds within which the client must answer a ping, with a pong or anything else."""
CLOSE_SECONDS: Final = 2.0
"""Seconds that a client has to answer a close frame."""
WAITING_BYTES: Final = 65_536
"""Bytes of messages that may wait to be received. Above this, reading pauses, so that memory does not grow."""
VERSION: Final = "13"
_KEY_CHARS: Final = 24
"""A Sec-WebSocket-Key: 16 bytes in base64."""


class WebSocketClosed(Exception):
    """The connection has ended: the client closed it, it was lost, or the server closed it."""


class HandshakeError(Exception):
    """The upgrade request cannot be accepted."""


def check_handshake(call: HTTPCall) -> None:
    """Raises a HandshakeError unless the request is a valid WebSocket handshake (RFC 6455 section 4.2.1)."""
    fields = call.headers
    if call.head.version != "1.1":
        raise HandshakeError("a WebSocket needs HTTP/1.1")
    if fields.get("sec-websocket-version", "").strip() != VERSION:
        raise HandshakeError(f"sec-websocket-version must be {VERSION}")
    if len(fields.get("sec-websocket-key", "").strip()) != _KEY_CHARS:
        raise HandshakeError("sec-websocket-key must be 16 bytes in base64")
    if not call.can_switch:
        raise HandshakeError("nothing may follow a request for a WebSocket, neither a body nor another request")


class WebSocket(ClientConnection):
    """``max_message_bytes``: bytes of the largest message. ``on_disconnect`` is called once, when nothing more can be sent to
    the client."""

    ping_seconds = PING_SECONDS
    pong_seconds = PONG_SECONDS

    def __init__(
        self, server: ConnectionServer, transport: asyncio.Transport, max_message_bytes: int, message_seconds: float
    ) -> None:
        super().__init__(server)
        self.busy = False
        """Whether the owner works for the client. An idle connection may be closed to make room for another one."""
        self.on_disconnect: Callable[[], None] | None = None
        self._transport = transport
        self._max_message_bytes = max_message_bytes
        self._message_seconds = message_seconds
        self._frames = Connection(ConnectionType.SERVER)
        self._messages: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._partial = bytearray()
        self._partial_until = inf
        self._reading = True
        self._pinged = False
        self._going_away = False
        self._receiver: asyncio.Future[None] | None = None
        self._note_alive()

    # --- for the owner

    async def receive(self) -> bytes:
        """The next text message."""
        while not self._messages:
            if self.closing:
                raise WebSocketClosed
            self._receiver = self.server.loop.create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None
        message = self._messages.popleft()
        self._waiting_bytes -= len(message)
        if not self._reading and not self.closing and self._waiting_bytes <= WAITING_BYTES:
            self._reading = True
            self._transport.resume_reading()
        return message

    def send(self, *messages: bytes) -> Awaitable[None]:
        """Sends each as one text message. Awaiting it applies backpressure."""
        if not self.closing:
            self._transport.write(b"".join([_text_frame(message) for message in messages]))
        return self.drained() if self.paused else DONE

    def close(self, code: int, reason: str = "") -> None:
        """Sends a close frame. Nothing is sent after it."""
        if self.closing:
            return
        if self._frames.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
            self._transport.write(bytes(self._frames.send(CloseConnection(code=code, reason=reason or None))))
        self._stop()
        if self._frames.state is ConnectionState.CLOSED:
            self._transport.close()
        self.deadline = self.server.loop.time() + CLOSE_SECONDS

    def settle(self) -> None:
        """Called when the owner has no work for the client."""
        self.busy = False
        if self._going_away:
            self.close(CloseReason.GOING_AWAY, "the gateway is shutting down; connect again")

    # --- the transport

    def data_received(self, data: bytes) -> None:
        if self._frames.state not in (ConnectionState.OPEN, ConnectionState.LOCAL_CLOSING):
            return
        try:
            self._frames.receive_data(data)
            for event in self._frames.events():
                if self.closing:
                    if isinstance(event, CloseConnection):
                        self._transport.close()
                elif isinstance(event, TextMessage):
                    self._add(event)
                elif isinstance(event, Ping):
                    if not self.paused:
                        self._transport.write(bytes(self._frames.send(event.response())))
                elif isinstance(event, BytesMessage):
                    self.close(CloseReason.UNSUPPORTED_DATA, "only text messages are supported")
                elif isinstance(event, CloseConnection):
                    self.close(event.code, event.reason or "")
        except LocalProtocolError:
            self.abort()
        if not self.closing:
            self._note_alive()

    def _add(self, event: TextMessage) -> None:
        self._partial += event.data.encode()
        if len(self._partial) > self._max_message_bytes:
            limit = f"a message may have at most {self._max_message_bytes} bytes (server.max_body_bytes)"
            self.close(CloseReason.MESSAGE_TOO_BIG, limit)
        elif event.message_finished:
            self._messages.append(bytes(self._partial))
            self._waiting_bytes += len(self._partial)
            self._partial = bytearray()
            self._partial_until = inf
            if self._waiting_bytes > WAITING_BYTES and self._reading:
                self._reading = False
                self._transport.pause_reading()
            self._wake_receiver()
        elif self._partial_until == inf:
            self._partial_until = self.server.loop.time() + self._message_seconds

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self.server.connections.discard(self)
        self._stop()

    def resume_writing(self) -> None:
        self.paused = False
        self._wake_writers()
        if not self.closing:
            self._note_alive()

    # --- the server

    @property
    def reusable(self) -> bool:
        """Whether the connection may be closed to make room: its owner does no work for the client."""
        return not self.busy and not self.closing

    def expire(self) -> None:
        """Called when the deadline has passed."""
        if self.closing or self.paused or self._pinged:
            self.abort()
        elif self._partial_until <= self.server.loop.time():
            self.close(CloseReason.POLICY_VIOLATION, f"a message must come within {self._message_seconds:g} s")
        else:
            self._pinged = True
            self._transport.write(bytes(self._frames.send(Ping())))
            self.deadline = self.server.loop.time() + self.pong_seconds

    def shut_down(self) -> None:
        """Called when the server stops."""
        self._going_away = True
        if not self.busy:
            self.settle()

    def abort(self) -> None:
        self._stop()
        self._transport.abort()

    # --- internals

    def _note_alive(self) -> None:
        """Notes that the client is alive, and sets the deadline of the next ping or of a slow message."""
        self._pinged = False
        if not self.paused:
            self.deadline = min(self.server.loop.time() + self.ping_seconds, self._partial_until)

    def _stop(self) -> None:
        """Stops sending."""
        self.closing = True
        self._partial.clear()
        self._messages.clear()
        self._waiting_bytes = 0
        if not self._reading and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()  # to read the client's close frame and notice a disconnect
        self._wake_receiver()
        self._wake_writers()
        if self.on_disconnect is not None:
            on_disconnect, self.on_disconnect = self.on_disconnect, None
            on_disconnect()

    def _wake_receiver(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)


def _text_frame(data: bytes) -> bytes:
    """A whole text message as one frame (RFC 6455 section 5.2). Servers do not mask."""
    size = len(data)
    if size < 126:
        return b"\x81%c%b" % (size, data)
    if size < 65_536:
        return b"\x81\x7e%b%b" % (struct.pack("!H", size), data)
    return b"\x81\x7f%b%b" % (struct.pack("!Q", size), data)


def accept(call: HTTPCall, max_message_bytes: int, message_seconds: float, headers: Mapping[str, str]) -> WebSocket:
    """Answers an upgrade request with 101. From then on the connection is a WebSocket. ``headers`` are added to the answer."""
    check_handshake(call)
    token = generate_accept_token(call.headers["sec-websocket-key"].strip().encode("latin-1")).decode("ascii")
    fields = {"upgrade": "websocket", "connection": "Upgrade", "sec-websocket-accept": token, **headers}
    return call.switch(fields, lambda server, transport: WebSocket(server, transport, max_message_bytes, message_seconds))
