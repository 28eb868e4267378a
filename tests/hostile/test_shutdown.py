"""A server that stops: every connection that the system has accepted for it gets an answer."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from gateway.conftest import upstreams_at
from gateway.dialect_clients import body_of
from gateway.raw import raw
from gateway.running import Running, blocked, running
from gateway.scenarios import DONE, END, text_chunk
from gateway.upstream import HostileUpstream, Until, sse, streamed
from gateway.websocket_client import websocket
from hostile.responses import parse_responses
from hostile.targets import DIRECT, HOST, Attacker
from hostile.test_connections import GET, Endpoint, read_one, serving
from streamglot.gateway.http.http_call import HTTPCall
from streamglot.gateway.http.protocol import HTTPProtocol
from streamglot.gateway.http.server import SWEEP_SECONDS, Server
from waiting import until

CLIENTS = 30
LARGE = b"x" * 2**25
"""An answer that the buffers of two sockets cannot hold."""
PATIENT = {"server": {"shutdown_seconds": 600}}
HANDSHAKE = (
    b"GET /v1/responses HTTP/1.1\r\n" + HOST + b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: MTIzNDU2Nzg5MDEyMzQ1Ng==\r\n\r\n"
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that was opened may wait longer than any test takes."""
    monkeypatch.setattr(HTTPProtocol, "last_request_seconds", 600.0, raising=False)


def sweep(server: Server, times: int = 4) -> None:
    """Waits until the server has checked all deadlines several times. It closes an idle connection at the second time."""
    last = server.loop.time() + times * SWEEP_SECONDS
    until(lambda: server._last_sweep > last)


def stop(gateway: Running) -> None:
    gateway.server.stop()
    until(lambda: gateway.server.stopping)


def test_connections_that_wait_to_be_accepted_are_answered() -> None:
    with running() as gateway, ExitStack() as opened:
        with blocked(gateway.server):
            clients = [opened.enter_context(Attacker(gateway.port)) for _ in range(CLIENTS)]
            for client in clients:
                client.send(DIRECT.request())
            gateway.server.stop()
        found = [client.responses() for client in clients]
    assert [[response.status for response in responses] for responses in found] == [[200]] * CLIENTS


def test_the_first_request_of_a_connection_is_answered() -> None:
    with running(PATIENT) as gateway, Attacker(gateway.port) as one:
        until(lambda: gateway.server.connections)
        stop(gateway)
        sweep(gateway.server)
        one.send(DIRECT.request())
        (response,) = one.responses()
    assert (response.status, response.code, response.headers["connection"]) == (503, "shutting_down", "close")


def test_a_connection_without_a_request_does_not_keep_the_server_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HTTPProtocol, "last_request_seconds", 0.1)
    with running(PATIENT) as gateway, Attacker(gateway.port) as one:
        until(lambda: gateway.server.connections)
        gateway.server.stop()
        assert one.responses() == []


def test_a_request_that_has_come_in_part_is_read_to_its_end() -> None:
    request = DIRECT.request()
    with running(PATIENT) as gateway, Attacker(gateway.port, gateway) as head, Attacker(gateway.port, gateway) as body:
        head.send(request[:40])
        body.send(request[:-5])
        head.settle()
        stop(gateway)
        sweep(gateway.server)
        head.send(request[40:])
        body.send(request[-5:])
        (first,), (second,) = head.responses(), body.responses()
    assert (first.status, first.code) == (503, "shutting_down")
    assert (second.status, second.headers["connection"]) in ((200, "close"), (503, "close"))


def test_an_endless_head_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HTTPProtocol, "last_request_seconds", 0.1, raising=False)
    with running(PATIENT) as gateway, Attacker(gateway.port, gateway) as one:
        one.send(DIRECT.request()[:40])
        one.settle()
        gateway.server.stop()
        (response,) = one.responses()
    assert (response.status, response.code) == (503, "shutting_down")


@pytest.mark.parametrize("fields", [{}, {"connection": "close"}], ids=["kept", "closed"])
def test_an_answer_that_the_client_still_reads_is_delivered(fields: dict[str, str]) -> None:
    async def large(call: HTTPCall) -> None:
        await call.reply(200, LARGE, "text/plain", fields)

    with serving(Endpoint(large), 600.0) as (server, port), raw(port, receive_bytes=4096) as one:
        one.send(GET)
        until(lambda: any(_unsent(each) for each in list(server.connections)))
        server.stop()
        until(lambda: server.stopping)
        sweep(server)
        (response,) = parse_responses(one.read_all())
    assert response.body == LARGE


def test_an_answer_that_the_client_still_reads_makes_no_room_for_others() -> None:
    async def large(call: HTTPCall) -> None:
        await call.reply(200, LARGE, "text/plain", {})

    with serving(Endpoint(large), max_connections=1) as (server, port), raw(port, receive_bytes=4096) as one:
        one.send(GET)
        until(lambda: any(_unsent(each) for each in list(server.connections)))
        with Attacker(port) as other:
            (refusal,) = other.responses()
        (response,) = parse_responses(one.read_until(LARGE), closed=False)
    assert (refusal.status, refusal.code) == (503, "too_many_connections")
    assert response.body == LARGE


def _unsent(connection: Any) -> bool:
    """Whether the answer has ended for the server, and the client has not read it yet."""
    return connection._call is None and connection._transport.get_write_buffer_size() > 0


def test_a_request_that_waits_for_its_turn_is_answered(upstream: HostileUpstream) -> None:
    """It came in a packet of its own, while the request before it was being answered."""
    go_on = threading.Event()
    upstream.scripts["first"] = streamed(sse(text_chunk("Hello")), Until(go_on), sse(text_chunk(" world"), END, DONE))
    first = DIRECT.request(body=msgspec.json.encode(body_of("openai_chat", "work/first")))
    with running({**PATIENT, "upstreams": upstreams_at(upstream.url)}) as gateway, Attacker(gateway.port, gateway) as one:
        one.send(first)
        one.read_until(b"Hello")
        one.send(DIRECT.request())
        one.settle()
        stop(gateway)
        go_on.set()
        streamed_answer, second = one.responses()
    assert streamed_answer.body.endswith(b"data: [DONE]\n\n")
    assert (second.status, second.code, second.headers["connection"]) == (503, "shutting_down", "close")


def test_a_connection_closes_after_a_stream_that_promised_to_keep_it(upstream: HostileUpstream) -> None:
    go_on = threading.Event()
    upstream.scripts["last"] = streamed(sse(text_chunk("Hello")), Until(go_on), sse(END, DONE))
    request = DIRECT.request(body=msgspec.json.encode(body_of("openai_chat", "work/last")))
    with running({**PATIENT, "upstreams": upstreams_at(upstream.url)}) as gateway, Attacker(gateway.port, gateway) as one:
        one.send(request)
        one.read_until(b"Hello")
        stop(gateway)
        go_on.set()
        (response,) = one.responses()
    assert response.body.endswith(b"data: [DONE]\n\n")


def test_a_websocket_is_refused_with_the_reason() -> None:
    with running(PATIENT) as gateway, Attacker(gateway.port) as one, websocket(gateway.port) as idle:
        until(lambda: len(gateway.server.connections) == 2)
        stop(gateway)
        one.send(HANDSHAKE)
        (response,) = one.responses()
        assert idle.closed() == 1001
    assert (response.status, response.code) == (503, "shutting_down")


def test_a_used_connection_may_be_closed_and_a_request_that_is_under_way_is_answered() -> None:
    with running(PATIENT) as gateway, Attacker(gateway.port, gateway) as idle, Attacker(gateway.port, gateway) as asking:
        for client in (idle, asking):
            client.send(GET)
            assert read_one(client).status == 200
        with blocked(gateway.server):
            gateway.server.stop()
            asking.send(DIRECT.request())
        (response,) = asking.responses()
        assert idle.responses() == []
    assert (response.status, response.headers["connection"]) in ((200, "close"), (503, "close"))
