"""Gateways and workers as processes of their own, which can be killed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import warm
from waiting import WAIT_SECONDS, end, until

LISTENS = re.compile(r"streamglot listens on http://127\.0\.0\.1:(\d+)\s")
WORKS = re.compile(r"streamglot runs the batches")
COMMAND = [sys.executable, "-c", "from streamglot.cli import main; main()"]
CONFIG = """\
[server]
fallback_model = "none"
discover = false
shutdown_seconds = 0.5
log = false
{keys}
[store]
url = "{store}"
[batches]
{batches}
[upstreams.up]
dialect = "openai_chat"
base_url = "{upstream}/v1"
attempts = 1
pause = 0.01
models = ["m"]
breaker = {{ failures = 1000000 }}
timeouts = {{ connect = 120.0, first_byte = 120.0, idle = 120.0, total = 240.0 }}
"""


class Process:
    """One that runs. Its log goes to a file."""

    def __init__(self, folder: Path, config: str, ready: re.Pattern[str], *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "streamglot.toml"
        path.write_text(config)
        self.log = folder / f"log-{len(list(folder.glob('log-*')))}"
        kept = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_TOKEN"))}
        with self.log.open("wb") as sink:
            self.process = warm.Popen([*COMMAND, *arguments, "--config", str(path)], stderr=sink, env=kept)
        until(
            lambda: ready.search(self.log.read_text()) or self.process.poll() is not None,
            lambda: f"it did not start: {self.log.read_text()}",
        )
        found = ready.search(self.log.read_text())
        assert found is not None, f"it ended: {self.log.read_text()}"
        self.port = int(found[1]) if ready is LISTENS else 0
        if self.port:
            until(self._answers, lambda: f"it does not answer: {self.log.read_text()}")

    def _answers(self) -> bool:
        assert self.process.poll() is None, f"it ended: {self.log.read_text()}"
        try:
            return bool(self.ask("/health"))
        except OSError:
            return False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=WAIT_SECONDS) as answer:
            return json.load(answer)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_SECONDS)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(WAIT_SECONDS)


def config_of(upstream: str, store: str, keys: str = "", **batches: Any) -> str:
    lines = "\n".join(f"{name} = {json.dumps(value)}" for name, value in batches.items())
    return CONFIG.format(upstream=upstream, store=store, keys=keys, batches=lines)


@contextmanager
def gateway(folder: Path, config: str) -> Iterator[Process]:
    with _running(Process(folder, config, LISTENS, "serve", "--port", "0")) as process:
        yield process


@contextmanager
def worker(folder: Path, config: str, *options: str) -> Iterator[Process]:
    with _running(Process(folder, config, WORKS, "batch", "worker", *options)) as process:
        yield process


@contextmanager
def _running(process: Process) -> Iterator[Process]:
    try:
        yield process
    finally:
        end(process.process)


def input_lines(questions: Iterable[tuple[str, str]], model: str = "m") -> bytes:
    """A line for each custom_id and question."""
    return b"".join(
        json.dumps(
            {
                "custom_id": name,
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": model, "messages": [{"role": "user", "content": question}]},
            }
        ).encode()
        + b"\n"
        for name, question in questions
    )
