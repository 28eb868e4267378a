"""A client that holds the socket itself: it can send slowly, stop reading, and hang up."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from waiting import WAIT_SECONDS


class RawClient:
    def __init__(self, port: int, receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(WAIT_SECONDS)
        self.socket.connect(("127.0.0.1", port))

    def post(self, path: str, body: Mapping[str, Any] | bytes, headers: Mapping[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(data)}", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + data)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_until(self, mark: bytes) -> bytes:
        """The bytes up to this mark, or up to the end."""
        data = bytearray()
        looked = 0
        while data.find(mark, looked) < 0:
            looked = max(0, len(data) - len(mark))
            piece = self.socket.recv(2**18)
            if not piece:
                break
            data += piece
        return bytes(data)

    def read_all(self) -> bytes:
        """The bytes up to the end of the connection, which must end."""
        data = bytearray()
        try:
            while piece := self.socket.recv(2**18):
                data += piece
        except ConnectionResetError:
            pass
        return bytes(data)

    def hang_up(self, reset: bool = False) -> None:
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@contextmanager
def raw(port: int, receive_bytes: int | None = None) -> Iterator[RawClient]:
    client = RawClient(port, receive_bytes)
    try:
        yield client
    finally:
        client.socket.close()
