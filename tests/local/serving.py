"""Runs ``streamglot serve`` as a user does, in its own process."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import warm

PROGRAM = str(Path(sys.executable).with_name("streamglot"))
WAIT_SECONDS = 60.0
"""Seconds to wait for a condition. A busy machine loads the model slowly."""
LISTENS = "streamglot listens on http://127.0.0.1:"


def awaited(what: Callable[[], Any], why: str) -> Any:
    until = time.monotonic() + WAIT_SECONDS
    while not (found := what()):
        assert time.monotonic() < until, why
        time.sleep(0.05)
    return found


class Serving:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        text = awaited(lambda: "\n" in (text := self.log_text()).partition(LISTENS)[2] and text, "it never listened")
        self.port = int(text.partition(LISTENS)[2].split()[0])

    def log_text(self) -> str:
        return self._log.read_text()

    def ask(self, **fields: object) -> tuple[int, bytes]:
        """Sends a chat request; status 0 while the gateway does not listen yet."""
        body = {"max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}], **fields}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()


def bare(folder: Path, **more: str) -> dict[str, str]:
    """This environment without API keys and configuration."""
    (folder / "streamglot.toml").write_text('[store]\nurl = "none"\n')
    mine = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY") and name != "HF_TOKEN"}
    return {**mine, "STREAMGLOT_CONFIG": str(folder / "streamglot.toml"), **more}


@contextmanager
def serving(folder: Path, *options: str, **more: str) -> Iterator[Serving]:
    log = folder / "said"
    with log.open("wb") as file:
        command = [PROGRAM, "serve", "--port", "0", *options]
        process = warm.Popen(command, stderr=file, env=bare(folder, **more), cwd=folder)
    try:
        yield Serving(process, log)
    finally:
        process.terminate()
        process.wait(WAIT_SECONDS)
