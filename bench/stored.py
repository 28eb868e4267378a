"""What a request costs a gateway with nothing stored, and with up to a million turns. ``python -m bench.stored``; writes the section of
docs/benchmarks.md about the store.

The conversations that requests continue were stored by another process, so each of them is searched in the database: only ``history``
continues one that the process has in memory. The stored turns are filled in by bulk statements (``filled.py``).

    BENCH_TURNS=0,10000     the numbers of stored turns (0,10000,100000,1000000 by default: some minutes)
    BENCH_DATABASE=sqlite   one of the databases (both by default)
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it ships no types

from . import report
from .candidates import MODEL, mock, streamglot
from .filled import fill
from .gateway import measure
from .programs import ROOT, Missing, compile_tools, free_port, raise_file_limit, tree_cpu_seconds

SIZES = [int(size) for size in os.environ.get("BENCH_TURNS", "0,10000,100000,1000000").split(",")]
DATABASES = os.environ.get("BENCH_DATABASE", "sqlite,postgresql").split(",")
REQUESTS = 60
"""Requests of each kind in a round."""
ROUNDS = 5
"""Medians of the rounds are reported: other programs disturb some of them."""
SETTLE_SECONDS = 0.6
"""Seconds after the requests of a round until everything is written, because writing is part of the cost."""
MOST = 1.5
"""The cost of a request with a full store, at most, in terms of that with an empty one."""
KINDS = ("new", "history", "restart", "edited", "named", "response id")
SAYS = "mock:n=1,d=0,b=1,s=200"
"""What the mock upstream answers: one piece of text of 220 characters."""

Costs = dict[str, tuple[float, float]]
"""CPU and latency of a request in milliseconds, by kind."""


class Client:
    """One connection, as a client that waits for each answer."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def post(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:
        self._connection.request("POST", path, json.dumps(body), {"content-type": "application/json", **(headers or {})})
        answered = self._connection.getresponse()
        found: dict[str, Any] = json.loads(answered.read())
        assert answered.status == 200, found
        return found

    def chat(self, messages: list[dict[str, str]], headers: dict[str, str] | None = None) -> str:
        found = self.post("/v1/chat/completions", {"model": MODEL, "messages": messages}, headers)
        return str(found["choices"][0]["message"]["content"])

    def respond(self, text: str, previous: str = "") -> str:
        continued = {"previous_response_id": previous} if previous else {}
        return str(self.post("/v1/responses", {"model": MODEL, "input": text, **continued})["id"])


class Conversations:
    """Conversations of one answer, for the requests of one kind."""

    def __init__(self, client: Client, kind: str, mark: str) -> None:
        self.kind = kind
        self.begun: list[tuple[str, list[dict[str, str]]]] = []
        for number in range(0 if kind == "new" else REQUESTS):
            name, asked = f"{mark}-{number}", [{"role": "user", "content": f"{mark}: question {number}. {SAYS}"}]
            if kind == "response id":
                self.begun.append((client.respond(asked[0]["content"]), []))
                continue
            answer = client.chat(asked, self._headers(name))
            answer = answer.replace("@", " at ") if kind == "edited" else answer
            self.begun.append((name, [*asked, {"role": "assistant", "content": answer}]))
        self._mark = mark

    def _headers(self, name: str) -> dict[str, str]:
        return {"x-session-id": name} if self.kind == "named" else {}

    def requests(self, client: Client) -> Iterator[Callable[[], object]]:
        """The next request of each conversation."""
        following = {"role": "user", "content": f"and then? {SAYS}"}
        for number in range(REQUESTS):
            if self.kind == "new":
                asked = [{"role": "user", "content": f"{self._mark}: new {number}. {SAYS}"}]
                yield lambda asked=asked: client.chat(asked)  # type: ignore[misc]  # its own list
                continue
            name, messages = self.begun[number]
            if self.kind == "response id":
                yield lambda name=name: client.respond(following["content"], name)  # type: ignore[misc]
            else:
                headers = self._headers(name)
                yield lambda messages=messages, headers=headers: client.chat([*messages, following], headers)  # type: ignore[misc]


class Server:
    """Makes databases of one kind, and knows the CPU time of their server."""

    def __init__(self, kind: str, directory: str) -> None:
        self.name = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}[kind]
        self._directory, self._count = directory, 0
        self._server: Any = None
        if kind == "sqlite":
            return
        sys.path.insert(0, str(ROOT / "tests"))
        from store.servers import NoServer, Postgres

        try:
            self._server = Postgres()
        except NoServer as error:
            raise Missing(str(error)) from None

    def database(self) -> str:
        """The address of a new database."""
        self._count += 1
        return f"sqlite:///{self._directory}/{self._count}.db" if self._server is None else asyncio.run(self._server.database())

    def cpu_seconds(self) -> float:
        return tree_cpu_seconds(self._server.process()) if self._server is not None else 0.0

    def fill(self, url: str, turns: int) -> None:
        """Adds turns of the caller of this program, whose name the first turn has."""
        began, statement = time.monotonic(), "SELECT caller FROM turns LIMIT 1"
        if self._server is None:
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
                caller = connection.execute(statement).fetchone()[0]
        else:
            caller = asyncio.run(_of_postgresql(url, statement))
        fill(url, 0, turns, caller)
        if self._server is not None:  # it does both by itself within minutes: not meanwhile
            asyncio.run(_of_postgresql(url, "VACUUM ANALYZE"))
            asyncio.run(_of_postgresql(url, "CHECKPOINT"))
        print(f"{self.name}: filled in {turns:,} turns in {time.monotonic() - began:.0f} s", file=sys.stderr)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


async def _of_postgresql(url: str, statement: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


class Gateway:
    """A gateway with a store of its own."""

    def __init__(self, upstream_port: int, url: str) -> None:
        self._candidate = streamglot(upstream_port, "chat", url)
        self._candidate.program.wait_for(self._candidate.port)
        self.client = Client(self._candidate.port)

    def cpu_seconds(self) -> float:
        return self._candidate.program.cpu_seconds()

    def stop(self) -> None:
        self._candidate.program.stop()


def measured(kind: str, upstream_port: int) -> tuple[str, dict[int, Costs]]:
    """The costs with each number of stored turns, on this kind of database. The sizes take turns, so that other load on the machine
    affects all of them."""
    with tempfile.TemporaryDirectory() as directory:
        server = Server(kind, directory)
        try:
            urls = {size: server.database() for size in SIZES}
            stored: dict[int, list[dict[str, Conversations]]] = {}
            for size, url in urls.items():
                gateway = Gateway(upstream_port, url)
                gateway.client.chat([{"role": "user", "content": SAYS}])
                stored[size] = [
                    {kind: Conversations(gateway.client, kind, f"{number} {kind}") for kind in KINDS} for number in range(ROUNDS)
                ]
                time.sleep(SETTLE_SECONDS)
                gateway.stop()
                if size:
                    server.fill(url, size)
            found: dict[int, dict[str, list[tuple[float, float]]]] = {size: {kind: [] for kind in KINDS} for size in SIZES}
            gateways = {size: Gateway(upstream_port, url) for size, url in urls.items()}
            try:
                for gateway in gateways.values():
                    for warm in Conversations(gateway.client, "new", "warm").requests(gateway.client):
                        warm()
                for number in range(ROUNDS):
                    for kind in KINDS:
                        for size, gateway in gateways.items():
                            known = stored[size][number][kind]
                            if kind == "history":
                                known = Conversations(gateway.client, kind, f"{number} now")
                                time.sleep(SETTLE_SECONDS)
                            found[size][kind].append(_cost(known.requests(gateway.client), gateway, server))
            finally:
                for gateway in gateways.values():
                    gateway.stop()
        finally:
            server.close()
    costs = {size: {kind: _middle(some) for kind, some in kinds.items()} for size, kinds in found.items()}
    return server.name, costs


def _cost(requests: Iterator[Callable[[], object]], gateway: Gateway, server: Server) -> tuple[float, float]:
    times: list[float] = []
    before = gateway.cpu_seconds() + server.cpu_seconds()
    for request in requests:
        begin = time.perf_counter()
        request()
        times.append(time.perf_counter() - begin)
    time.sleep(SETTLE_SECONDS)
    cpu = gateway.cpu_seconds() + server.cpu_seconds() - before
    return cpu / len(times) * 1e3, statistics.median(times) * 1e3


def _middle(found: list[tuple[float, float]]) -> tuple[float, float]:
    cpu, latency = (statistics.median(values) for values in zip(*found, strict=True))
    return cpu, latency


def table(name: str, found: dict[int, Costs]) -> list[str]:
    """The costs on one database as a table."""
    sizes = list(found)
    heads = [f"{what}, {size:,} turns" for what in ("CPU ms", "latency ms") for size in sizes]
    lines = [
        f"### {name}",
        "",
        f"| request | {' | '.join([*heads, 'CPU', 'latency'])} |",
        "|---" + "|---:" * (len(heads) + 2) + "|",
    ]
    for kind in KINDS:
        columns = [[found[size][kind][part] for size in sizes] for part in (0, 1)]
        growth = [f"{values[-1] / values[0]:.2f}" for values in columns]
        lines.append(f"| {kind} | {' | '.join([f'{value:.2f}' for values in columns for value in values] + growth)} |")
    return [*lines, ""]


def beside(upstream_port: int, kinds: list[str]) -> list[str]:
    """The gateway with a new store, as it runs by default, beside one without a store."""
    names = {"requests_s_1": "requests/s, 1 connection", "requests_s_32": "32", "request_cpu": "CPU µs/request (32)"}
    names |= {"burst_cpu": "burst CPU µs/chunk", "paced_cpu": "paced CPU µs/chunk", "resident": "RSS with 1,000 streams MB"}
    lines = [f"| | {' | '.join(names.values())} |", "|---" + "|---:" * len(names) + "|"]
    with tempfile.TemporaryDirectory() as directory:
        for server in (None, *(Server(kind, directory) for kind in kinds)):
            gateway = streamglot(upstream_port, "chat", server.database() if server is not None else "none")
            try:
                gateway.program.wait_for(gateway.port)
                figures = measure(gateway)
            finally:
                gateway.program.stop()
                if server is not None:
                    server.close()
            what = f"with {server.name}" if server is not None else "without a store"
            lines.append(f"| {what} | {' | '.join(f'{figures[name]:,.1f}' for name in names)} |")
            print(lines[-1], flush=True)
    return [*lines, ""]


def main() -> int:
    try:
        compile_tools()
    except Missing as error:
        print(f"STOPPED: {error}", file=sys.stderr)
        return 1
    raise_file_limit()
    port = free_port()
    upstream = mock(port)
    lines: list[str] = []
    worst = 0.0
    try:
        for kind in DATABASES:
            name, found = measured(kind, port)
            lines += table(name, found)
            print("\n".join(table(name, found)), flush=True)
            ends = [found[size] for size in (SIZES[0], SIZES[-1])]
            worst = max(worst, *(ends[1][kind][part] / ends[0][kind][part] for kind in KINDS for part in (0, 1)))
        compared = beside(port, DATABASES)
    except Missing as error:
        print(f"STOPPED: {error}", file=sys.stderr)
        return 1
    finally:
        upstream.stop()
    print(f"the largest growth is {worst:.2f}; {'within' if worst <= MOST else 'ABOVE'} the line of {MOST}")
    if SIZES[-1] >= 1_000_000:
        report.write_store(compared, lines, REQUESTS, ROUNDS)
    return 0 if worst <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
