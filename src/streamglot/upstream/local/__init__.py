"""A model on this machine: llama.cpp's HTTP server on loopback, in its own process.

``LocalServer`` starts and ends that process and describes it as an upstream. ``supervisor`` is a process between this one and the
model's (``__main__``); it restarts a model that died. Each of the two gets its parameters as the first line of its input, answers
with one line of output, and ends when its standard input does. They therefore never outlive the process that started them, even
if that one is killed.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

import msgspec
from msgspec import Struct

from ...errors import ConfigError, UpstreamError
from ..settings import BreakerSettings, Timeouts, Upstream
from .weights import CHOICE, DEFAULT, chosen, is_valid, switched_off

NAME: Final = "local"
ANSWER_TOKENS: Final = 1024
"""The longest answer in tokens if the request sets no limit. A small model that repeats itself would continue for minutes."""
SLOTS: Final = 2
"""Answers in parallel. More would only compete for the processor."""
CACHE_MEBIBYTES: Final = 256
"""Memory for cached prompts in MiB; the library's default is gigabytes."""
TEMPERATURE: Final = 0.2
TOP_P: Final = 0.9
"""The settings that the default model's authors recommend, used if the request does not set them."""
REPEAT_PENALTY: Final = 1.04
"""Prevents endless repetition; with a higher value the default model no longer calls tools."""
START_SECONDS: Final = 120.0
"""How long a start may take, in seconds: a large model on a slow disk. The default model takes less than a second."""
ALIAS: Final = "smollm2"
LIBRARY: Final = "xllamacpp"
PINNED: Final = "2026.10.11549"
"""The release whose names the model's process uses."""
SUPERVISOR_MODULE: Final = "streamglot.upstream.local.supervisor"
FORMAT: Final = "hermes"
"""The tool-call format of the default model's template. The server parses most calls; the in-band parser finds those it
missed."""
TEMPLATE: Final = Path(__file__).with_name("local.jinja")
THREADS: Final = "STREAMGLOT_LOCAL_THREADS"
CONTEXT: Final = "STREAMGLOT_LOCAL_CONTEXT"
CONTEXT_TOKENS: Final = 8192
"""The context length of the default model, in tokens. It was trained with it, and llama.cpp gives a model no more."""
STOP_SECONDS: Final = 3.0
ATTEMPTS: Final = 6
"""Attempts with growing pauses. While a model restarts, most requests only wait."""
BREAKER: Final = BreakerSettings(failures=2 * ATTEMPTS, seconds=1.0)
"""The supervisor restarts the model soon, so a long pause would only delay requests."""


def missing(environment: Mapping[str, str] = os.environ) -> str:
    """What is missing to run a model, and how to install it; empty if nothing is missing."""
    if switched_off(environment):
        return f"it is switched off by {CHOICE}"
    if find_spec(LIBRARY) is None:
        return "the package that runs models is not installed: pip install 'streamglot[local]'"
    if chosen(environment) is None:
        return "there are no weights: streamglot local pull"
    return ""


class LocalServer:
    """The server process. ``start`` may be called from any thread and repeatedly; it waits until the model is loaded. The
    address stays the same after restarts. ``log``: write a line to standard error when the model dies and when it is back.
    ``lazy``: ``start`` does not wait, and the first request loads the model."""

    def __init__(
        self, weights: Path, environment: Mapping[str, str] = os.environ, log: bool = False, *, lazy: bool = False
    ) -> None:
        self.weights = weights
        self._port = 0
        self._log = log
        self._lazy = lazy
        self.key = secrets.token_urlsafe(24)
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def process(self) -> int | None:
        """The process id of the supervisor while it runs."""
        return self._process.pid if self._process is not None and self.running else None

    def start(self) -> Upstream:
        with self._lock:
            if not self.running:
                self._launch()
        return self.upstream()

    def upstream(self) -> Upstream:
        return Upstream(
            name=NAME,
            state=NAME,  # each start has another port
            base_url=f"http://127.0.0.1:{self._port}/v1",
            key=self.key,
            models={NAME: NAME, ALIAS: NAME},
            inband=FORMAT if self._is_default else "auto",
            timeouts=Timeouts(connect=2.0),
            attempts=ATTEMPTS,
            breaker=BREAKER,
        )

    @property
    def _is_default(self) -> bool:
        return self.weights.stem == DEFAULT.name

    def stop(self) -> None:
        process = self._process
        if process is None or self._owner != os.getpid():
            return
        assert process.stdin is not None
        with suppress(OSError):  # it has ended already
            process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._process = None

    def _launch(self) -> None:
        parameters = LaunchParameters(
            str(self.weights),
            self.key,
            threads(self._environment),
            context_tokens(self._environment),
            TEMPLATE.read_text() if self._is_default else "",
            self._port,
            self._lazy,
        )
        process = self._process = launch(SUPERVISOR_MODULE, None if self._log else subprocess.DEVNULL)
        report = configure(process, parameters)
        if not report.port:
            self.stop()
            why = report.error or "its process ended without a message"
            if self.weights.is_file() and not is_valid(self.weights):
                why = "its weights are damaged: streamglot local pull fetches the default ones again"
            raise UpstreamError(f"the local model {self.weights.name!r} could not be started: {why}", code="local_failed")
        self._port = report.port


def local_server(environment: Mapping[str, str] = os.environ, log: bool = False, *, lazy: bool = False) -> LocalServer | None:
    """The server for the installed weights; None if weights or the package are missing."""
    weights = chosen(environment)
    return None if weights is None or find_spec(LIBRARY) is None else LocalServer(weights, environment, log, lazy=lazy)


def threads(environment: Mapping[str, str] = os.environ) -> int:
    """The number of threads: one processor is left for the gateway and its clients."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _number(environment, THREADS, max(1, there - 1))


def runs_default(environment: Mapping[str, str]) -> bool:
    """Whether the local model is the default one. Weights that cannot be found are others."""
    try:
        weights = chosen(environment)
    except ConfigError:
        return False
    return weights is None or weights.stem == DEFAULT.name


def context_tokens(environment: Mapping[str, str]) -> int:
    """The context of the local model, in tokens."""
    wanted = _number(environment, CONTEXT, CONTEXT_TOKENS)
    return min(wanted, CONTEXT_TOKENS) if runs_default(environment) else wanted


def _number(environment: Mapping[str, str], name: str, usual: int) -> int:
    text = environment.get(name, "")
    if not text:
        return usual
    if not text.isdigit() or not int(text):
        raise ConfigError(f"{name} is {text!r}; it must be a number above 0")
    return int(text)


class LaunchParameters(Struct):
    """The parameters of the process, sent as its first input line. ``port`` 0 means any free port. ``lazy``: the model is loaded
    with the first request; until then only the supervisor listens."""

    weights: str
    key: str
    threads: int
    context: int
    template: str = ""
    port: int = 0
    lazy: bool = False


class LaunchReport(Struct):
    """The first output line of the process: where it listens, or why it does not."""

    port: int = 0
    error: str = ""


def launch(module: str, stderr: IO[bytes] | int | None) -> subprocess.Popen[bytes]:
    """Starts a process that waits for its parameters. It ignores an interrupt at the terminal, which is for the parent
    process."""
    return subprocess.Popen(
        [sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
    )


def configure(process: subprocess.Popen[bytes], settings: LaunchParameters) -> LaunchReport:
    """Sends the parameters and waits for the first output line. No port and no error: the process ended without a message."""
    assert process.stdin is not None
    assert process.stdout is not None
    watch = threading.Timer(START_SECONDS, process.kill)
    watch.start()
    try:
        process.stdin.write(msgspec.json.encode(settings) + b"\n")
        process.stdin.flush()
        return msgspec.json.decode(process.stdout.readline(), type=LaunchReport)
    except (OSError, ValueError):  # a broken or closed pipe, or an unexpected line
        return LaunchReport()
    finally:
        watch.cancel()


def send_report(report: LaunchReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()
