"""A model on this machine: llama.cpp's own HTTP server on loopback, in a process of its own.

``LocalServer`` starts that process, ends it, and says which upstream it makes. Between this process and the
model's (``llama.py``) stands a third (``keeper.py``), which starts a model again that died.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from ..errors import ConfigError, UpstreamError
from .llama import NAME as NAME
from .llama import Order, launch, tell
from .settings import BreakerSettings, Timeouts, Upstream
from .weights import CHOICE, DEFAULT, chosen, sound, switched_off

ALIAS: Final = "smollm2"
LIBRARY: Final = "xllamacpp"
PINNED: Final = "2026.10.11549"
"""The release that the names in ``llama.py`` belong to."""
KEEPER: Final = "streamglot.upstream.supervisor"
FORMAT: Final = "hermes"
"""The notation of calls in the template of the default model: the server reads them, and we read what it overlooked."""
TEMPLATE: Final = Path(__file__).with_name("local.jinja")
THREADS: Final = "STREAMGLOT_LOCAL_THREADS"
CONTEXT: Final = "STREAMGLOT_LOCAL_CONTEXT"
CONTEXT_TOKENS: Final = 8192
"""What the default model was trained on."""
STOP_SECONDS: Final = 3.0
ATTEMPTS: Final = 6
"""With pauses that grow: while a model that died is loaded again, most requests only wait."""
REST: Final = BreakerSettings(failures=2 * ATTEMPTS, seconds=1.0)
"""It is looked after, and back before long: leaving it alone would only make it seem away for longer."""


def missing(environment: Mapping[str, str] = os.environ) -> str:
    """What is missing to run a model, and how to get it; empty if nothing is."""
    if switched_off(environment):
        return f"it is switched off by {CHOICE}"
    if find_spec(LIBRARY) is None:
        return "the package that runs models is not installed: pip install 'streamglot[local]'"
    if chosen(environment) is None:
        return "there are no weights: streamglot local pull"
    return ""


class LocalServer:
    """The process. ``start`` may be called from any thread and any number of times; it waits until the model is loaded, which
    then stays at the same address. ``log``: write a line on standard error when the model died, and when it is back. ``lazy``:
    ``start`` does not wait, and the model is loaded with the first request."""

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
        """The number of the keeper's process, while it runs."""
        return self._process.pid if self._process is not None and self.running else None

    def start(self) -> Upstream:
        with self._lock:
            if not self.running:
                self._launch()
        return self.upstream()

    def upstream(self) -> Upstream:
        return Upstream(
            name=NAME,
            base_url=f"http://127.0.0.1:{self._port}/v1",
            key=self.key,
            models={NAME: NAME, ALIAS: NAME},
            inband=FORMAT if self._is_default else "auto",
            timeouts=Timeouts(connect=2.0),
            attempts=ATTEMPTS,
            rest=REST,
        )

    @property
    def _is_default(self) -> bool:
        return self.weights.stem == DEFAULT.name

    def stop(self) -> None:
        process = self._process
        if process is None or self._owner != os.getpid():
            return
        assert process.stdin is not None
        with suppress(OSError):  # it is gone already
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
            context_tokens(self._environment),
            TEMPLATE.read_text() if self._is_default else "",
            self._port,
            self._lazy,
        )
        process = self._process = launch(KEEPER, None if self._log else subprocess.DEVNULL)
        began = tell(process, order)
        if not began.port:
            self.stop()
            why = began.error or "its process ended and said nothing"
            if self.weights.is_file() and not sound(self.weights):
                why = "its weights are damaged: streamglot local pull fetches the default ones again"
            raise UpstreamError(f"the local model {self.weights.name!r} could not be started: {why}", code="local_failed")
        self._port = began.port


def local_server(environment: Mapping[str, str] = os.environ, log: bool = False, *, lazy: bool = False) -> LocalServer | None:
    """The server for the weights that are there; None if there is nothing to run, or nothing to run it with."""
    weights = chosen(environment)
    return None if weights is None or find_spec(LIBRARY) is None else LocalServer(weights, environment, log, lazy=lazy)


def threads(environment: Mapping[str, str] = os.environ) -> int:
    """One processor is left to those who read the answer."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _number(environment, THREADS, max(1, there - 1))


def context_tokens(environment: Mapping[str, str]) -> int:
    """The context of the local model."""
    return _number(environment, CONTEXT, CONTEXT_TOKENS)


def _number(environment: Mapping[str, str], name: str, usual: int) -> int:
    text = environment.get(name, "")
    if not text:
        return usual
    if not text.isdigit() or not int(text):
        raise ConfigError(f"{name} is {text!r}; a number above 0 is wanted")
    return int(text)
