"""A process that stands still, because the machine gives it no CPU or pauses as a whole: nobody else was slow."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable

import pytest

from gateway.conftest import LONG_TIMEOUTS, upstreams_at
from gateway.dialect_clients import body_of
from gateway.raw import raw
from gateway.running import Running, running
from gateway.scenarios import DONE, END, text_chunk
from gateway.upstream import Until, hostile, sse, streamed
from streamglot.config import Config, LoadedConfig
from streamglot.engine.upstreams import LATE_SECONDS, TICK_SECONDS, UpstreamPool
from streamglot.gateway import response_writer
from streamglot.gateway.http.protocol import HTTPProtocol
from waiting import WAIT_SECONDS, until

LIMIT = 0.5
STALL = 2 * LATE_SECONDS
"""Seconds. They pass while the process stands still, and are the subject of these tests."""


Stall = Callable[[Running, Callable[[], None]], None]


@pytest.fixture
def stall(monkeypatch: pytest.MonkeyPatch) -> Stall:
    """Stops a gateway for ``STALL`` seconds, and does ``what`` meanwhile. It stands still while it reads from another connection:
    what arrives now is not among the sockets that it found ready, and its timers come before it looks again."""
    begun, over = threading.Event(), threading.Event()
    receive = HTTPProtocol.data_received

    def data_received(connection: HTTPProtocol, data: bytes) -> None:
        if data != b"stall":
            receive(connection, data)
            return
        begun.set()
        over.wait(WAIT_SECONDS)

    monkeypatch.setattr(HTTPProtocol, "data_received", data_received)

    def stalled(gateway: Running, what: Callable[[], None]) -> None:
        with raw(gateway.port) as other:
            other.send(b"stall")
            assert begun.wait(WAIT_SECONDS)
            gateway.gateway.services.pool.late = (
                False  # the machine may have been slow before, which would make the next tick count
            )
            what()
            time.sleep(STALL)
            over.set()

    return stalled


def test_a_body_that_arrived_during_a_stall_is_read(stall: Stall) -> None:
    body = json.dumps(body_of("openai_chat", "replay", False)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with running({"server": {"body_seconds": WAIT_SECONDS}}) as gateway, raw(gateway.port) as client:
        client.send(head + body[:10])
        until(lambda: gateway.gateway.services.pool._deadlines.open)

        def arrive_late() -> None:
            (deadline,) = gateway.gateway.services.pool._deadlines.open
            deadline.due = 0.0
            client.send(body[10:])

        stall(gateway, arrive_late)
        assert client.read_until(b"}]").startswith(b"HTTP/1.1 200")


def test_an_answer_that_continued_during_a_stall_is_read(stall: Stall) -> None:
    go_on = threading.Event()
    with hostile() as upstream:
        upstream.scripts["stalled"] = streamed(sse(text_chunk("Hello")), Until(go_on), sse(text_chunk(" world"), END, DONE))
        upstreams = upstreams_at(upstream.url, timeouts=LONG_TIMEOUTS)
        with running({"upstreams": upstreams}) as gateway, raw(gateway.port) as client:
            client.post("/v1/chat/completions", body_of("openai_chat", "work/stalled"))
            client.read_until(b"Hello")
            (handler,) = gateway.handlers
            exchange = handler._exchange
            assert exchange is not None
            until(lambda: exchange._reads_seen == exchange.record.reads)

            def continue_late() -> None:
                exchange._silent_since -= 2 * LONG_TIMEOUTS["idle"]
                go_on.set()
                upstream.wait_for("stalled", lambda seen: seen.over)

            stall(gateway, continue_late)
            assert b"world" in client.read_until(b"[DONE]")


def test_the_end_of_a_stream_has_a_limit_that_a_stall_does_not_use_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is one of the gateway's own, which a late tick leaves to the next one."""
    monkeypatch.setattr(response_writer, "LAST_WRITE_SECONDS", WAIT_SECONDS)
    flood = sse(text_chunk("x" * 60_000))
    with hostile() as upstream:
        upstream.scripts["flood"] = streamed(*[flood] * 400, sse(END, DONE))
        upstreams = upstreams_at(upstream.url, timeouts=LONG_TIMEOUTS)
        with running({"upstreams": upstreams}) as gateway, raw(gateway.port, receive_bytes=4096) as client:
            client.post("/v1/chat/completions", body_of("openai_chat", "work/flood"))
            until(lambda: any(one.paused for one in list(gateway.server.connections)))
            (handler,) = gateway.gateway.requests.running
            gateway.server.loop.call_soon_threadsafe(handler.stop)
            until(lambda: [one.seconds for one in list(gateway.gateway.services.pool._deadlines.open)] == [WAIT_SECONDS])
            assert b"[DONE]" in client.read_until(b"[DONE]")


@pytest.mark.anyio
async def test_time_limits_hold_even_if_every_tick_is_late() -> None:
    async with UpstreamPool(LoadedConfig(Config()), environment={}, serving=True) as pool:

        async def wait() -> None:
            with pool.within(LIMIT):
                await asyncio.Event().wait()

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        now = pool.clock()
        for number, left in ((1, 1), (2, 0)):
            pool.tick(now + number * STALL)
            assert len(pool._deadlines.open) == left
        with pytest.raises(TimeoutError):
            await waiting
        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        pool.tick(now + 2 * STALL + TICK_SECONDS)
        assert not pool._deadlines.open, "a tick in time enforces at once"
        with pytest.raises(TimeoutError):
            await waiting
