"""The process that keeps the model's process alive: one that died is started again, at the same address and with the same key.

It stands between the gateway and the model, so that however many workers there are, one watches. While the model is away it
answers in its place: what happened, and when to ask again.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import IO, Any, Final

import msgspec

from .llama import Began, Order, launch, say, tell

MODEL: Final = "streamglot.upstream.llama"
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 30.0
"""A model that dies again and again is started less and less often."""
LONG_LIFE: Final = 60.0
"""After so many seconds a death is no longer taken for the same fault as the one before."""
RETRY_SECONDS: Final = 1.0
"""What a client is told to wait, at least: the default model is loaded in less."""
PIECE_BYTES: Final = 2**16
CAN_STAND_IN: Final = hasattr(socket, "SO_REUSEPORT")
"""Does this system let two processes listen at one address?"""


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    keeper = Supervisor(order)
    began = keeper.listen() if order.lazy and CAN_STAND_IN else keeper.start()
    say(began)
    if not began.error:
        threading.Thread(target=keeper.keep, daemon=True).start()
        sys.stdin.buffer.read()
    os._exit(0)  # the model hears of it: its standard input ends here too


class Supervisor:
    def __init__(self, order: Order) -> None:
        self._order = order
        self.key = order.key
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = FIRST_PAUSE
        self._server: _StandIn | None = None
        self.why = ""
        self.step = "it is being started again"
        self.back_at = 0.0
        self.wanted = threading.Event()

    def listen(self) -> Began:
        """Opens the address without a model. ``keep`` loads it when ``wanted`` is set."""
        try:
            self._server = _StandIn(self, self._order.port)
        except OSError as error:
            return Began(error=str(error))
        self._order.port = self._server.server_address[1]
        self.why, self.step = "the local model is not loaded yet", "its first request loads it"
        return Began(self._order.port)

    def start(self) -> Began:
        with tempfile.TemporaryFile() as words:
            try:
                process = launch(MODEL, words)
            except OSError as error:  # no memory, no processes left: that may pass
                return Began(error=str(error))
            began = tell(process, self._order)
            if began.port:
                self._order.port, self._process = began.port, process
                return began
            process.kill()
            _leave(process)
            return Began(error=began.error or _last_line(words))

    def keep(self) -> None:
        """Loads the model if only its address is there. Waits for its end, and starts it again, for ever. A fault of our own is logged
        and ends nothing."""
        if self._process is None:
            with self._standing_in():
                self.wanted.wait()
                self._again()
            self.step, self._pause = "it is being started again", FIRST_PAUSE
        while self._process is not None:
            try:
                self._replace(self._process)
            except Exception as error:
                _log("task_failed", task="local model", message=f"{type(error).__name__}: {error}"[:300])
                time.sleep(FIRST_PAUSE)

    def _replace(self, process: subprocess.Popen[bytes]) -> None:
        """Waits for the end of this process, and starts another."""
        born = time.monotonic()
        ended = _how(process.wait())
        _leave(process)
        self.why = f"the process of the local model {ended}"
        if time.monotonic() - born > LONG_LIFE:
            self._pause = FIRST_PAUSE
        _log("local_model_ended", how=ended, starts_again_in_seconds=self._pause)
        gone = time.monotonic()
        with self._standing_in():
            self._again()
        _log("local_model_back", away_seconds=round(time.monotonic() - gone, 3))

    def _again(self) -> None:
        while True:
            self.back_at = time.monotonic() + self._pause
            time.sleep(self._pause)
            self._pause = min(LONGEST_PAUSE, self._pause * 2)
            began = self.start()
            if began.port:
                return
            self.why = f"{self.why.partition(';')[0]}; starting it again failed: {began.error}"
            _log("local_model_not_started", error=began.error, starts_again_in_seconds=self._pause)

    @contextmanager
    def _standing_in(self) -> Iterator[None]:
        """Where the system lets two listen at one address, requests are answered until the model does so itself."""
        server, self._server = self._server, None
        try:
            server = server or (_StandIn(self, self._order.port) if CAN_STAND_IN else None)
        except OSError:  # another process listens there now; the model's own start says so
            server = None
        if server is None:
            yield
            return
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()


class _StandIn(ThreadingHTTPServer):
    """Answers every request with an error: the model is not there, and when to try again."""

    allow_reuse_port = True

    def __init__(self, keeper: Supervisor, port: int) -> None:
        self.keeper = keeper
        super().__init__(("127.0.0.1", port), _Away)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # without asking the network for the name of this machine


class _Away(BaseHTTPRequestHandler):
    server: _StandIn
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        if self.headers.get("authorization") == f"Bearer {self.server.keeper.key}":
            self.server.keeper.wanted.set()
        left = int(self.headers.get("content-length") or 0)
        while left > 0 and (piece := self.rfile.read(min(left, PIECE_BYTES))):
            left -= len(piece)
        self.do_GET()

    def do_GET(self) -> None:
        keeper = self.server.keeper
        seconds = math.ceil(max(RETRY_SECONDS, keeper.back_at - time.monotonic()))
        body = msgspec.json.encode(
            {
                "error": {
                    "code": 503,
                    "type": "unavailable_error",
                    "message": f"{keeper.why}; {keeper.step}, ask once more",
                }
            }
        )
        self.send_response(503)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("retry-after", str(seconds))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The gateway has its own line about each request."""


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _last_line(words: IO[bytes]) -> str:
    words.seek(0)
    said = words.read().decode("utf-8", "replace").strip().splitlines()
    return said[-1] if said else "it said nothing"


def _leave(process: subprocess.Popen[bytes]) -> None:
    """No process and no pipe stays behind."""
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what was not yet written has nobody to go to
                pipe.close()


def _log(event: str, **more: Any) -> None:
    """One line of JSON, as the gateway writes them."""
    with suppress(OSError):  # nobody reads it: no reason to stop keeping
        sys.stderr.write(msgspec.json.encode({"time": round(time.time(), 3), "event": event, **more}).decode() + "\n")
        sys.stderr.flush()


if __name__ == "__main__":
    main()
