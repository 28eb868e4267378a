"""A model on this machine: llama.cpp's own HTTP server on loopback, in a process of its own.

``LocalServer`` starts that process and ends it; ``local_upstream`` is the upstream that it makes. The second half of this
module, ``main``, is what the process runs, and the only place that knows the library, whose names change between releases.
The process ends when its standard input does: however this one dies, nothing is left behind.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ..errors import ConfigError, UpstreamError
from .settings import Timeouts, Upstream
from .weights import DEFAULT, chosen

NAME: Final = "local"
ALIAS: Final = "smollm2"
LIBRARY: Final = "xllamacpp"
PINNED: Final = "2026.10.11549"
"""The release that the names in ``main`` belong to."""
FORMAT: Final = "hermes"
"""The notation of calls in the template of the default model: the server reads them, and we read what it overlooked."""
TEMPLATE: Final = Path(__file__).with_name("local.jinja")
THREADS: Final = "STREAMGLOT_LOCAL_THREADS"
CONTEXT: Final = "STREAMGLOT_LOCAL_CONTEXT"
CONTEXT_TOKENS: Final = 8192
"""What the default model was trained on."""
ANSWER_TOKENS: Final = 1024
"""The longest answer where the request does not say: a small model that has lost its way would go on for minutes."""
SLOTS: Final = 2
"""Answers at once; more only wait for each other on a processor."""
CACHE_MEBIBYTES: Final = 256
"""Memory for prompts that come again; the library's own default is gigabytes."""
TEMPERATURE: Final = 0.2
TOP_P: Final = 0.9
"""What the makers of the default model advise, where the request does not say."""
REPEAT_PENALTY: Final = 1.04
"""Keeps it from saying one sentence for ever; with more it no longer calls tools."""
START_SECONDS: Final = 120.0
"""A large model on a slow disk; the default one takes less than a second."""
STOP_SECONDS: Final = 3.0


class Order(Struct):
    """What the process is told on its first line."""

    weights: str
    key: str
    threads: int
    context: int = CONTEXT_TOKENS
    template: str = ""


class Began(Struct):
    """What it says on its first line: where it listens, or why it does not."""

    address: str = ""
    error: str = ""


def missing(environment: Mapping[str, str] = os.environ) -> str:
    """What is not there to run a model, and how to get it; empty if nothing is."""
    if find_spec(LIBRARY) is None:
        return "the package that runs models is not installed: pip install 'streamglot[local]'"
    if chosen(environment) is None:
        return "there are no weights: streamglot local pull"
    return ""


class LocalServer:
    """The process. ``start`` may be called by anybody and any number of times; it waits until the model is loaded."""

    def __init__(self, weights: Path, environment: Mapping[str, str] = os.environ) -> None:
        self.weights = weights
        self.address = ""
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
        """Its number, while it runs."""
        return self._process.pid if self._process is not None and self.running else None

    def start(self) -> Upstream:
        with self._lock:
            if not self.running:
                self._launch()
        return self.upstream()

    def upstream(self) -> Upstream:
        return Upstream(
            name=NAME,
            base_url=f"{self.address}/v1",
            key=self.key,
            models={NAME: NAME, ALIAS: NAME},
            inband=FORMAT if self._is_default else "auto",
            timeouts=Timeouts(connect=2.0),
        )

    @property
    def _is_default(self) -> bool:
        return self.weights.stem == DEFAULT.name

    def stop(self) -> None:
        process = self._process
        if process is None or self._owner != os.getpid():
            return
        assert process.stdin is not None
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
        order = Order(
            str(self.weights),
            self.key,
            threads(self._environment),
            _number(self._environment, CONTEXT, CONTEXT_TOKENS),
            TEMPLATE.read_text() if self._is_default else "",
        )
        with tempfile.TemporaryFile() as words:
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                start_new_session=True,  # an interrupt at the terminal is for this process, which then ends that one
            )
            assert process.stdin is not None
            assert process.stdout is not None
            watch = threading.Timer(START_SECONDS, process.kill)
            watch.start()
            try:
                process.stdin.write(msgspec.json.encode(order) + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except (OSError, ValueError):  # it is gone, or ``stop`` was called meanwhile
                line = b""
            finally:
                watch.cancel()
            try:
                began = msgspec.json.decode(line, type=Began)
            except msgspec.DecodeError:
                words.seek(0)
                last = words.read().decode("utf-8", "replace").strip().splitlines()[-1:] or ["it said nothing"]
                began = Began(error=last[0])
        if began.error or not began.address:
            self.stop()
            raise UpstreamError(f"the local model {self.weights.name!r} could not be started: {began.error}", code="local_failed")
        self.address = began.address


def local_server(environment: Mapping[str, str] = os.environ) -> LocalServer | None:
    """The server for the weights that are there; None if there is nothing to run, or nothing to run it with."""
    weights = chosen(environment)
    return None if weights is None or find_spec(LIBRARY) is None else LocalServer(weights, environment)


@contextmanager
def local_upstream(environment: Mapping[str, str] = os.environ) -> Iterator[Upstream | None]:
    """The local model as an upstream while the block runs; None if there is none."""
    server = local_server(environment)
    if server is None:
        yield None
        return
    try:
        yield server.start()
    finally:
        server.stop()


def threads(environment: Mapping[str, str] = os.environ) -> int:
    """One processor is left to those who read the answer."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _number(environment, THREADS, max(1, there - 1))


def _number(environment: Mapping[str, str], name: str, usual: int) -> int:
    text = environment.get(name, "")
    if not text:
        return usual
    if not text.isdigit() or not int(text):
        raise ConfigError(f"{name} is {text!r}; a number above 0 is wanted")
    return int(text)


# --- the process


def main() -> None:
    """Loads the model, says where it listens, and waits for the end of standard input."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    try:
        began, server = Began(), _serve(order)
        began.address = server.listening_address  # type: ignore[attr-defined]
    except Exception as error:  # whatever it is, the other side has to hear of it
        began = Began(error=f"{type(error).__name__}: {error}")
    sys.stdout.buffer.write(msgspec.json.encode(began) + b"\n")
    sys.stdout.buffer.flush()
    if not began.error:
        sys.stdin.buffer.read()
    os._exit(0)  # at once: an answer that is being written is not wanted any more


def _serve(order: Order) -> object:
    import xllamacpp  # type: ignore[import-untyped, import-not-found, unused-ignore]

    parameters = xllamacpp.CommonParams()
    parameters.model.path = order.weights
    parameters.model_alias = [NAME]
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [order.key]
    parameters.n_ctx = order.context
    parameters.n_predict = ANSWER_TOKENS
    parameters.n_parallel = SLOTS
    parameters.kv_unified = True
    parameters.cache_ram_mib = CACHE_MEBIBYTES
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = order.threads
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = False
    parameters.ui = False
    parameters.use_jinja = True
    if order.template:
        parameters.chat_template = order.template
        parameters.sampling.temp, parameters.sampling.top_p = TEMPERATURE, TOP_P
        parameters.sampling.penalty_repeat = REPEAT_PENALTY
    parameters.offline = True
    parameters.verbosity = 1
    server: object = xllamacpp.Server(parameters)
    return server


if __name__ == "__main__":
    main()
