"""The CPU time of each part of a request and of a chunk, in the gateway's own process. ``python -m bench.parts``.

The gateway runs here, on one core; the mock upstream and the load generator have the other. One client asks, and waits for each
answer. The CPU time of the thread, which includes system calls, is recorded at the points below. The times of a part are the
medians. Recording a time costs about 0.5 µs, and a client that waits makes the event loop sleep after each step, so the sum is
larger than the figures of ``python -m bench.gateway``.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvloop

from streamglot.config import load
from streamglot.engine.answer import Pipeline, UpstreamStream
from streamglot.engine.attempts import UpstreamRequest
from streamglot.engine.exchange import Exchange
from streamglot.gateway.admission import Admission
from streamglot.gateway.app import Gateway
from streamglot.gateway.handler import RequestHandler
from streamglot.gateway.http.protocol import HTTPProtocol
from streamglot.gateway.http.server import Server
from streamglot.gateway.observe.memory import set_collector
from streamglot.gateway.response_writer import ResponseWriter
from streamglot.gateway.supervisor import listen
from streamglot.upstream.http.connection import UpstreamConnection
from streamglot.upstream.http.pool import ConnectionPool

from .candidates import gateway_config, mock
from .programs import BUILD, GATEWAY_CORE, LOAD_CORE, Missing, compile_tools, free_port

ENTER, LEAVE = "enter", "leave"
Point = tuple[type, str, str, str]
"""A class, its method, whether the point is at its begin or its end, and the part that begins there."""
REQUEST: list[Point] = [
    (HTTPProtocol, "data_received", ENTER, "parse the client's HTTP"),
    (Gateway, "respond", ENTER, "start the task of the request"),
    (RequestHandler, "_path", ENTER, "decode and check the request, admit it"),
    (Admission, "exchange", ENTER, "make the exchange, choose the upstream"),
    (UpstreamRequest, "_post", ENTER, "build the upstream's request"),
    (ConnectionPool, "post", ENTER, "take a connection, send, wait for the answer"),
    (UpstreamConnection, "data_received", ENTER, "parse the upstream's HTTP"),
    (UpstreamStream, "prime", ENTER, "read the answer into events"),
    (UpstreamStream, "prime", LEAVE, "collect the events into an answer"),
    (Exchange, "collect", LEAVE, "build and encode the client's answer"),
    (ResponseWriter, "reply", ENTER, "send it"),
    (RequestHandler, "_finish", ENTER, "record, measure and log"),
    (RequestHandler, "run", LEAVE, "wait for the next request"),
]
CHUNK: list[Point] = [
    (UpstreamConnection, "data_received", ENTER, "parse the upstream's HTTP, wake the stream"),
    (Pipeline, "feed", ENTER, "read the bytes into events"),
    (Pipeline, "feed", LEAVE, "observe the events, write them in the client's dialect"),
    (HTTPProtocol, "write", ENTER, "send them"),
    (HTTPProtocol, "write", LEAVE, "wait for the next chunk"),
]


class Marks:
    """Notes when the points are passed, while ``on``."""

    def __init__(self, points: list[Point]) -> None:
        self.on = False
        self.noted: list[tuple[str, int]] = []
        for kind, name, when, part in points:
            setattr(kind, name, self._marked(getattr(kind, name), when, part))

    def _note(self, part: str) -> None:
        if self.on:
            self.noted.append((part, time.thread_time_ns()))

    def _marked(self, method: Callable[..., Any], when: str, part: str) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(method):

            @functools.wraps(method)
            async def waits(*arguments: Any, **named: Any) -> Any:
                if when == ENTER:
                    self._note(part)
                try:
                    return await method(*arguments, **named)
                finally:
                    if when == LEAVE:
                        self._note(part)

            return waits

        @functools.wraps(method)
        def plain(*arguments: Any, **named: Any) -> Any:
            if when == ENTER:
                self._note(part)
            try:
                return method(*arguments, **named)
            finally:
                if when == LEAVE:
                    self._note(part)

        return plain

    def table(self, points: list[Point]) -> dict[str, float]:
        """Microseconds of each part. Only passes through all points in their order count."""
        order = [part for *_, part in points]
        times: dict[str, list[float]] = defaultdict(list)
        for begin in range(len(self.noted) - len(order)):
            passed = self.noted[begin : begin + len(order) + 1]
            if [part for part, _ in passed] == [*order, order[0]]:
                for (part, before), (_, after) in pairwise(passed):
                    times[part].append((after - before) / 1e3)
        return {part: statistics.median(times[part]) for part in order if times[part]}


def measure(points: list[Point], *options: object) -> dict[str, float]:
    """Runs a load generator with these options against a gateway in this process."""
    upstream, port = free_port(), free_port()
    program = mock(upstream)
    try:
        program.wait_for(upstream)
        marks = Marks(points)
        gateway = Gateway(load(Path(gateway_config(upstream)), {}), {}, log=lambda line: None)
        server = Server(gateway, 1.0)
        command = [str(BUILD / "load"), "-p", str(port), "-F", "chat", *map(str, options)]

        async def serve() -> None:
            set_collector()
            serving = asyncio.ensure_future(server.serve(listen("127.0.0.1", port)))
            for on in (False, True):  # the first run warms up
                marks.on = on
                clients = await asyncio.create_subprocess_exec(
                    *command, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, {LOAD_CORE})
                )
                await clients.wait()
            server.stop()
            await serving

        os.sched_setaffinity(0, {GATEWAY_CORE})
        uvloop.run(serve())
        return marks.table(points)
    finally:
        program.stop()


def main() -> None:
    try:
        compile_tools()
    except Missing as error:
        sys.exit(str(error))
    if len(sys.argv) == 1:  # each in a process of its own, because points stay in their classes
        for kind in ("request", "chunk"):
            subprocess.run([sys.executable, "-m", "bench.parts", kind], check=True)
        return
    if sys.argv[1] == "request":
        parts = measure(REQUEST, "-m", "ns", "-c", 1, "-T", 2)
    else:
        parts = measure(CHUNK, "-m", "st", "-c", 1, "-k", 1, "-n", 2_000, "-d", 1_000)
    print(f"| part of a {sys.argv[1]} | CPU µs |\n|---|---:|")
    for part, spent in parts.items():
        print(f"| {part} | {spent:.1f} |")
    print(f"| all | {sum(parts.values()):.1f} |\n")


if __name__ == "__main__":
    main()
