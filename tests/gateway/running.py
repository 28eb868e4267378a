"""A gateway on a real socket, in a thread of the test's own process."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct

from streamglot.config import Config, LoadedConfig, load
from streamglot.gateway.app import Gateway
from streamglot.gateway.handler import RequestHandler
from streamglot.gateway.http.server import Server
from streamglot.gateway.supervisor import listen, worker
from waiting import WAIT_SECONDS, until


class Answer(Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Running:
    """``lines`` is what the gateway logged."""

    def __init__(self, gateway: Gateway, server: Server, port: int, lines: list[Mapping[str, Any]]) -> None:
        self.gateway = gateway
        self.server = server
        self.port = port
        self.lines = lines

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, body: object = None, headers: Mapping[str, str] | None = None, method: str = "") -> Answer:
        """One request over a connection of its own, its answer read to the end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        try:
            data = body if isinstance(body, bytes) else None if body is None else msgspec.json.encode(body)
            kind = {"content-type": "application/json"} if data is not None else {}
            connection.request(method or ("GET" if data is None else "POST"), path, data, {**kind, **(headers or {})})
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def line(self, request_id: str) -> Mapping[str, Any]:
        """The line of the log about this request."""
        return self.log_line(lambda line: line.get("request_id") == request_id and "ending" in line)

    @property
    def handlers(self) -> list[RequestHandler]:
        """The requests that run."""
        return [one for one in list(self.gateway.requests.running) if isinstance(one, RequestHandler)]

    def log_line(self, what: Callable[[Mapping[str, Any]], object]) -> Mapping[str, Any]:
        until(lambda: any(map(what, self.lines)), lambda: f"no such line: {self.lines}")
        return next(filter(what, self.lines))


@contextmanager
def running(
    config: Mapping[str, Any] | None = None, path: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """A gateway with this configuration, or with the one in this file. It has a store, as an unconfigured one has: an empty
    database, unless the configuration names another or ``none``."""
    with TemporaryDirectory(prefix="streamglot-store-", ignore_cleanup_errors=True) as folder:
        yield from _running(config, path, {"STREAMGLOT_STORE__URL": f"sqlite:///{folder}/store.db", **(environment or {})})


def _running(config: Mapping[str, Any] | None, path: Path | None, environment: Mapping[str, str]) -> Iterator[Running]:
    if path is not None:
        loaded = load(path, environment)
    else:
        values = {**(config or {})}
        values["server"] = {"discover": False, **values.get("server", {})}
        values["store"] = {"url": environment["STREAMGLOT_STORE__URL"], **values.get("store", {})}
        loaded = LoadedConfig(msgspec.convert(values, Config))
        for name, upstream in loaded.config.upstreams.items():
            upstream.name = name
    for name, upstream in loaded.config.upstreams.items():
        assert name != upstream.dialect, f"call the upstream {name!r} as people do, see UPSTREAM_NAMES"
    lines: list[Mapping[str, Any]] = []
    gateway = Gateway(loaded, environment, lines.append)
    listener = listen("127.0.0.1", 0)
    server = worker(gateway)
    port = listener.getsockname()[1]
    thread = threading.Thread(target=server.run, args=[listener], daemon=True)
    thread.start()
    until(lambda: server.started, lambda: "the gateway did not start")
    try:
        yield Running(gateway, server, port, lines)
    finally:
        server.stop()
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive(), "the gateway did not stop"


@contextmanager
def blocked(server: Server) -> Iterator[None]:
    """The server's event loop does nothing, as if something took all its time."""
    begun, over = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        over.wait(WAIT_SECONDS)

    server.loop.call_soon_threadsafe(wait)
    assert begun.wait(WAIT_SECONDS)
    try:
        yield
    finally:
        over.set()
