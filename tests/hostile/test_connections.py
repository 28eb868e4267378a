"""Connections: time limits, numbers, pipelining, and clients that hang up."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import msgspec
import pytest

from gateway.conftest import upstreams_at
from gateway.dialect_clients import body_of
from gateway.running import Running, blocked, running
from gateway.scenarios import DONE, END, text_chunk
from gateway.upstream import Hang, HostileUpstream, Until, head, sse, streamed
from hostile.responses import Malformed, Response, parse_responses
from hostile.targets import ASGI, DIRECT, HEALTH, HOST, Attacker, Target, statuses
from streamglot.gateway.handler import RequestHandler
from streamglot.gateway.http.http_call import HTTPCall
from streamglot.gateway.http.protocol import DISCARD_BYTES, PIPELINED, PIPELINED_BYTES, HTTPProtocol
from streamglot.gateway.http.server import SWEEP_SECONDS, Server
from streamglot.gateway.supervisor import listen
from waiting import WAIT_SECONDS, until

GET = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"


def read_one(attacker: Attacker) -> Response:
    """The next response on a connection that stays open."""
    while True:
        found = parse_responses(attacker.data, closed=False)
        if found:
            attacker.data = b""
            return found[0]
        piece = attacker.socket.recv(2**18)
        assert piece, f"the connection ended: {attacker.data!r}"
        attacker.data += piece


# --- bodies that no endpoint reads


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A gateway whose patience is short."""
    for name in ("head_seconds", "discard_seconds"):
        monkeypatch.setattr(HTTPProtocol, name, 2.0)
    with running({"server": {"max_body_bytes": 1000, "stall_seconds": 2.0}}) as gateway:
        yield gateway


@contextmanager
def sent(gateway: Running, data: bytes) -> Iterator[Attacker]:
    """A client whose first bytes have arrived when the gateway accepts its connection, however slow the client is."""
    with blocked(gateway.server):
        one = Attacker(gateway.port, gateway)
        one.send(data)
    with one:
        yield one


UNREAD = {
    "a path that is not there": b"POST /nowhere HTTP/1.1\r\n" + HOST + b"content-length: 10\r\n\r\n123456789",
    "a page": b"GET /health HTTP/1.1\r\n" + HOST + b"content-length: 10\r\n\r\n123456789",
    "a body that is too large": DIRECT.line() + HOST + b"content-length: 2000\r\n\r\n" + b"x" * 1999,
    "a chunk that does not end": b"GET /health HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n5\r\n1234",
    "a coding without a chunk": b"GET /health HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n",
}


@pytest.mark.parametrize("shape", UNREAD)
def test_a_byte_that_never_comes_holds_no_connection(hurried: Running, shape: str) -> None:
    with sent(hurried, UNREAD[shape]) as one:
        assert one.read_to_end()
    until(lambda: not hurried.server.connections)


def test_a_slow_trickle_of_bytes_does_not_hold_a_connection(hurried: Running) -> None:
    with sent(hurried, b"GET /health HTTP/1.1\r\n" + HOST + b"content-length: 1000000\r\n\r\n") as one:
        read_one(one)
        end = time.monotonic() + WAIT_SECONDS
        while hurried.server.connections:
            assert time.monotonic() < end, "the connection is held"
            one.send(b"x")
            one.settle()


def test_the_rest_of_a_body_is_read_before_the_next_request(gateway: Running) -> None:
    """The response came early; the connection can still be used."""
    with Attacker(gateway.port, gateway) as one:
        one.send(b"POST /nowhere HTTP/1.1\r\n" + HOST + b"content-length: 10\r\n\r\n12345")
        assert read_one(one).status == 404
        one.send(b"67890" + HEALTH)
        assert [response.status for response in one.responses()] == [200]


def test_an_endless_body_is_not_read_for_ever(gateway: Running) -> None:
    with Attacker(gateway.port, gateway) as one:
        one.send(b"POST /nowhere HTTP/1.1\r\n" + HOST + b"content-length: 99999999999\r\n\r\n")
        assert read_one(one).status == 404
        assert one.flood(b"x" * 2**18, 2 * DISCARD_BYTES) < 2 * DISCARD_BYTES


def test_empty_lines_do_not_keep_a_connection_alive(hurried: Running) -> None:
    with sent(hurried, GET) as one:
        read_one(one)
        one.send(b"\r\n")
        assert b" 408 " in one.read_to_end()


# --- how many


def test_connections_that_wait_make_room() -> None:
    with running({"server": {"max_connections": 3}}) as gateway:
        old = [Attacker(gateway.port, gateway) for _ in range(3)]
        for one in old:
            one.send(GET)
            assert read_one(one).status == 200
        with Attacker(gateway.port, gateway) as new:
            new.send(GET)
            assert read_one(new).status == 200
            until(lambda: len(gateway.server.connections) == 3)
        for one in old:
            one.socket.close()


def test_connections_that_work_are_left_alone(upstream: HostileUpstream) -> None:
    upstream.scripts["busy-connection"] = [head(), sse(text_chunk("Hello")), Hang()]
    with running({"server": {"max_connections": 2}, "upstreams": upstreams_at(upstream.url)}) as gateway:
        busy = [Attacker(gateway.port, gateway) for _ in range(2)]
        for one in busy:
            one.send(DIRECT.request(body=msgspec.json.encode(body_of("openai_chat", "work/busy-connection"))))
            one.read_until(b"Hello")
        with Attacker(gateway.port, gateway) as new:
            (response,) = new.responses()
        assert (response.status, response.code) == (503, "too_many_connections")
        for one in busy:
            one.socket.close()
        until(lambda: not gateway.server.connections)
        assert statuses(gateway, HEALTH) == [200]


# --- one request behind the other


def test_a_pipelined_request_does_not_hide_that_the_client_hangs_up(gateway: Running, upstream: HostileUpstream) -> None:
    """In the same packet, in another one, and when it is too large to be kept."""
    behind = {"same": GET, "next": GET, "half": GET[:10], "large": b"x" * (PIPELINED_BYTES + 1), "none": b""}
    for name, more in behind.items():
        model = f"hidden-{name}"
        upstream.scripts[model] = [head(), sse(text_chunk("Hello")), Hang()]
        request = DIRECT.request(body=msgspec.json.encode(body_of("openai_chat", f"work/{model}")))
        one = Attacker(gateway.port, gateway)
        if name == "same":
            one.send(request + more)
            one.read_until(b"Hello")
        else:
            one.send(request)
            one.read_until(b"Hello")
            one.send(more)
            one.settle()
        one.socket.close()
        upstream.wait_for(model, lambda seen: seen.closed)


def test_a_client_that_disconnects_before_the_first_byte_of_its_answer(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["hidden-early"] = [Hang()]
    one = Attacker(gateway.port, gateway)
    one.send(DIRECT.request(body=msgspec.json.encode(body_of("openai_chat", "work/hidden-early"))) + GET)
    upstream.wait_for("hidden-early")
    one.socket.close()
    upstream.wait_for("hidden-early", lambda seen: seen.closed)


@pytest.mark.parametrize("packets", ["one", "two", "bytes"])
def test_pipelined_requests_are_answered_in_order(gateway: Running, packets: str) -> None:
    data = DIRECT.request() + GET + ASGI.request() + b"GET /nowhere HTTP/1.1\r\n" + HOST + b"\r\n" + DIRECT.request() + HEALTH
    sent = {"one": [data], "two": [data[:300], data[300:]], "bytes": [bytes([byte]) for byte in data]}
    with Attacker(gateway.port, gateway if packets == "two" else None) as one:
        one.send(*sent[packets])
        found = one.responses()
    assert [response.status for response in found] == [200, 200, 200, 404, 200, 200]
    assert DIRECT.says in found[0].body
    assert ASGI.says in found[2].body


def test_too_many_pipelined_requests_end_the_connection(gateway: Running) -> None:
    """Those that fit are answered; the client sees that the others were not."""
    with Attacker(gateway.port, gateway) as one:
        one.send(GET * (PIPELINED + 50))
        found = one.responses()
    assert PIPELINED <= len(found) <= PIPELINED + 2
    assert {response.status for response in found} == {200}
    assert found[-1].headers["connection"] == "close"


def test_an_invalid_pipelined_request_does_not_harm_the_one_before(gateway: Running, upstream: HostileUpstream) -> None:
    go_on = threading.Event()
    upstream.scripts["harmed"] = streamed(sse(text_chunk("Hello")), Until(go_on), sse(text_chunk(" world"), END, DONE))
    request = DIRECT.request(body=msgspec.json.encode(body_of("openai_chat", "work/harmed")))
    with Attacker(gateway.port, gateway) as one:
        one.send(request + b"NONSENSE\r\n\r\n")
        one.read_until(b"Hello")
        go_on.set()
        first, second = one.responses()
    assert first.body.endswith(b"data: [DONE]\n\n")
    assert (second.status, second.code) == (400, "not_http")


# --- 100 Continue


def test_expect_100_continue_is_answered(gateway: Running, target: Target) -> None:
    with Attacker(gateway.port, gateway) as one:
        one.send(target.line() + HOST + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(target.body))
        one.read_until(b"HTTP/1.1 100 Continue\r\n\r\n")
        one.send(target.body + HEALTH)
        first, second = one.responses()
    assert (first.status, second.status) == (200, 200)
    assert target.says in first.body


def test_a_refused_expect_100_continue_closes_the_connection(hurried: Running) -> None:
    """The client may or may not send the body, so the connection cannot be reused."""
    with sent(hurried, DIRECT.line() + HOST + b"expect: 100-continue\r\ncontent-length: 2000\r\n\r\n") as one:
        (response,) = one.responses()
    assert response.status == 413
    assert response.headers["connection"] == "close"
    assert b"100 Continue" not in one.data


# --- slow clients


@pytest.mark.parametrize("start", [b"G", b"GET /health HTTP/1.1\r\nhost: loc", b"\r\n"])
def test_a_head_that_does_not_end_is_refused(hurried: Running, start: bytes) -> None:
    with sent(hurried, start) as one:
        (response,) = one.responses()
    assert (response.status, response.code) == (408, "headers_too_slow")


def test_a_head_of_one_byte_at_a_time_is_refused(hurried: Running) -> None:
    with sent(hurried, b"GET /health HTTP/1.1\r\nx: ") as one:
        end = time.monotonic() + WAIT_SECONDS
        while hurried.server.connections:
            assert time.monotonic() < end, "every byte prolongs it"
            one.send(b"y")
            one.settle()


def test_a_request_that_is_cut_off_is_refused(gateway: Running) -> None:
    with Attacker(gateway.port, gateway) as one:
        one.send(b"GET /health HTTP/1.1\r\nhost: loc")
        one.settle()
        one.socket.shutdown(socket.SHUT_WR)
        (response,) = one.responses()
    assert (response.status, response.code) == (400, "cut_off")


# --- a server without a gateway: behaviour that the gateway's endpoints never show


class Endpoint:
    """An application that does one thing."""

    stall_seconds = 600.0

    def __init__(self, work: Any) -> None:
        self._work = work
        self.faults: list[BaseException] = []

    def running(self) -> AbstractAsyncContextManager[None]:
        @asynccontextmanager
        async def nothing() -> Any:
            yield

        return nothing()

    def respond(self, call: HTTPCall) -> Coroutine[Any, Any, None]:
        work: Coroutine[Any, Any, None] = self._work(call)
        return work

    def converse(self, call: HTTPCall) -> Coroutine[Any, Any, None] | None:
        return None

    def stop(self, seconds: float) -> None: ...
    def reload(self) -> None: ...

    def log_fault(self, request_id: str, error: BaseException) -> None:
        self.faults.append(error)


@contextmanager
def serving(application: Endpoint, shutdown_seconds: float = 0.0, max_connections: int = 0) -> Iterator[tuple[Server, int]]:
    server = Server(application, shutdown_seconds, max_connections)
    listener = listen("127.0.0.1", 0)
    port: int = listener.getsockname()[1]
    thread = threading.Thread(target=server.run, args=[listener], daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield server, port
    finally:
        server.stop()
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive(), "the server did not stop"


def test_a_client_that_does_not_read_is_given_up() -> None:
    asked = threading.Event()

    async def endless(call: HTTPCall) -> None:
        asked.set()
        await call.start(200, {})
        while not call.disconnected:
            await call.write(b"x" * 65_536)

    application = Endpoint(endless)
    application.stall_seconds = 0.5
    with serving(application) as (server, port), Attacker(port) as one:
        one.send(GET)
        assert asked.wait(WAIT_SECONDS)
        until(lambda: not server.connections and not server.tasks)
    assert not application.faults


def test_a_client_that_does_not_read_the_last_bytes_is_given_up_too() -> None:
    asked = threading.Event()

    async def large(call: HTTPCall) -> None:
        asked.set()
        await call.reply(200, b"x" * 2**25, "text/plain", {"connection": "close"})

    application = Endpoint(large)
    application.stall_seconds = 0.5
    with serving(application) as (server, port), Attacker(port) as one:
        one.send(GET)
        assert asked.wait(WAIT_SECONDS)
        until(lambda: not server.connections and not server.tasks)


@pytest.mark.parametrize("when", ["at once", "in the task", "after nothing"])
def test_a_fault_before_the_first_byte_is_an_answer(when: str) -> None:
    async def broken(_: HTTPCall) -> None:
        if when == "in the task":
            raise ZeroDivisionError("a fault")

    def raises(_: HTTPCall) -> Any:
        raise ZeroDivisionError("a fault")

    application = Endpoint(raises if when == "at once" else broken)
    with serving(application) as (_, port):
        for _ in range(2):
            with Attacker(port) as one:
                one.send(GET + HEALTH)
                found = one.responses()
            assert [(response.status, response.code) for response in found] == [(500, "internal_error")] * 2
            assert b"ZeroDivision" not in one.data
        until(lambda: len(application.faults) == 4)


@pytest.mark.parametrize("when", ["streaming", "too short", "too long", "not ended"])
def test_a_fault_after_the_first_byte_is_seen(when: str) -> None:
    """The response is not whole, and the client can tell."""

    async def broken(call: HTTPCall) -> None:
        await call.start(200, {} if when in ("streaming", "not ended") else {"content-length": "10"})
        await call.write(b"12345")
        if when == "streaming":
            raise ZeroDivisionError("a fault")
        if when != "not ended":
            await call.end(b"" if when == "too short" else b"678901")

    with serving(Endpoint(broken)) as (server, port), Attacker(port) as one:
        one.send(GET)
        one.read_to_end()
        if one.data:  # a reset may come before the first bytes
            with pytest.raises(Malformed):
                parse_responses(one.data)
        until(lambda: not server.connections)


def test_a_request_that_comes_in_a_busy_moment_is_answered() -> None:
    """The connection's time is over while its request waits unread: it is read before that counts."""

    async def fine(call: HTTPCall) -> None:
        await call.reply(200, b"fine", "text/plain", {})

    with serving(Endpoint(fine)) as (server, port):
        for used in (True, False):
            with Attacker(port) as one:
                if used:
                    one.send(GET)
                    assert read_one(one).status == 200
                else:
                    until(lambda: server.connections)
                with blocked(server):
                    (connection,) = server.connections
                    connection.deadline = server._last_sweep + 0.001
                    one.send(GET)
                    time.sleep(2 * SWEEP_SECONDS)  # its time passes, and the next check is due
                assert read_one(one).status == 200
            until(lambda: not server.connections)


def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HTTPProtocol, "keep_alive_seconds", 0.2)
    with running() as gateway, Attacker(gateway.port) as one:
        one.send(GET)
        assert [response.status for response in one.responses()] == [200]


def test_calls_and_connections_are_freed_without_a_collection(gateway: Running, upstream: HostileUpstream) -> None:
    """Reference cycles would cost a tenth of the processor time of every request."""
    upstream.scripts["freed"] = streamed(sse(text_chunk("Hello"), END, DONE))
    kinds = (HTTPCall, HTTPProtocol, RequestHandler)
    before: list[object] = []

    def left() -> list[object]:
        return [each for each in gc.get_objects() if isinstance(each, kinds) and each not in before]

    until(lambda: not gateway.server.connections and not gateway.server.tasks)
    gc.collect()
    before = left()
    gc.disable()
    try:
        for model in ("replay", "work/freed"):
            for stream in (False, True):
                body = msgspec.json.encode(body_of("openai_chat", model, stream))
                assert statuses(gateway, DIRECT.request(body=body) + GET + ASGI.request() + HEALTH) == [200] * 4
        assert statuses(gateway, b"NONSENSE\r\n\r\n") == [400]
        most = len(kinds)  # the loop variable of a periodic task may hold the last one that it saw
        until(lambda: len(left()) <= most, lambda: f"{left()}")
    finally:
        gc.enable()


def test_a_server_that_stops_answers_what_it_has_read(upstream: HostileUpstream) -> None:
    """And what waits unread in a socket: with an answer or a refusal, and not with a close."""
    go_on = threading.Event()
    upstream.scripts["stopping"] = streamed(sse(text_chunk("Hello")), Until(go_on), sse(text_chunk(" world"), END, DONE))
    request = DIRECT.request(body=msgspec.json.encode(body_of("openai_chat", "work/stopping")))
    with running({"upstreams": upstreams_at(upstream.url)}) as gateway:
        with Attacker(gateway.port, gateway) as busy, Attacker(gateway.port, gateway) as waiting:
            waiting.send(GET)
            read_one(waiting)
            busy.send(request)
            busy.read_until(b"Hello")
            with blocked(gateway.server):
                gateway.server.stop()
                waiting.send(DIRECT.request())
            (answered,) = waiting.responses()
            go_on.set()
            (ended,) = busy.responses()
        assert (answered.status, answered.headers["connection"]) in ((200, "close"), (503, "close"))
        assert ended.body.endswith(b"data: [DONE]\n\n")
