"""A WebSocket client that holds the socket itself: it can send frames one by one, break rules, and hang up."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage

from waiting import WAIT_SECONDS

TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")


class WebSocketClient:
    """``status`` and ``head`` are the answer to the upgrade. ``pongs``: are pings answered?"""

    def __init__(self, port: int, path: str = "/v1/responses", headers: Mapping[str, str] | None = None, **changes: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)
        key = base64.b64encode(os.urandom(16)).decode()
        fields = {
            "host": f"127.0.0.1:{port}",
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": key,
            **{name.replace("_", "-"): value for name, value in changes.items()},
            **(headers or {}),
        }
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value), "", ""]
        self.socket.sendall("\r\n".join(lines).encode())
        self.pongs = True
        self.frames = Connection(ConnectionType.CLIENT)
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self.socket.recv(65_536)
            assert piece, f"it hung up: {data!r}"
            data += piece
        self.head, _, rest = data.partition(b"\r\n\r\n")
        self.status = int(self.head.split(b" ")[1])
        self._events: list[Event] = []
        self._partial = ""
        self.pings = 0
        if self.status == 101:
            self._took(rest)

    def send(self, message: object, **options: Any) -> None:
        text = message if isinstance(message, str) else msgspec.json.encode(message).decode()
        self.socket.sendall(self.frames.send(TextMessage(data=text, **options)))

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(self.frames.send(BytesMessage(data=data)))

    def create(self, **fields: Any) -> None:
        self.send({"type": "response.create", "model": "up/m", "input": "hi", **fields})

    def _took(self, data: bytes) -> None:
        self.frames.receive_data(data)
        for event in self.frames.events():
            if isinstance(event, Ping):
                self.pings += 1
                if self.pongs:
                    self.socket.sendall(self.frames.send(event.response()))
            else:
                self._events.append(event)

    def event(self) -> Event | None:
        """The next frame, a close frame included; None when the connection is gone."""
        while not self._events:
            try:
                data = self.socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._took(data)
        return self._events.pop(0)

    def message(self) -> dict[str, Any]:
        """The next message, which must be whole and text."""
        text = ""
        while True:
            event = self.event()
            assert isinstance(event, TextMessage), f"this is no text: {event!r}"
            text += event.data
            if event.message_finished:
                return dict(msgspec.json.decode(text))

    def response(self) -> list[dict[str, Any]]:
        """All messages up to the end of a response."""
        messages = [self.message()]
        while messages[-1]["type"] not in TERMINAL:
            messages.append(self.message())
        return messages

    def closed(self) -> int:
        """The code of the close frame, after whatever comes before it; 1006 where there was none."""
        while True:
            event = self.event()
            if event is None:
                return 1006
            if isinstance(event, CloseConnection):
                return int(event.code)


@contextmanager
def websocket(
    port: int, path: str = "/v1/responses", headers: Mapping[str, str] | None = None, **changes: str
) -> Iterator[WebSocketClient]:
    client = WebSocketClient(port, path, headers, **changes)
    try:
        yield client
    finally:
        client.socket.close()
