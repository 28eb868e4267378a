"""``streamglot serve``: one listening socket, one or more processes, signals."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from typing import Final

import uvicorn

from ..errors import ConfigError
from . import ledger, metrics
from .app import Gateway, check_start
from .config import Loaded, load
from .direct import DirectConnection
from .log import Log

BACKLOG: Final = 2048
SHORTEST_LIFE: Final = 1.0
"""A child that dies sooner is replaced after a pause: something is wrong that another start does not mend."""
GRACE_SECONDS: Final = 5.0
"""After the deadline, for the last words of the streams that were ended."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


GC_OBJECTS: Final = 2000
"""New objects between two collections. An exchange leaves a ring or two behind: far more than this lets memory grow."""


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
    listener = listener or listen(server.host, server.port)
    if server.workers <= 1:
        worker(Gateway(loaded)).run(sockets=[listener])
        return 0
    with tempfile.TemporaryDirectory(prefix="streamglot-") as folder:
        metrics.share(folder)
        ledger.share(folder)
        return _Supervisor(loaded, listener).run(server.workers)


def worker(gateway: Gateway, parent: int = 0) -> Worker:
    """A server for this gateway. ``parent``: the process whose end is ours too."""
    seconds = gateway.server.shutdown_seconds
    config = uvicorn.Config(
        gateway,
        http=DirectConnection,
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        lifespan="on",
        log_level="error",
        access_log=False,
        backlog=BACKLOG,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(seconds + GRACE_SECONDS),
        ws="none",
        proxy_headers=False,
    )
    return Worker(config, gateway, seconds, parent)


class Worker(uvicorn.Server):
    """The server, with a gateway that is told about the end before it comes."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, seconds: float, parent: int) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._seconds = seconds
        self._parent = parent

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what is there now stays: it need not be looked at again
        gc.set_threshold(GC_OBJECTS, 10, 10)
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGTERM) == self.handle_exit:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._gateway.reload)

    async def on_tick(self, counter: int) -> bool:
        orphaned = bool(self._parent) and os.getppid() != self._parent
        return await super().on_tick(counter) or orphaned

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.stop(self._seconds)
        await super().shutdown(sockets)


class _Supervisor:
    """Children share the socket. One that dies is replaced; signals are passed on to all."""

    def __init__(self, loaded: Loaded, listener: socket.socket) -> None:
        self._loaded = loaded
        self._listener = listener
        self._children: dict[int, float] = {}
        self._stopping = False
        self._process = os.getpid()

    def run(self, workers: int) -> int:
        for number in SIGNALS:
            signal.signal(number, self._pass_on)
        for _ in range(workers):
            self._start()
        while self._children:
            child, _ = os.wait()
            if child not in self._children:
                continue  # a process that somebody else started
            born = self._children.pop(child)
            metrics.forget(child)
            if not self._stopping and time.monotonic() - born < SHORTEST_LIFE:
                time.sleep(SHORTEST_LIFE)
            if not self._stopping:
                self._start()
        return 0

    def _start(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # a child forgets a signal that comes before it is on its feet
        child = os.fork()
        if child:
            self._children[child] = time.monotonic()
            if self._stopping:  # it was told so before there was this child
                os.kill(child, signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            return
        status = 1
        try:
            os.setpgrp()  # what a terminal sends to all of its group is passed on by us, and must not come twice
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            worker(Gateway(self._loaded), self._process).run(sockets=[self._listener])
            status = 0
        finally:
            os._exit(status)

    def _pass_on(self, number: int, _: object) -> None:
        if number == signal.SIGHUP:
            self._reload()
        else:
            self._stopping = True
        for child in list(self._children):
            with suppress(ProcessLookupError):
                os.kill(child, number)

    def _reload(self) -> None:
        """Workers that start later get the new configuration, if they could start with it. Those that run read it themselves."""
        try:
            loaded = load(self._loaded.path, overrides=self._loaded.overrides)
            check_start(loaded, os.environ)
        except Exception as error:
            message = error.message if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"[:300]
            Log()({"event": "reload_failed", "process": "supervisor", "message": message})
        else:
            self._loaded = loaded
