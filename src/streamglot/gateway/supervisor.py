"""``streamglot serve``: one listening socket, one or more processes, signals."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from ..config import PARENT, LoadedConfig
from ..counters import workers
from ..engine.content_log import ContentLog
from ..engine.upstreams import UpstreamPool
from ..errors import FOREIGN_ERRORS, ConfigError, StreamglotError
from ..tasks import woken_by_signals
from . import approvals as shared_approvals
from .app import Gateway
from .auth.authenticator import Authenticator, StoredCallers
from .http.server import Server, block_reload, block_signals, unblock_signals
from .lifecycle import load_again
from .observe import metrics
from .observe.log import Log

SHORTEST_LIFE: Final = 1.0
"""Seconds. A worker that ends sooner is replaced after a pause, because the next one would probably fail in the same way."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


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


def serve(loaded: LoadedConfig, listener: socket.socket | None = None) -> int:
    """Serves until a signal stops it. SIGHUP reads the configuration again; SIGTERM and SIGINT end it gracefully."""
    server = loaded.config.server
    listener = listener or listen(server.host, server.port)
    raise_file_limit()
    if server.workers <= 1:
        block_signals()
        worker(Gateway(loaded), int(os.environ.get(PARENT, "0"))).run(listener)
        return 0
    with tempfile.TemporaryDirectory(prefix="streamglot-") as folder:
        workers.share(folder)
        shared_approvals.share(folder)
        return _Supervisor(loaded, listener).run(server.workers)


def worker(gateway: Gateway, parent: int = 0) -> Server:
    """A server for this gateway. It stops when the process ``parent`` ends."""
    settings = gateway.services.server
    return Server(gateway, settings.shutdown_seconds, settings.max_connections, parent)


def raise_file_limit() -> None:
    """Raises the limit of open files to the system's maximum: each stream takes two files, and the usual limit is 1,024."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # macOS enforces a lower limit than it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Supervisor:
    """Starts worker processes that share the socket, replaces those that die and forwards signals to them."""

    def __init__(self, loaded: LoadedConfig, listener: socket.socket) -> None:
        self._loaded = loaded
        self._listener = listener
        self._children: dict[int, float] = {}
        self._stopping = False
        self._signals: list[int] = []
        self._handling = False
        self._process = os.getpid()

    def run(self, workers: int) -> int:
        for number in SIGNALS:
            signal.signal(number, self._pass_on)
        with woken_by_signals() as woken:
            for _ in range(workers):
                self._start()
            while self._children:
                child = ended_child(woken)
                if child not in self._children:
                    continue  # a child that another part of the process started
                started = self._children.pop(child)
                metrics.forget(child)
                if not self._stopping and time.monotonic() - started < SHORTEST_LIFE:
                    time.sleep(SHORTEST_LIFE)
                if not self._stopping:
                    self._start()
        block_reload()
        return 0

    def _start(self) -> None:
        block_signals()  # a child that cannot handle a signal yet would be ended by it
        if self._stopping:  # the signal came before it was blocked, and the listener is closed
            unblock_signals()
            return
        loaded = self._loaded
        child = os.fork()
        if child:
            self._children[child] = time.monotonic()
            # Another thread may have received a signal before the child was known.
            if self._stopping:
                self._send(child, signal.SIGTERM)
            elif self._loaded is not loaded:
                self._send(child, signal.SIGHUP)
            unblock_signals()
            return
        status = 1
        try:
            # a terminal signals the whole process group, and the supervisor forwards signals: children must not get them twice
            os.setpgrp()
            signal.set_wakeup_fd(-1)
            for number in (*SIGNALS, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            worker(Gateway(loaded), self._process).run(self._listener)  # run() also handles the signals that were blocked
            status = 0
        except StreamglotError as error:
            print(f"a worker could not start: {error.message}", file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _pass_on(self, number: int, _: object) -> None:
        """Handles signals one after the other. One that comes while another is handled waits, and its repetitions count once."""
        if number not in self._signals:
            self._signals.append(number)
        while self._signals and not self._handling:
            self._handling = True
            try:
                while self._signals:
                    self._handle(self._signals.pop(0))
            finally:
                self._handling = False

    def _handle(self, number: int) -> None:
        if number == signal.SIGHUP:
            if self._stopping:
                return
            self._reload()
        else:
            self._stopping = True
            self._listener.close()  # else clients could connect after the last worker stopped accepting, and would get no answer
        for child in list(self._children):
            self._send(child, number)

    def _send(self, child: int, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    def _reload(self) -> None:
        """Loads the new configuration for workers that start later, if it is valid. Running workers reload it themselves."""
        try:
            loaded, _ = load_again(self._loaded, os.environ)
            check_start(loaded, os.environ)
        except FOREIGN_ERRORS as error:
            message = error.message if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"[:300]
            Log()({"event": "reload_failed", "process": "supervisor", "message": message})
        else:
            self._loaded = loaded


def ended_child(woken: socket.socket) -> int:
    """Waits until a child has ended, and returns its process id. Meanwhile the handlers of signals run."""
    while True:
        child, _ = os.waitpid(-1, os.WNOHANG)
        if child:
            return child
        woken.recv(4096)


def check_start(loaded: LoadedConfig, environment: Mapping[str, str]) -> None:
    """Raises a ConfigError if a gateway could not start with this configuration. Does not open the store."""
    Authenticator(loaded.config.server, environment, StoredCallers())
    UpstreamPool(loaded, environment=environment, serving=True).configure(loaded)
    ContentLog(loaded.config.server.redact)
