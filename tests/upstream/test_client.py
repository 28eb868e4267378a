"""The upstream client against a raw server that sends exactly the bytes of a script."""

from __future__ import annotations

import asyncio
import gzip
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from streamglot.errors import ConfigError, StreamglotError, UpstreamError, UpstreamProtocolError, UpstreamTruncated
from streamglot.upstream import Timeouts, Upstream, UpstreamResponse
from streamglot.upstream.http import connection as connections
from streamglot.upstream.http.pool import ConnectionPool, parse_url
from waiting import WAIT_SECONDS, soon

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.0 200 OK\r\n\r\nhello"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN
PACKED = gzip.compress(b"hello")
GZIP = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(PACKED), PACKED)


class Server:
    """Answers each request with the next script, in pieces of ``cut`` bytes. Closes the connection on None, and after any script
    with ``hang_up``."""

    def __init__(self, *scripts: bytes | None, cut: int = 0, hang_up: bool = False) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.lines: list[asyncio.StreamWriter] = []
        self.written = 0
        self.closed = asyncio.Event()
        self._scripts = list(scripts)
        self._cut = cut
        self.hang_up = hang_up

    async def __aenter__(self) -> Server:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1/chat"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.lines.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                script = self._scripts.pop(0)
                if script is None:
                    break
                step = self._cut or len(script)
                for place in range(0, len(script), step):
                    writer.write(script[place : place + step])
                    self.written += step
                    await writer.drain()
                    await asyncio.sleep(0)
                if self.hang_up:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        self.closed.set()
        writer.close()


async def ask(
    client: ConnectionPool, server: Server, headers: dict[str, str] | None = None, body: bytes = b"{}", **more: Any
) -> UpstreamResponse:
    return await client.post(Upstream(name="one", **more), server.url, headers or {}, body)


async def whole(answer: UpstreamResponse) -> bytes:
    pieces = []
    while piece := await answer.read():
        pieces.append(piece)
    return b"".join(pieces)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await test()

    asyncio.run(limited())


async def refused(asking: Awaitable[object]) -> StreamglotError:
    with pytest.raises(StreamglotError) as caught:
        await asking
    return caught.value


@pytest.mark.parametrize("cut", [0, 1, 7])
@pytest.mark.parametrize(
    "script", [PLAIN, CHUNKED, UNTIL_CLOSE, CONTINUED, GZIP], ids=["length", "chunked", "close", "100", "gzip"]
)
def test_every_kind_of_body_is_read_in_any_pieces(script: bytes, cut: int) -> None:
    async def test() -> None:
        async with ConnectionPool() as client, Server(script, cut=cut, hang_up=script is UNTIL_CLOSE) as server:
            answer = await ask(client, server)
            assert answer.status == 200
            assert await whole(answer) == b"hello"
            assert await answer.read() == b""

    run(test)


def test_the_request_has_the_expected_bytes() -> None:
    async def test() -> None:
        async with ConnectionPool() as client, Server(PLAIN, PLAIN) as server:
            await ask(client, server, {"x-key": "täst"}, b'{"a":1}')
            head, _, body = server.requests[0].partition(b"\r\n\r\n")
            assert head.split(b"\r\n")[0] == b"POST /v1/chat HTTP/1.1"
            assert {b"accept: */*", b"content-length: 7", "x-key: täst".encode()} < set(head.split(b"\r\n"))
            assert body == b'{"a":1}'
            await ask(client, server, {"Accept": "text/plain"})
            assert b"*/*" not in server.requests[1]
            error = await refused(ask(client, server, {"x-key": "a\r\nb: c"}))
            assert isinstance(error, ConfigError)

    run(test)


def test_connections_are_reused_after_a_complete_answer() -> None:
    async def test() -> None:
        async with ConnectionPool() as client, Server(*[PLAIN, CHUNKED] * 5) as server:
            for _ in range(10):
                assert await whole(await ask(client, server)) == b"hello"
            assert server.connections == 1

    run(test)


def test_two_simultaneous_requests_use_two_connections() -> None:
    async def test() -> None:
        async with ConnectionPool() as client, Server(*[PLAIN] * 4) as server:
            for _ in range(2):
                answers = await asyncio.gather(ask(client, server), ask(client, server))
                assert [await whole(answer) for answer in answers] == [b"hello"] * 2
            assert server.connections == 2

    run(test)


@pytest.mark.parametrize(
    "script",
    [PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), PLAIN + b"HTTP/1.1 200 OK\r\n\r\n", PLAIN + b"more"],
    ids=["close", "a second answer", "rubbish"],
)
def test_connections_in_an_unclear_state_are_not_reused(script: bytes) -> None:
    async def test() -> None:
        async with ConnectionPool() as client, Server(script, PLAIN) as server:
            assert (await ask(client, server)).status == 200
            assert await whole(await ask(client, server)) == b"hello"
            assert server.connections == 2

    run(test)


def test_a_kept_connection_that_the_upstream_closed_is_replaced_at_once() -> None:
    """The server closes the connection at the moment in which the next request is sent."""

    async def test() -> None:
        for size in (2, 5 * 2**20):
            async with ConnectionPool() as client, Server(PLAIN, PLAIN, PLAIN) as server:
                assert await whole(await ask(client, server)) == b"hello"
                server.lines[0].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
                assert await whole(await ask(client, server, body=b"x" * size)) == b"hello"
                assert await whole(await ask(client, server)) == b"hello"
                assert server.connections == 2
                assert [len(request.partition(b"\r\n\r\n")[2]) for request in server.requests] == [2, size, 2]

    run(test)


def test_a_request_is_repeated_once_and_only_if_no_byte_arrived() -> None:
    async def test() -> None:
        async with ConnectionPool() as client, Server(PLAIN, None, PLAIN) as server:
            for _ in range(2):
                assert await whole(await ask(client, server, body=b"x")) == b"hello"
            assert (server.connections, len(server.requests)) == (2, 3)
        async with ConnectionPool() as client, Server(PLAIN, None, None, PLAIN) as server:
            assert await whole(await ask(client, server)) == b"hello"
            error = await refused(ask(client, server))
            assert isinstance(error, UpstreamTruncated)
            assert (server.connections, len(server.requests)) == (2, 3), "the second failure is reported"
        async with ConnectionPool() as client, Server(None, PLAIN) as server:
            await refused(ask(client, server))
            assert len(server.requests) == 1, "a new connection is not retried"
        async with ConnectionPool() as client, Server(PLAIN, PLAIN[:12], PLAIN) as server:
            assert await whole(await ask(client, server)) == b"hello"
            server.hang_up = True
            await refused(ask(client, server))
            assert len(server.requests) == 2, "it had begun to answer"

    run(test)


@pytest.mark.parametrize("script", [PLAIN[:-2], CHUNKED[:-5], CHUNKED[:-12], GZIP[:-9]], ids=["length", "last", "inside", "gzip"])
def test_a_truncated_answer_raises_after_its_bytes(script: bytes) -> None:
    async def test() -> None:
        async with ConnectionPool() as client, Server(script, hang_up=True) as server:
            answer = await ask(client, server)
            error = await refused(whole(answer))
            assert isinstance(error, UpstreamTruncated)
            assert "broke" in error.message

    run(test)


def test_a_missing_or_invalid_answer_is_an_error() -> None:
    async def test() -> None:
        async with (
            ConnectionPool() as client,
            Server(None, b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000) as server,
        ):
            error = await refused(ask(client, server))
            assert isinstance(error, UpstreamTruncated)
            assert "before an answer came" in error.message
            error = await refused(ask(client, server))
            assert isinstance(error, UpstreamProtocolError)
            assert "not HTTP" in error.message
            error = await refused(ask(client, server))
            assert isinstance(error, UpstreamProtocolError)
            assert "headers" in error.message

    run(test)


def test_a_broken_chunk_and_an_unknown_encoding() -> None:
    async def test() -> None:
        broken = CHUNKED.replace(b"2;x=y", b"zz")
        foreign = PLAIN.replace(b"Content-Type", b"Content-Encoding: br\r\nContent-Type")
        async with ConnectionPool() as client, Server(broken, foreign) as server:
            error = await refused(whole(await ask(client, server)))
            assert isinstance(error, UpstreamTruncated)
            error = await refused(ask(client, server))
            assert isinstance(error, UpstreamProtocolError)
            assert "'br'" in error.message

    run(test)


def test_an_unreachable_upstream_is_an_error() -> None:
    async def test() -> None:
        async with ConnectionPool() as client:
            upstream = Upstream(name="one", timeouts=Timeouts(connect=0.2))
            for url in ("http://127.0.0.1:1/v1", "http://nowhere.invalid/v1"):
                error = await refused(client.post(upstream, f"{url}?key=secret", {}, b""))
                assert isinstance(error, UpstreamError)
                assert error.code == "upstream_unreachable"
                assert "secret" not in error.message

    run(test)


def test_closing_the_response_closes_the_connection() -> None:
    async def test() -> None:
        async with ConnectionPool() as client, Server(CHUNKED[:-12]) as server:
            answer = await ask(client, server)
            assert await answer.read() == b"hel"
            answer.close()
            await server.closed.wait()

    run(test)


def test_cancelling_the_wait_for_headers_closes_the_connection() -> None:
    async def test() -> None:
        async with ConnectionPool() as client, Server(b"HTTP/1.1 200 OK\r\n") as server:
            task = asyncio.ensure_future(ask(client, server))
            await soon(lambda: server.requests)
            task.cancel()
            await server.closed.wait()

    run(test)


def test_a_slow_reader_stops_the_upstream() -> None:
    async def test() -> None:
        size = 50 * 2**20
        script = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size
        async with ConnectionPool() as client, Server(script, cut=2**16) as server:
            answer = await ask(client, server)
            before = -1
            while server.written != before:
                before = server.written
                await asyncio.sleep(0.3)
            assert server.written < 16 * 2**20, "the upstream was still read"
            first = len(await answer.read())
            assert first < 2**20
            assert first + len(await whole(answer)) == size

    run(test)


def test_drain_waits_for_the_end_and_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr(connections, "DRAIN_SECONDS", WAIT_SECONDS)
        async with ConnectionPool() as client, Server(CHUNKED, CHUNKED[:-5], cut=30) as server:
            answer = await ask(client, server)
            await answer.drain()
            answer = await ask(client, server)
            assert server.connections == 1
            monkeypatch.setattr(connections, "DRAIN_SECONDS", 0.1)
            await answer.drain()
            await server.closed.wait()

    run(test)


def test_bodies_are_read_in_random_pieces() -> None:
    async def test() -> None:
        chance = random.Random(7)
        async with ConnectionPool() as client:
            for _ in range(30):
                script = chance.choice([PLAIN, CHUNKED, CONTINUED, GZIP])
                async with Server(script, cut=chance.randint(1, len(script))) as server:
                    assert await whole(await ask(client, server)) == b"hello"

    run(test)


def test_urls_are_parsed() -> None:
    parsed = parse_url("https://example.com/v1/models/a b:go?alt=sse&key=1")
    assert (parsed.host, parsed.port, parsed.tls) == ("example.com", 443, True)
    assert parsed.start == "/v1/models/a%20b:go?alt=sse&key=1 HTTP/1.1\r\nhost: example.com\r\n"
    parsed = parse_url("http://[::1]:8000")
    assert (parsed.host, parsed.port, parsed.start) == ("::1", 8000, "/ HTTP/1.1\r\nhost: [::1]:8000\r\n")
    parsed = parse_url("https://us%40er:word@example.com/a%2Fb")
    assert (parsed.host, parsed.user) == ("example.com", "Basic dXNAZXI6d29yZA==")
    assert parsed.url == "https://example.com/a%2Fb"
    for url in ("ftp://example.com/", "http://user:secret@example.com:x/", "http:///v1", f"http://{'x' * 300}.com/", "http://[/"):
        with pytest.raises(UpstreamError) as refusal:
            parse_url(url)
        assert refusal.value.code == "upstream_unreachable"
        assert "secret" not in refusal.value.message
