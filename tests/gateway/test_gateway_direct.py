"""Requests over real connections, in every way in which clients send them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest
import uvicorn

from gateway.conftest import upstreams_at
from gateway.dialect_clients import body_of
from gateway.raw import raw
from gateway.running import Running, blocked, running
from gateway.scenarios import PLAIN, text_chunk
from gateway.upstream import HostileUpstream, Until, head, sse, streamed
from streamglot.config import Config, LoadedConfig
from streamglot.gateway.app import Gateway
from streamglot.gateway.http.protocol import HTTPProtocol
from streamglot.gateway.observe.log import Log
from streamglot.gateway.supervisor import listen
from waiting import WAIT_SECONDS, until

CHAT = "/v1/chat/completions"
BODY = msgspec.json.encode(body_of("openai_chat", "work/direct", False))
HEADERS = b"host: localhost\r\ncontent-length: %d\r\n" % len(BODY)


@pytest.fixture(autouse=True)
def scripted(upstream: HostileUpstream) -> None:
    upstream.scripts["direct"] = streamed(PLAIN)


def test_a_connection_serves_many_requests(gateway: Running) -> None:
    with raw(gateway.port) as one:
        for _ in range(5):
            one.send(b"POST /v1/chat/completions HTTP/1.1\r\n" + HEADERS + b"\r\n" + BODY)
            answer = one.read_until(b"Hello world")
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answer.lower().count(b"content-length") == 1


def test_a_chunked_body_is_read(gateway: Running) -> None:
    with raw(gateway.port) as one:
        one.send(b"POST /v1/chat/completions HTTP/1.1\r\n" + HEADERS + b"\r\n")
        for byte in BODY:
            one.send(bytes([byte]))
        assert b"Hello world" in one.read_until(b"Hello world")


def test_pipelined_requests_are_answered(gateway: Running) -> None:
    """All but the first wait, because another request is being answered."""
    request = b"POST /v1/chat/completions HTTP/1.1\r\n" + HEADERS
    with raw(gateway.port) as one:
        one.send((request + b"\r\n" + BODY) * 2 + request + b"connection: close\r\n\r\n" + BODY)
        answer = one.read_all()
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 3
    assert answer.count(b"Hello world") == 3


def test_expect_continue_is_answered(gateway: Running) -> None:
    with raw(gateway.port) as one:
        one.send(b"POST /v1/chat/completions HTTP/1.1\r\nexpect: 100-continue\r\n" + HEADERS + b"\r\n")
        assert one.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        one.send(BODY)
        assert b"Hello world" in one.read_until(b"Hello world")


@pytest.mark.parametrize("line", [b"HTTP/1.0\r\n", b"HTTP/1.1\r\nconnection: close\r\n"])
def test_a_connection_closes_after_one_request_if_the_client_asks(gateway: Running, line: bytes) -> None:
    with raw(gateway.port) as one:
        one.send(b"POST /v1/chat/completions " + line + HEADERS + b"\r\n" + BODY)
        answer = one.read_all()
    assert b"connection: close" in answer
    assert b"Hello world" in answer


def test_an_idle_connection_is_closed(upstream: HostileUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"upstreams": {"work": {"base_url": f"{upstream.url}/v1"}}}
    with running(config) as gateway, raw(gateway.port) as one:
        for seconds in (WAIT_SECONDS, 0.1):
            monkeypatch.setattr(HTTPProtocol, "keep_alive_seconds", seconds)
            one.send(b"POST /v1/chat/completions HTTP/1.1\r\n" + HEADERS + b"\r\n" + BODY)
            assert b"Hello world" in one.read_until(b"Hello world")
            until(lambda: all(connection.reusable for connection in list(gateway.server.connections)))
        while one.socket.recv(1000):  # the rest of the answer, then the end
            pass


def test_an_invalid_header_name_is_refused(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["named"] = streamed(PLAIN)
    body = body_of("anthropic", "work/named", False)
    body["odd\r\nx-evil: 1"] = 1
    answer = gateway.ask("/v1/messages", body)
    assert answer.status == 200
    assert "x-evil" not in answer.headers
    assert answer.headers["x-streamglot-dropped"] == "odd??x-evil: 1"


@contextmanager
def on_another_server(upstream: HostileUpstream, store: Path) -> Iterator[int]:
    values = {
        "server": {"discover": False},
        "store": {"url": f"sqlite:///{store}"},
        "upstreams": {"work": {"base_url": f"{upstream.url}/v1"}},
    }
    loaded = LoadedConfig(msgspec.convert(values, Config))
    for name, one in loaded.config.upstreams.items():
        one.name = name
    lines: list[object] = []
    server = uvicorn.Server(uvicorn.Config(Gateway(loaded, {}, lines.append), http="h11", lifespan="on", log_level="error"))
    listener = listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        assert server.started
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def test_other_asgi_servers_serve_the_gateway(upstream: HostileUpstream, tmp_path: Path) -> None:
    with on_another_server(upstream, tmp_path / "store.db") as port:
        for stream in (False, True):
            with raw(port) as one:
                one.post(CHAT, body_of("openai_chat", "work/direct", stream), {"connection": "close"})
                answer = one.read_all()
            assert answer.startswith(b"HTTP/1.1 200")
            assert (b"[DONE]" in answer) == stream
            assert b"world" in answer


def test_log_lines_are_written_in_batches_and_none_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log()
    log({"line": 1})
    assert capsys.readouterr().err == '{"line":1}\n', "at once where no loop runs"

    async def some() -> None:
        log({"line": 2})
        log({"line": 3})
        assert capsys.readouterr().err == ""
        log.close()
        assert capsys.readouterr().err == '{"line":2}\n{"line":3}\n'
        log({"line": 4})
        assert capsys.readouterr().err == '{"line":4}\n', "after its end at once"

    asyncio.run(some())


def test_a_log_line_does_not_wait_for_another(capsys: pytest.CaptureFixture[str]) -> None:
    async def one() -> str:
        Log()({"line": 1})
        output = ""
        while not output:
            await asyncio.sleep(0.005)
            output = capsys.readouterr().err
        return output

    assert asyncio.run(asyncio.wait_for(one(), 20)) == '{"line":1}\n'


EQUIVALENT_REQUESTS = {
    "origin": (b"POST /v1/chat/completions HTTP/1.1\r\n", b"origin: http://localhost:3000\r\n"),
    "http 1.0": (b"POST /v1/chat/completions HTTP/1.0\r\n", b""),
    "expect": (b"POST /v1/chat/completions HTTP/1.1\r\n", b"expect: 100-continue\r\n"),
    "percent": (b"POST /v1/chat/completions?a=%20 HTTP/1.1\r\n", b""),
}


@pytest.mark.parametrize("way", EQUIVALENT_REQUESTS)
def test_the_time_and_the_size_of_headers_are_not_those_of_what_follows(
    upstream: HostileUpstream, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through ASGI as well: a body that is larger than headers may be, and an answer that takes longer than they may."""
    monkeypatch.setattr(HTTPProtocol, "head_seconds", 0.5)
    upstream.scripts["long"] = [
        head(),
        sse(text_chunk("Hello")),
        Until(go_on := threading.Event()),
        sse(text_chunk(" world"), "[DONE]"),
    ]
    body = body_of("openai_chat", "work/long")
    body["messages"][0]["content"] = "x" * 300_000
    data = msgspec.json.encode(body)
    line, more = EQUIVALENT_REQUESTS[way]
    with running({"upstreams": upstreams_at(upstream.url)}) as gateway, ExitStack() as opened:
        with blocked(gateway.server):  # the headers are there when the connection is accepted
            one = opened.enter_context(raw(gateway.port))
            one.send(line + b"host: localhost\r\ncontent-length: %d\r\n" % len(data) + more + b"\r\n")
        for begin in range(0, len(data), 50_000):
            one.send(data[begin : begin + 50_000])
        came = one.read_until(b"Hello")
        threading.Timer(1.5, go_on.set).start()
        assert b"200 OK" in came
        assert b" world" in one.read_until(b"[DONE]")
