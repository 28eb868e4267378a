"""The targets of the attacks: an endpoint that is served directly, and one that is served as ASGI, on our own server; and the
same gateway on another ASGI server."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import uvicorn
from msgspec import Struct

from gateway.dialect_clients import body_of
from gateway.running import Running
from hostile.responses import Response, parse_responses
from streamglot.config import Config, LoadedConfig
from streamglot.gateway.app import Gateway
from streamglot.gateway.supervisor import listen
from waiting import WAIT_SECONDS, until

HOST = b"host: localhost\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HOST + b"connection: close\r\n\r\n"
"""A last request: if it is answered, everything before it was read to its end and not beyond."""


class Target(Struct):
    """A path that takes a POST, a body for it, and a piece of the answer to it."""

    path: str
    body: bytes
    says: bytes

    def line(self, version: str = "1.1") -> bytes:
        return f"POST {self.path} HTTP/{version}\r\n".encode()

    def request(self, *headers: bytes, body: bytes | None = None) -> bytes:
        """A request with a length."""
        body = self.body if body is None else body
        return self.line() + HOST + b"".join(headers) + b"content-length: %d\r\n\r\n" % len(body) + body

    def chunked(self, body: bytes, *headers: bytes) -> bytes:
        """A request with this body, which is framed already."""
        return self.line() + HOST + b"".join(headers) + b"transfer-encoding: chunked\r\n\r\n" + body


DIRECT = Target("/v1/chat/completions", msgspec.json.encode(body_of("openai_chat", "replay", False)), b"You said: q")
ASGI = Target("/v1/messages/count_tokens", msgspec.json.encode(body_of("anthropic", "replay", False)), b"input_tokens")
TARGETS = {"direct": DIRECT, "asgi": ASGI}


def chunks(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))


class Attacker:
    """A client with full control over its socket."""

    def __init__(self, port: int, server: Running | None = None) -> None:
        self._server = server
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = b""

    def send(self, *packets: bytes) -> None:
        """Sends each when the one before it has been read: they arrive in reads of their own."""
        for number, packet in enumerate(packets):
            if number:
                self.settle()
            try:
                self.socket.sendall(packet)
            except (BrokenPipeError, ConnectionResetError):
                return

    def settle(self) -> None:
        """Waits until the server's event loop has run a few times and has read all data."""
        if self._server is not None:
            for _ in range(4):
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._server.server.loop).result(WAIT_SECONDS)

    def read_to_end(self) -> bytes:
        """Everything up to the end of the connection, which must come."""
        try:
            while piece := self.socket.recv(2**18):
                self.data += piece
        except ConnectionResetError:
            pass
        return self.data

    def read_until(self, mark: bytes) -> bytes:
        while mark not in self.data:
            piece = self.socket.recv(2**18)
            assert piece, f"the connection ended before {mark!r}: {self.data[-500:]!r}"
            self.data += piece
        return self.data

    def responses(self, *methods: str) -> list[Response]:
        return parse_responses(self.read_to_end(), *methods)

    def flood(self, piece: bytes, most: int) -> int:
        """Sends this again and again until the server answers or hangs up; how many bytes that took."""
        sent = 0
        self.socket.setblocking(False)
        try:
            while sent < most:
                try:
                    sent += self.socket.send(piece)
                except BlockingIOError:
                    self.settle()
                except (BrokenPipeError, ConnectionResetError):
                    return sent
                try:
                    self.data += self.socket.recv(2**18)
                    return sent
                except BlockingIOError:
                    continue
                except ConnectionResetError:
                    return sent
        finally:
            self.socket.settimeout(WAIT_SECONDS)
        return sent

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def statuses(running: Running, *packets: bytes, methods: tuple[str, ...] = ()) -> list[int]:
    """Sends these packets and reads to the end of the connection: the statuses of all responses."""
    with Attacker(running.port, running) as attacker:
        attacker.send(*packets)
        return [response.status for response in attacker.responses(*methods)]


@contextmanager
def on_another_server(config: Mapping[str, Any]) -> Iterator[int]:
    """The same gateway, served by uvicorn with h11: its port."""
    with TemporaryDirectory(prefix="streamglot-store-", ignore_cleanup_errors=True) as folder:
        yield from _on_another_server({"store": {"url": f"sqlite:///{folder}/store.db"}, **config})


def _on_another_server(config: Mapping[str, Any]) -> Iterator[int]:
    values = {**config, "server": {"discover": False, **config.get("server", {})}}
    loaded = LoadedConfig(msgspec.convert(values, Config))
    for name, upstream in loaded.config.upstreams.items():
        upstream.name = name
    gateway = Gateway(loaded, {}, lambda line: None)
    server = uvicorn.Server(uvicorn.Config(gateway, http="h11", lifespan="on", log_level="critical"))
    listener = listen("127.0.0.1", 0)
    port: int = listener.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until(lambda: server.started, lambda: "the other server did not start")
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(WAIT_SECONDS)
