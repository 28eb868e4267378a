"""Requests that are too many, too large, too slow or not HTTP are refused clearly and do not affect others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from gateway.conftest import upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, asked, body_of, path_of, understood
from gateway.raw import RawClient, raw
from gateway.running import Answer, Running, running
from gateway.scenarios import DONE, END, PLAIN, text_chunk
from gateway.upstream import Hang, HostileUpstream, Pause, head, sse, streamed
from waiting import WAIT_SECONDS, until

CHAT = "/v1/chat/completions"


def fine(gateway: Running) -> None:
    """The gateway still works."""
    assert asked(gateway, "openai_chat", "replay").text == "You said: q"


# --- how many at once


def occupied(gateway: Running, model: str, upstream: HostileUpstream, count: int = 1, **headers: str) -> list[Any]:
    """The number of streams that stay open."""
    upstream.scripts[model] = [head(), sse(text_chunk("Hello")), Hang()]
    held = []
    for _ in range(count):
        one = raw(gateway.port)
        client = one.__enter__()
        client.post(
            CHAT,
            body_of("openai_chat", f"work/{model}"),
            {name.replace("_", "-"): value for name, value in headers.items()},
        )
        client.read_until(b"Hello")
        held.append(one)
    return held


def released(held: list[Any]) -> None:
    for one in held:
        one.__exit__(None, None, None)


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_too_many_concurrent_requests_are_refused(full: Running, client: str) -> None:
    answer = full.ask(path_of(client, "replay"), body_of(client, "replay"))
    found = understood(client, answer)
    assert found.status == 429
    assert found.error is not None
    assert "slots in use" in found.error
    assert answer.headers["retry-after"] == "1"


@pytest.fixture(scope="module")
def full(upstream: HostileUpstream) -> Any:
    settings = {"server": {"concurrent": 2, "wait": 0.05}, "upstreams": upstreams_at(upstream.url)}
    with running(settings) as gateway:
        held = occupied(gateway, "occupied", upstream, 2)
        yield gateway
        released(held)


def test_a_waiting_request_gets_the_next_slot(upstream: HostileUpstream) -> None:
    settings = {"server": {"concurrent": 1, "wait": WAIT_SECONDS}, "upstreams": upstreams_at(upstream.url)}
    with running(settings) as gateway, ThreadPoolExecutor() as pool:
        held = occupied(gateway, "occupied-once", upstream)
        waiting = pool.submit(asked, gateway, "openai_chat", "replay")
        until(lambda: gateway.gateway.access._limit._line)
        assert not waiting.done()
        released(held)
        assert waiting.result().text == "You said: q"


def test_too_many_requests_for_one_upstream_are_refused(upstream: HostileUpstream) -> None:
    """The others are not disturbed, and a fallback takes over."""
    upstreams = upstreams_at(upstream.url, concurrent=1)
    route = {"models": ["ours"], "to": [{"upstream": "work"}], "fallbacks": [{"upstream": "replay"}]}
    with running({"server": {"wait": 0.05}, "upstreams": upstreams, "routes": [route]}) as gateway:
        held = occupied(gateway, "occupied-up", upstream)
        found = asked(gateway, "anthropic", "work/occupied-up")
        assert found.status == 429
        assert found.error is not None
        assert "'work'" in found.error
        fine(gateway)
        assert asked(gateway, "openai_chat", "ours").text == "You said: q"
        released(held)
        until(lambda: not gateway.gateway.requests.running)
        assert asked(gateway, "openai_chat", "work/none").status == 404, "the upstream is asked again"


def test_too_many_requests_of_one_key_are_refused(upstream: HostileUpstream) -> None:
    from streamglot.gateway.auth.authenticator import digest_of

    keys = [{"name": "a", "hash": digest_of("key-of-a"), "concurrent": 1}, {"name": "b", "hash": digest_of("key-of-b")}]
    with running({"server": {"keys": keys}, "upstreams": upstreams_at(upstream.url)}) as gateway:
        held = occupied(gateway, "occupied-key", upstream, authorization="Bearer key-of-a")
        assert asked(gateway, "openai_chat", "replay", x_api_key="key-of-a").status == 429
        assert asked(gateway, "openai_chat", "replay", x_api_key="key-of-b").status == 200
        released(held)
        until(lambda: not gateway.gateway.requests.running)
        assert asked(gateway, "openai_chat", "replay", x_api_key="key-of-a").status == 200


# --- bodies


def test_a_body_of_ten_megabytes_is_accepted(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["ten"] = streamed(PLAIN)
    body = body_of("openai_chat", "work/ten")
    body["messages"] = [{"role": "user", "content": "x" * 10_000_000}]
    answer = gateway.ask(CHAT, body)
    assert answer.status == 200
    assert len(upstream.requests("ten")[0].body["messages"][0]["content"]) == 10_000_000


@pytest.mark.parametrize("client", ["openai_chat", "anthropic", "gemini", "ollama"])
@pytest.mark.parametrize("length", ["declared", "chunked"])
def test_a_body_above_the_limit_is_refused(small: Running, client: str, length: str) -> None:
    data = b'{"x":"' + b"x" * 2_000_000 + b'"}'
    with raw(small.port) as one:
        start = f"POST {path_of(client, 'replay')} HTTP/1.1\r\nhost: localhost\r\n".encode()
        if length == "declared":
            one.send(start + b"content-length: %d\r\n\r\n" % len(data) + data)
        else:
            one.send(start + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))
        answer = one.read_until(b"max_body_bytes")
        assert b"413" in answer.split(b"\r\n")[0]
        if not answer.endswith(b"}"):
            one.read_until(b"}")
    fine(small)


@pytest.fixture(scope="module")
def small() -> Any:
    with running({"server": {"max_body_bytes": 100_000}}) as gateway:
        yield gateway


def test_a_slow_body_times_out() -> None:
    with running({"server": {"body_seconds": 2.0}}) as gateway, raw(gateway.port) as one:
        one.send(b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        fine(gateway)
        answer = one.read_until(b"body_seconds")
    assert b"408" in answer.split(b"\r\n")[0]


@contextmanager
def begun(gateway: Running, start: bytes) -> Iterator[tuple[RawClient, Any]]:
    """A connection that begins like this, once the gateway has read it, and the gateway's side of it."""
    before = set(gateway.server.connections)
    with raw(gateway.port) as one:
        one.send(start)
        until(lambda: set(gateway.server.connections) - before)
        (connection,) = set(gateway.server.connections) - before
        fine(gateway)
        yield one, connection


def test_slow_headers_time_out(gateway: Running) -> None:
    with begun(gateway, b"POST /v1/mess") as (one, connection):
        deadline = connection.deadline
        one.send(b"ages HTTP/1.1\r\nho")
        fine(gateway)
        assert connection.deadline == deadline, "more bytes do not give it more time"
        connection.deadline = 0.0
        answer = one.read_all()
    assert b"408" in answer.split(b"\r\n")[0]
    assert b"headers_too_slow" in answer


def test_a_silent_client_is_disconnected(gateway: Running) -> None:
    with begun(gateway, b"") as (one, connection):
        connection.deadline = 0.0
        assert one.read_all() == b""


@pytest.mark.parametrize(
    "body",
    [b"", b"nonsense", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"model": 1}', b'{"messages": 7, "input": 7, "contents": 7}'],
)
@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_an_invalid_body_is_refused(gateway: Running, client: str, body: bytes) -> None:
    found = understood(client, gateway.ask(path_of(client, "replay"), body))
    assert found.status in (400, 404)
    assert found.error


# --- headers and broken HTTP


def test_too_many_headers_are_refused(gateway: Running) -> None:
    with raw(gateway.port) as one:
        one.send(
            b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n"
            + b"".join(b"x-%d: y\r\n" % number for number in range(10_000))
            + b"\r\n"
        )
        answer = one.read_until(b"}}")
    assert b"431" in answer.split(b"\r\n")[0]
    assert b"headers_too_large" in answer
    fine(gateway)


@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_a_header_above_the_limit_is_refused(gateway: Running, size: int) -> None:
    with raw(gateway.port) as one:
        one.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-large: " + b"y" * size)
        answer = one.read_until(b"}}")
    assert b"431" in answer.split(b"\r\n")[0]
    fine(gateway)


BROKEN = {
    "nonsense": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "no_version": b"GET\r\n\r\n",
    "bad_length": b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: many\r\n\r\n",
    "two_lengths": b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    "both_framings": b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "bad_chunk": b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "bad_header": b"GET /health HTTP/1.1\r\nbad header\x00: x\r\n\r\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_invalid_http_is_refused(gateway: Running, name: str) -> None:
    with raw(gateway.port) as one:
        one.send(BROKEN[name])
        answer = one.read_until(b"}")
    assert not answer or b" 400 " in answer.split(b"\r\n")[0]
    if name != "bad_chunk":
        assert b"not_http" in answer
    fine(gateway)


def test_pipelined_requests_on_one_connection_are_answered(gateway: Running) -> None:
    """Keep-alive, and requests that come before the answer to the one before."""
    request = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with raw(gateway.port) as one:
        one.send(request * 3)
        data = b""
        while data.count(b'{"status":"ok"}') < 3:
            data += one.read_until(b"}")
        one.post(CHAT, body_of("openai_chat", "replay", False))
        assert b"You said: q" in one.read_until(b"You said: q")
        one.send(request)
        assert b'{"status":"ok"}' in one.read_until(b'{"status":"ok"}')


def test_a_line_of_a_hundred_kilobytes_passes(gateway: Running, upstream: HostileUpstream) -> None:
    words = "word " * 20_000
    upstream.scripts["long-line"] = streamed(sse(text_chunk(words), END, DONE))
    for client in CLIENT_DIALECTS:
        assert asked(gateway, client, "work/long-line").text == words


def test_a_long_prompt_is_accepted(gateway: Running) -> None:
    body = {"model": "replay", "messages": [{"role": "user", "content": "q" * 100_000}]}
    assert gateway.ask(CHAT, body).json()["choices"][0]["message"]["content"] == "You said: " + "q" * 100_000


def test_many_concurrent_requests_are_answered(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["many"] = streamed(sse(text_chunk("Hello")), Pause(0.2), sse(text_chunk(" world"), END, DONE))
    answers: list[Answer] = []

    def one(client: str) -> None:
        answers.append(gateway.ask(path_of(client, "work/many"), body_of(client, "work/many")))
        assert understood(client, answers[-1]).text == "Hello world"

    threads = [threading.Thread(target=one, args=[CLIENT_DIALECTS[number % 8]]) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [200] * 40


@pytest.mark.parametrize("size", [1_000, 70_000, 200_000, 3_000_000])
def test_a_disconnect_is_noticed_after_a_body_of_any_size(upstream: HostileUpstream, size: int) -> None:
    """Not by a failed sign of life: there is none here."""
    model = f"gone-after-{size}"
    upstream.scripts[model] = [head(), sse(text_chunk("Hello")), Hang()]
    body = {**body_of("openai_chat", f"work/{model}"), "messages": [{"role": "user", "content": "x" * size}]}
    config = {"server": {"keep_alive_seconds": 3600}, "upstreams": upstreams_at(upstream.url)}
    with running(config) as gateway, raw(gateway.port) as client:
        client.post(CHAT, body)
        assert b"Hello" in client.read_until(b"Hello")
        client.hang_up()
        upstream.wait_for(model, lambda seen: seen.closed > 0)
