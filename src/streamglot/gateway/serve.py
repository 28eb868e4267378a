"""``streamglot serve``: one listening socket, one or more processes, signals."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import uvicorn

from ..errors import ConfigError
from .app import Gateway
from .config import Loaded

BACKLOG = 2048
HEADER_BYTES = 65_536
"""All headers of a request together: ten times what any client sends."""


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
    listener.set_inheritable(True)
    return listener


def serve(loaded: Loaded, listener: socket.socket | None = None) -> int:
    """Serves until it is told to stop. SIGHUP reads the configuration again, SIGTERM and SIGINT end it gracefully."""
    server = loaded.config.server
    Gateway(loaded)  # a bad configuration is refused before anything listens
    listener = listener or listen(server.host, server.port)
    if server.workers == 1:
        _work(loaded, listener)
        return 0
    return _supervise(loaded, listener, server.workers)


def _work(loaded: Loaded, listener: socket.socket) -> None:
    gateway = Gateway(loaded)
    seconds = loaded.config.server.shutdown_seconds
    config = uvicorn.Config(
        gateway,
        http="httptools",
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        lifespan="on",
        log_level="warning",
        access_log=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=HEADER_BYTES,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(seconds) + 5,
        ws="none",
    )
    worker = _Worker(config, gateway, seconds)
    worker.run(sockets=[listener])


class _Worker(uvicorn.Server):
    """The server, with a gateway that is told about the end before it comes."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, seconds: float) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._seconds = seconds

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._gateway.reload)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.stop(self._seconds)
        await super().shutdown(sockets)


def _supervise(loaded: Loaded, listener: socket.socket, workers: int) -> int:
    """Children share the socket. One that dies is replaced; signals are passed on to all."""
    children: set[int] = set()
    stopping = False

    def start() -> None:
        child = os.fork()
        if child == 0:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            _work(loaded, listener)
            os._exit(0)
        children.add(child)

    def pass_on(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = stopping or number != signal.SIGHUP
        for child in children:
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    for _ in range(workers):
        start()
    while children:
        try:
            child, _ = os.wait()
        except ChildProcessError:
            break
        except InterruptedError:
            continue
        children.discard(child)
        if not stopping:
            start()
    return 0
