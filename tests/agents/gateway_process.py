"""``streamglot serve`` in front of one upstream, as a process of its own."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import warm
from agents.scripted import PATHS
from gateway.upstream import UPSTREAM_NAMES
from waiting import until

_LISTENS = re.compile(r"streamglot listens on http://127\.0\.0\.1:(\d+)\s")
_COMMAND = [sys.executable, "-c", "from streamglot.cli import main; main()", "serve"]
# With a store, like an unconfigured gateway: it restores the provider state that an agent drops.
_CONFIG = """\
[server]
discover = false
shutdown_seconds = 0.5
keep_alive_seconds = 600
[store]
url = "sqlite:///{folder}/store.db"
[upstreams.{name}]
dialect = "{dialect}"
base_url = "{url}{path}"
key = "sk-scripted-upstream"
attempts = 1
"""


@contextmanager
def gateway(folder: Path, dialect: str, upstream: str) -> Iterator[str]:
    """The address of a gateway whose one upstream serves every model."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "streamglot.toml"
    config.write_text(
        _CONFIG.format(name=UPSTREAM_NAMES[dialect], dialect=dialect, url=upstream, path=PATHS[dialect], folder=folder)
    )
    log = folder / "gateway.log"
    with log.open("wb") as sink:
        process = warm.Popen([*_COMMAND, "--config", str(config), "--port", "0"], stderr=sink, stdout=sink)
    try:
        until(
            lambda: _LISTENS.search(log.read_text()) or process.poll() is not None, lambda: f"it did not start: {log.read_text()}"
        )
        found = _LISTENS.search(log.read_text())
        assert found is not None, f"it ended: {log.read_text()}"
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        process.terminate()
        process.wait()
