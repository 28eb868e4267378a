"""Supervises the model's process: one that died is restarted at the same address with the same key.

It runs between the gateway and the model, so that there is one supervisor for any number of workers. While the model is down it
answers requests with an error that says what happened and when to try again.
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
from typing import IO, Final

import msgspec

from . import LaunchParameters, LaunchReport, configure, launch, send_report

MODEL: Final = "streamglot.upstream.local"
FIRST_PAUSE: Final = 0.1
MAX_PAUSE: Final = 30.0
"""The longest pause between restarts, in seconds. A model that keeps dying is restarted less and less often."""
LONG_LIFE_SECONDS: Final = 60.0
"""Seconds. If a model ran for longer than this, its end counts as a new fault, not as a repetition of the previous one."""
RETRY_SECONDS: Final = 1.0
"""The minimum ``retry-after`` in seconds. The default model loads in less."""
PIECE_BYTES: Final = 2**16
CAN_SHARE_ADDRESS: Final = hasattr(socket, "SO_REUSEPORT")
"""Whether two processes can listen on one address on this system."""


def main() -> None:
    parameters = msgspec.json.decode(sys.stdin.buffer.readline(), type=LaunchParameters)
    supervisor = Supervisor(parameters)
    report = supervisor.listen() if parameters.lazy and CAN_SHARE_ADDRESS else supervisor.start()
    send_report(report)
    if not report.error:
        threading.Thread(target=supervisor.keep, daemon=True).start()
        sys.stdin.buffer.read()
    os._exit(0)  # the model ends too, because its standard input closes


class Supervisor:
    def __init__(self, parameters: LaunchParameters) -> None:
        self._parameters = parameters
        self.key = parameters.key
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = FIRST_PAUSE
        self._server: _FallbackServer | None = None
        self.why = ""
        self.step = "it is being started again"
        self.back_at = 0.0
        self.wanted = threading.Event()

    def listen(self) -> LaunchReport:
        """Opens the address without a model. ``keep`` loads it when ``wanted`` is set."""
        try:
            self._server = _FallbackServer(self, self._parameters.port)
        except OSError as error:
            return LaunchReport(error=str(error))
        self._parameters.port = self._server.server_address[1]
        self.why, self.step = "the local model is not loaded yet", "its first request loads it"
        return LaunchReport(self._parameters.port)

    def start(self) -> LaunchReport:
        with tempfile.TemporaryFile() as words:
            try:
                process = launch(MODEL, words)
            except OSError as error:  # lack of memory or processes may be temporary
                return LaunchReport(error=str(error))
            report = configure(process, self._parameters)
            if report.port:
                self._parameters.port, self._process = report.port, process
                return report
            process.kill()
            _end_process(process)
            return LaunchReport(error=report.error or _last_line(words))

    def keep(self) -> None:
        """Loads the model if only its address is open, then waits for its end and restarts it, forever. A fault of our own is
        logged and does not end the loop."""
        if self._process is None:
            with self._fallback_server():
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
        """Waits for the end of this process and starts another."""
        started = time.monotonic()
        ended = _exit_reason(process.wait())
        _end_process(process)
        self.why = f"the process of the local model {ended}"
        if time.monotonic() - started > LONG_LIFE_SECONDS:
            self._pause = FIRST_PAUSE
        _log("local_model_ended", how=ended, starts_again_in_seconds=self._pause)
        ended_at = time.monotonic()
        with self._fallback_server():
            self._again()
        _log("local_model_back", away_seconds=round(time.monotonic() - ended_at, 3))

    def _again(self) -> None:
        while True:
            self.back_at = time.monotonic() + self._pause
            time.sleep(self._pause)
            self._pause = min(MAX_PAUSE, self._pause * 2)
            report = self.start()
            if report.port:
                return
            self.why = f"{self.why.partition(';')[0]}; starting it again failed: {report.error}"
            _log("local_model_not_started", error=report.error, starts_again_in_seconds=self._pause)

    @contextmanager
    def _fallback_server(self) -> Iterator[None]:
        """Answers requests until the model does, where two processes can listen on one address."""
        server, self._server = self._server, None
        try:
            server = server or (_FallbackServer(self, self._parameters.port) if CAN_SHARE_ADDRESS else None)
        except OSError:  # another process listens there now; the model's own start reports it
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


class _FallbackServer(ThreadingHTTPServer):
    """Answers every request with an error that says that the model is down and when to try again."""

    allow_reuse_port = True

    def __init__(self, supervisor: Supervisor, port: int) -> None:
        self.supervisor = supervisor
        super().__init__(("127.0.0.1", port), _UnavailableHandler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # the base class would look up this machine's name in the network


class _UnavailableHandler(BaseHTTPRequestHandler):
    server: _FallbackServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        if self.headers.get("authorization") == f"Bearer {self.server.supervisor.key}":
            self.server.supervisor.wanted.set()
        left = int(self.headers.get("content-length") or 0)
        while left > 0 and (piece := self.rfile.read(min(left, PIECE_BYTES))):
            left -= len(piece)
        self.do_GET()

    def do_GET(self) -> None:
        supervisor = self.server.supervisor
        seconds = math.ceil(max(RETRY_SECONDS, supervisor.back_at - time.monotonic()))
        body = msgspec.json.encode(
            {
                "error": {
                    "code": 503,
                    "type": "unavailable_error",
                    "message": f"{supervisor.why}; {supervisor.step}, try again",
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
        """Does nothing: the gateway logs each request."""


def _exit_reason(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _last_line(words: IO[bytes]) -> str:
    words.seek(0)
    lines = words.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it wrote no output"


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and closes its pipes."""
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # unwritten bytes have no receiver
                pipe.close()


def _log(event: str, **more: object) -> None:
    """Writes one line of JSON, in the gateway's log format."""
    with suppress(OSError):  # a closed log must not end the supervision
        sys.stderr.write(msgspec.json.encode({"time": round(time.time(), 3), "event": event, **more}).decode() + "\n")
        sys.stderr.flush()


if __name__ == "__main__":
    main()
