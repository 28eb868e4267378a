"""``streamglot serve`` with a store, as processes of their own that can be killed."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import warm
from gateway.worker_client import asked
from streamglot.store import Database, Filter, Queries, TurnDetail
from waiting import WAIT_SECONDS, end, until

LISTENS = re.compile(r"streamglot listens on http://127\.0\.0\.1:(\d+)\s")
PATIENT = "HTTPProtocol.head_seconds = HTTPProtocol.keep_alive_seconds = 600.0"
"""The tests hold connections without a request for as long as they need."""
PROGRAM = f"from streamglot.gateway.http.protocol import HTTPProtocol; {PATIENT}; from streamglot.cli import main; main()"
COMMAND = [sys.executable, "-c", PROGRAM, "serve"]
CONFIG = """\
[server]
discover = false
shutdown_seconds = 0.5
keep_alive_seconds = 600.0
[store]
url = "{store}"
content = {content}
[valkey]
url = "{valkey}"
[upstreams.up]
dialect = "openai_chat"
base_url = "{upstream}/v1"
attempts = 1
timeouts = {{ connect = 120.0, first_byte = 120.0, idle = 120.0, total = 240.0 }}
breaker = {{ failures = 1000000 }}
"""


class Served:
    """A gateway that runs. Its log goes to a file. ``more`` is added to its configuration."""

    def __init__(
        self, folder: Path, upstream: str, store: str, valkey: str, *options: str, more: str = "", content: bool = True
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "streamglot.toml"
        config.write_text(CONFIG.format(store=store, valkey=valkey, upstream=upstream, content=str(content).lower()) + more)
        self.log = folder / f"log-{len(list(folder.glob('log-*')))}"
        kept = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_TOKEN"))}
        with self.log.open("wb") as sink:
            command = [*COMMAND, "--config", str(config), "--port", "0", *options]
            self.process = warm.Popen(command, stderr=sink, env=kept)
        until(lambda: self._listens() or self.process.poll() is not None, lambda: f"it did not start: {self.log.read_text()}")
        listening = self._listens()
        assert listening, f"it ended: {self.log.read_text()}"
        self.port = int(listening[1])
        until(self._answers, lambda: f"it does not answer: {self.log.read_text()}")

    def _answers(self) -> bool:
        try:
            return self.ask("/health")[0] == 200
        except ConnectionError:
            assert self.process.poll() is None, f"it ended: {self.log.read_text()}"
            return False

    def _listens(self) -> re.Match[str] | None:
        return LISTENS.search(self.log.read_text())

    def ask(self, path: str, body: Any = None) -> tuple[int, bytes]:
        return asked(self.port, path, body)

    def workers(self) -> list[int]:
        """The processes that answer, where there are several."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(word) for word in children.split()]

    def events(self) -> list[dict[str, Any]]:
        """The log lines of the store."""
        lines = (line for line in self.log.read_text().splitlines() if line.startswith('{"event":"store_'))
        return [json.loads(line) for line in lines]

    def log_line(self, event: str) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            return [line for line in self.events() if line["event"] == event]

        until(found, lambda: f"{event} was not logged: {self.log.read_text()[-2000:]}")
        return found()[-1]

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        self.ask("/health")  # looks at the store
        page = self.ask("/metrics")[1].decode()
        lines = [line for line in page.splitlines() if re.match(rf"{name}(\{{|\s)", line)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_SECONDS)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(WAIT_SECONDS)


@contextmanager
def serving(
    folder: Path, upstream: str, store: str, *options: str, valkey: str = "", more: str = "", content: bool = True
) -> Iterator[Served]:
    served = Served(folder, upstream, store, valkey, *options, more=more, content=content)
    try:
        yield served
    finally:
        end(served.process)


async def stored_turns(url: str) -> dict[str, list[TurnDetail]]:
    """All turns by the request that they answer."""
    database = await Database.open(url)
    found: dict[str, list[TurnDetail]] = {}
    try:
        queries, before = Queries(database), ""
        while page := await queries.turns(Filter(limit=1000, before=before)):
            before = page[-1].id
            for one in page:
                turn = await queries.turn(one.id)
                assert turn is not None
                found.setdefault(one.request_id, []).append(turn)
    finally:
        await database.close()
    return found
