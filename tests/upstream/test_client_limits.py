"""Endless answers in every part of HTTP: they are cut off after a named number of bytes, and nothing of them stays in memory."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from streamglot.errors import StreamglotError, UpstreamError, UpstreamProtocolError, UpstreamTruncated
from streamglot.upstream import Upstream, UpstreamResponse
from streamglot.upstream.http import connection as connections
from streamglot.upstream.http import read_whole
from streamglot.upstream.http.connection import HEAD_BYTES
from streamglot.upstream.http.pool import ConnectionPool
from waiting import WAIT_SECONDS, soon

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
HELLO = b"5\r\nhello\r\n"
GENERAL = {"host": "example"}
"""A header that makes the pool use the general client."""


class Flood:
    """Answers one request with a start, then with pieces until the client closes the connection."""

    def __init__(self, start: bytes, piece: Callable[[int], bytes]) -> None:
        self.start, self.piece = start, piece
        self.sent = 0
        self.closed = asyncio.Event()

    async def __aenter__(self) -> Flood:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.start)
            number = 1
            while piece := self.piece(number):
                writer.write(piece)
                self.sent += len(piece)
                number += 1
                await writer.drain()
                await asyncio.sleep(0)
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        self.closed.set()
        writer.close()


async def whole(answer: UpstreamResponse) -> bytes:
    pieces = []
    while piece := await answer.read():
        pieces.append(piece)
    return b"".join(pieces)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await test()

    asyncio.run(limited())


SENT_BYTES = 8 * 2**20
"""Far more than the buffers between the two ends hold."""

FLOODS: dict[str, tuple[bytes, Callable[[int], bytes]]] = {
    "status line": (b"HTTP/1.1 200 ", lambda _: b"O" * 5000),
    "one header": (b"HTTP/1.1 200 OK\r\nx: ", lambda _: b"y" * 5000),
    "name of a header": (b"HTTP/1.1 200 OK\r\n", lambda _: b"n" * 5000),
    "many headers": (b"HTTP/1.1 200 OK\r\n", lambda number: b"x-%d: %b\r\n" % (number, b"y" * 1000)),
    "provisional answers": (b"", lambda _: b"HTTP/1.1 103 Early Hints\r\nlink: </%b>\r\n\r\n" % (b"x" * 1000)),
    "size of a chunk": (CHUNKED, lambda _: b"0" * 5000),
    "extension of a chunk": (CHUNKED + b"5;", lambda _: b"x" * 5000),
    "extension behind a body": (CHUNKED + HELLO + b"5;a=", lambda _: b"x" * 5000),
    "one trailer": (CHUNKED + HELLO + b"0\r\nx: ", lambda _: b"y" * 5000),
    "many trailers": (CHUNKED + HELLO + b"0\r\n", lambda number: b"x-%d: %b\r\n" % (number, b"y" * 1000)),
    "same trailers": (CHUNKED + HELLO + b"0\r\n", lambda _: b"x: %b\r\n" % (b"y" * 1000)),
    "rubbish": (b"", lambda _: b"\0" * 5000),
    "empty lines": (b"", lambda _: b"\r\n" * 2500),
}


@pytest.mark.parametrize("name", FLOODS)
def test_every_part_of_an_answer_is_limited(name: str) -> None:
    async def test() -> None:
        async with ConnectionPool() as client, Flood(*FLOODS[name]) as server:
            tracemalloc.start()
            try:
                with pytest.raises(UpstreamError):
                    await whole(await client.post(Upstream(name="one"), server.url, {}, b"{}"))
                await server.closed.wait()
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 5 * 2**20, "it was kept"

    run(test)


def test_a_whole_answer_is_limited() -> None:
    async def test() -> None:
        async with ConnectionPool() as client, Flood(CHUNKED, lambda _: HELLO) as server:
            answer = await client.post(Upstream(name="one"), server.url, {}, b"{}")
            with pytest.raises(UpstreamProtocolError, match="the answer is larger than 1000 bytes; ask for less"):
                await read_whole(answer, "the answer", 1_000, "ask for less")
            answer.close()
            await server.closed.wait()

    run(test)


@pytest.mark.parametrize("name", FLOODS)
def test_the_general_client_stores_nothing_and_obeys_the_deadline(name: str) -> None:
    """Its parser skips some of these endlessly without storing them; the caller's deadline ends that."""

    async def test() -> None:
        async with ConnectionPool() as client, Flood(*FLOODS[name]) as server:
            tracemalloc.start()
            task = asyncio.ensure_future(asked(client, server))
            try:
                await soon(lambda: server.sent > SENT_BYTES or task.done() or server.closed.is_set())
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            task.cancel()  # as a deadline does
            await asyncio.gather(task, return_exceptions=True)
            await server.closed.wait()
            assert peak < SENT_BYTES, "it was kept"

    async def asked(client: ConnectionPool, server: Flood) -> None:
        answer = await client.post(Upstream(name="one"), server.url, GENERAL, b"{}")
        try:
            await whole(answer)
        finally:
            answer.close()

    run(test)


def test_the_error_names_the_part_that_was_too_long() -> None:
    async def raised_error(name: str) -> StreamglotError:
        async with ConnectionPool() as client, Flood(*FLOODS[name]) as server:
            with pytest.raises(StreamglotError) as caught:
                await whole(await client.post(Upstream(name="one"), server.url, {}, b"{}"))
            await server.closed.wait()
            assert server.sent < 4 * 2**20 + 20 * HEAD_BYTES
            return caught.value

    async def test() -> None:
        error = await raised_error("many headers")
        assert isinstance(error, UpstreamProtocolError)
        assert f"the headers of the answer are longer than {HEAD_BYTES} bytes" in error.message
        error = await raised_error("many trailers")
        assert isinstance(error, UpstreamTruncated)
        assert f"trailers or chunk extensions of the answer are longer than {HEAD_BYTES} bytes" in error.message

    run(test)


def test_long_bodies_with_extensions_and_trailers_are_read() -> None:
    """Long but legal answers are read: each piece of framing is short, however many there are."""

    async def test() -> None:
        pieces = 20_000
        body = (
            CHUNKED + b"".join(b"1;name=%d\r\nx\r\n" % number for number in range(pieces)) + b"0\r\nx-sum: 1\r\nx-sum: 2\r\n\r\n"
        )
        async with ConnectionPool() as client, Flood(body, lambda _: b"") as server:
            answer = await client.post(Upstream(name="one"), server.url, {}, b"{}")
            assert await whole(answer) == b"x" * pieces
            assert "x-sum" not in answer.headers

    run(test)


def test_the_bytes_of_an_answer_on_the_wire_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WIRE_BYTES", 2**20)

    async def test() -> None:
        async with ConnectionPool() as client, Flood(CHUNKED, lambda _: HELLO * 1000) as server:
            answer = await client.post(Upstream(name="one"), server.url, {}, b"{}")
            with pytest.raises(UpstreamTruncated, match="on the wire"):
                await whole(answer)

    run(test)


def test_bytes_after_compressed_data_are_not_stored() -> None:
    async def test() -> None:
        start = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + gzip.compress(b"hello")
        async with ConnectionPool() as client, Flood(start, lambda _: b"x" * 2**16) as server:
            answer = await client.post(Upstream(name="one"), server.url, {}, b"{}")
            assert await whole(answer) == b"hello"
            assert await answer.read() == b""
            answer.close()
            await server.closed.wait()

    run(test)


@pytest.mark.parametrize("status", ["099", "000", "1", "2000", "abc", "-20"])
def test_an_invalid_status_is_an_error(status: str) -> None:
    async def test() -> None:
        start = b"HTTP/1.1 %b OK\r\ncontent-length: 2\r\n\r\nhi" % status.encode()
        async with ConnectionPool() as client, Flood(start, lambda _: b"") as server:
            with pytest.raises(UpstreamError):
                await client.post(Upstream(name="one"), server.url, {}, b"{}")

    run(test)


def test_the_sweep_of_idle_connections_survives_one_that_cannot_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[Any] = []

    async def test() -> None:
        plain = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
        async with ConnectionPool(lines.append) as client, Flood(plain, lambda _: b"") as server:
            for answer in await asyncio.gather(*(client.post(Upstream(name="one"), server.url, {}, b"{}") for _ in range(2))):
                assert await answer.read() == b""
            idle = next(iter(client._idle.values()))
            first, second = idle
            first.since = second.since = float("-inf")
            aborted = asyncio.Event()

            def broken() -> None:
                raise OSError("cannot")

            with monkeypatch.context() as patched:
                patched.setattr(first, "abort", broken)
                patched.setattr(second, "abort", aborted.set)
                client._sweep()
            assert aborted.is_set()
            assert not idle
            assert lines[0]["task"] == "idle connections"

    run(test)


def test_writes_after_a_failed_one_are_sent() -> None:
    from streamglot.upstream.http.writes import Writes

    sent: list[bytes] = []

    def broken(_: bytes) -> None:
        raise OSError("cannot")

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        writes = Writes()
        writes.crowded = True
        writes.add(broken, b"1")
        writes.add(sent.append, b"2")
        for _ in range(3):
            await asyncio.sleep(0)
        assert sent == [b"2"]

    run(test)
