"""Two turns of every recorded stream through real gateways: ``python -m conformance.turns CORPUS [--reader NAME] [--client NAME]``.

One process answers the first turns. It ends, and a fresh one answers every second turn, so nothing that only a process remembers
can help. Their configuration is that of users: upstreams with names that people give, and a store (and once ``store.url = "none"``).
The request that the upstream gets in the second turn must be as ``conformance.state`` demands, which does the same in memory.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import streamglot

from . import state
from .matrix import rows
from .state import CLIENTS, UPSTREAMS, Outcome, Trip, fault, take, trips

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, Seen, hostile, streamed
from waiting import WAIT_SECONDS, end, until

_PREFIX: Final = {"openai_chat": "/v1", "openai_responses": "/v1", "gemini": "/v1beta"}
_PATHS: Final = {
    "openai_chat": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "openai_responses": "/v1/responses",
    "ollama": "/api/chat",
}
_COMMAND: Final = [sys.executable, "-c", "from streamglot.cli import main; main()", "serve", "--port", "0"]
_LISTENS: Final = re.compile(r"streamglot listens on http://127\.0\.0\.1:(\d+)\s")
_SERVER: Final = """\
[server]
discover = false
shutdown_seconds = 5
keep_alive_seconds = 600
[store]
url = "{store}"
"""
_UPSTREAM: Final = """\
[upstreams.{name}{kind}]
dialect = "{dialect}"
base_url = "{url}"
key = "sk-of-nobody"
stream = "{stream}"
attempts = 1
breaker = {{ failures = 1000000 }}
"""


class Answer(NamedTuple):
    status: int
    dropped: list[str]
    body: bytes


class Process:
    """``streamglot serve``, and one connection to it."""

    def __init__(self, folder: Path, config: str) -> None:
        self._config = folder / "streamglot.toml"
        self._config.write_text(config)
        self._log = folder / f"log-{len(list(folder.glob('log-*')))}"
        with self._log.open("wb") as sink:
            self.process = subprocess.Popen([*_COMMAND, "--config", str(self._config)], stderr=sink, stdout=sink)
        until(lambda: self._listens() or self.process.poll() is not None, lambda: f"it did not start: {self._log.read_text()}")
        found = self._listens()
        assert found is not None, f"it ended: {self._log.read_text()}"
        self._connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=WAIT_SECONDS)
        until(self._connects, lambda: f"it does not answer: {self._log.read_text()}")

    def _connects(self) -> bool:
        try:
            self._connection.connect()
        except ConnectionError:
            assert self.process.poll() is None, f"it ended: {self._log.read_text()}"
            return False
        return True

    def _listens(self) -> re.Match[str] | None:
        return _LISTENS.search(self._log.read_text())

    def ask(self, client: str, model: str, body: Mapping[str, Any], streams: bool) -> Answer:
        if client == "gemini":
            path = f"/v1beta/models/{model}:{'streamGenerateContent?alt=sse' if streams else 'generateContent'}"
            sent = dict(body)
        else:
            path, sent = _PATHS[client], {"model": model, "stream": streams, **body}
        self._connection.request("POST", path, json.dumps(sent), {"content-type": "application/json"})
        answer = self._connection.getresponse()
        dropped = answer.getheader("x-streamglot-dropped") or ""
        return Answer(answer.status, [name.strip() for name in dropped.split(",") if name], answer.read())

    def stop(self) -> None:
        """An orderly end: what the store has to write is written."""
        self._connection.close()
        self.process.terminate()
        assert self.process.wait(WAIT_SECONDS) == 0, self._log.read_text()


@contextmanager
def serving(folder: Path, config: str) -> Iterator[Process]:
    served = Process(folder, config)
    try:
        yield served
        served.stop()
    finally:
        end(served.process)


def config_of(url: str, store: str) -> str:
    """Each upstream twice: as it is, and one that is always asked for a stream."""
    text = _SERVER.format(store=store)
    for dialect in UPSTREAMS:
        for kind, stream in (("", "same"), ("-streams", "always")):
            address = url + _PREFIX.get(dialect, "")
            text += _UPSTREAM.format(name=UPSTREAM_NAMES[dialect], kind=kind, dialect=dialect, url=address, stream=stream)
    return text


class Conversation(NamedTuple):
    """A first turn, answered. Each of ``trips`` is a second turn after it."""

    file: str
    dialect: str
    body: bytes
    model: str
    asked: dict[str, Any]
    answer: Answer
    trips: list[Trip]


def first_body(client: str, question: str) -> dict[str, Any]:
    if client == "gemini":
        return {"contents": [{"role": "user", "parts": [{"text": question}]}]}
    turns = [{"role": "user", "content": question}]
    if client == "openai_responses":
        return {"input": turns}
    return {"messages": turns, **({"max_tokens": 9} if client == "anthropic" else {})}


def second_body(trip: Trip, conversation: Conversation) -> dict[str, Any]:
    """The client's next request, with its own first question."""
    written = conversation.answer.body
    if trip.client == "ollama" and trip.streamed:
        written = b"".join(b"data: %b\n" % line for line in written.splitlines())
    body = state.next_request(trip, written if trip.streamed else b"", {} if trip.streamed else json.loads(written))
    for name, value in conversation.asked.items():
        if isinstance(value, list):
            body[name] = [*value, *body[name][1:]]
    return body


def run(streams: Iterable[tuple[str, str, bytes]], chosen: list[Trip], store: bool) -> Iterator[tuple[str, Trip, str]]:
    """Each second turn: its file, how it went, and what was wrong with it (empty if nothing was)."""
    with tempfile.TemporaryDirectory(prefix="streamglot-turns-") as folder, hostile() as upstream:
        path = Path(folder)
        config = config_of(upstream.url, f"sqlite:///{path / 'store.db'}" if store else "none")
        with serving(path, config) as first:
            begun = [one for row in streams for one in _begun(first, upstream, row, chosen, store)]
        with serving(path, config) as fresh:
            for conversation in begun:
                for trip in conversation.trips:
                    yield conversation.file, trip, _continued(fresh, upstream, conversation, trip)


def _begun(
    process: Process, upstream: HostileUpstream, row: tuple[str, str, bytes], chosen: list[Trip], store: bool
) -> Iterator[Conversation]:
    dialect, file, body = row
    if dialect not in UPSTREAMS or any(name in file for name in state.INCONSISTENT):
        return
    for client, streams in dict.fromkeys((trip.client, trip.streamed) for trip in chosen):
        if any(name in file and client == other for name, other in state.ACCEPTED):
            continue
        wanted = [trip for trip in chosen if (trip.client, trip.streamed) == (client, streams)]
        mine = [trip for trip in (one._replace(store=store) for one in wanted) if take(trip, dialect, body) is not None]
        if not mine:
            continue
        name = f"r{len(upstream.scripts)}"
        upstream.scripts[name] = streamed(body, media_type=streamglot.DIALECTS[dialect].media_type)
        model = f"{UPSTREAM_NAMES[dialect]}{'' if streams else '-streams'}/{name}"
        asked = first_body(client, f"What about {name}?")
        answer = process.ask(client, model, asked, streams)
        yield Conversation(file, dialect, body, model, asked, answer, mine)


def _continued(process: Process, upstream: HostileUpstream, conversation: Conversation, trip: Trip) -> str:
    if conversation.answer.status != 200:
        return f"the first turn has the status {conversation.answer.status}: {conversation.answer.body[:300]!r}"
    wanted = take(trip, conversation.dialect, conversation.body)
    assert wanted is not None
    before = len(upstream.seen)
    answer = process.ask(trip.client, conversation.model, second_body(trip, conversation), trip.streamed)
    if answer.status != 200 or len(upstream.seen) == before:
        return f"the second turn has the status {answer.status}: {answer.body[:300]!r}"
    seen: Seen = upstream.seen[-1]
    meant, sent = (_without_made_ids(value, conversation.body) for value in (wanted.wanted, state.model_turns(seen.body)))
    return fault(trip, conversation.dialect, Outcome(meant, sent, answer.dropped))


def _without_made_ids(value: Any, body: bytes) -> Any:
    """Without the ids that the upstream did not give. In a gateway they are made from the request."""
    if isinstance(value, dict):
        made = isinstance(value.get("id"), str) and value["id"].encode() not in body
        return {name: _without_made_ids(inner, body) for name, inner in value.items() if not (made and name == "id")}
    return [_without_made_ids(inner, body) for inner in value] if isinstance(value, list) else value


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("corpus", type=Path)
    options.add_argument("--reader", choices=UPSTREAMS)
    options.add_argument("--client", choices=CLIENTS)
    chosen = options.parse_args()
    taken, wrong = 0, 0
    every = [trip for trip in trips() if not trip.store and chosen.client in (None, trip.client)]
    for store in (True, False):
        for file, trip, found in run(rows(chosen.corpus, chosen.reader, damaged=False), every, store):
            taken += 1
            if found:
                wrong += 1
                print(f"{file}: {trip}: {found}")
    print(f"turns: {taken} second turns from a fresh process, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
