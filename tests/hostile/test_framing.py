"""Where a request ends: request smuggling, and floods that fill memory before a key is checked."""

from __future__ import annotations

import tracemalloc

import pytest

from each import each
from gateway.running import Running
from hostile.targets import ASGI, DIRECT, HEALTH, HOST, Attacker, Target, chunks, statuses
from streamglot.gateway.http.http_call import HTTPCall
from streamglot.gateway.http.parser import RequestHead

SMUGGLED = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
FLOOD = 2**25
"""Bytes: a server that takes so many without an answer takes any number. What the system's own buffers hold is less."""


def test_the_plain_request_is_answered(gateway: Running, target: Target) -> None:
    with Attacker(gateway.port) as one:
        one.send(target.request() + HEALTH)
        first, second = one.responses()
    assert (first.status, second.status) == (200, 200)
    assert target.says in first.body


# --- lengths and codings


LENGTHS = {
    "length and coding": b"content-length: 4\r\ntransfer-encoding: chunked\r\n",
    "coding and length": b"transfer-encoding: chunked\r\ncontent-length: 4\r\n",
    "two lengths": b"content-length: 4\r\ncontent-length: 0\r\n",
    "the same length twice": b"content-length: 4\r\ncontent-length: 4\r\n",
    "a list of lengths": b"content-length: 4, 4\r\n",
    "a signed length": b"content-length: +4\r\n",
    "a negative length": b"content-length: -4\r\n",
    "a hexadecimal length": b"content-length: 0x4\r\n",
    "no length": b"content-length:\r\n",
    "a huge length": b"content-length: 18446744073709551620\r\n",
    "another coding": b"transfer-encoding: gzip\r\n",
    "another coding before it": b"transfer-encoding: gzip, chunked\r\n",
    "another coding behind it": b"transfer-encoding: chunked, gzip\r\n",
    "two codings": b"transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n",
    "the coding twice": b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
    "nearly the coding": b"transfer-encoding: xchunked\r\n",
    "a tabulator": b"transfer-encoding:\x0bchunked\r\n",
    "a folded field": b"transfer-encoding:\r\n chunked\r\n",
    "a space before the colon": b"transfer-encoding : chunked\r\n",
    "a bare line feed": b"x: y\ntransfer-encoding: chunked\r\n",
    "a bare return": b"x: y\rtransfer-encoding: chunked\r\n",
    "a zero byte": b"x: y\x00\r\n",
    "no name": b": y\r\n",
    "no colon": b"transfer-encoding chunked\r\n",
}


@each(shape=LENGTHS)
def test_conflicting_body_lengths_are_refused(gateway: Running, target: Target, shape: str) -> None:
    """One refusal, and nothing behind it is read."""
    found = statuses(gateway, target.line() + HOST + LENGTHS[shape] + b"\r\n0\r\n\r\n" + SMUGGLED)
    assert found in ([400], [501])


def test_transfer_encoding_in_http_1_0_is_refused(gateway: Running, target: Target) -> None:
    assert statuses(gateway, target.line("1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED) == [400]


CHUNKS = {
    "no number": b"zz\r\n",
    "nothing": b"\r\n{}\r\n0\r\n\r\n",
    "a sign": b"-1\r\n",
    "a prefix": b"0x2\r\n{}\r\n0\r\n\r\n",
    "a space": b"2 \r\n{}\r\n0\r\n\r\n",
    "too many digits": b"fffffffffffffffff\r\n",
    "a bare line feed": b"2\n{}\r\n0\r\n\r\n",
    "a line feed in an extension": b"2;a\nb\r\n{}\r\n0\r\n\r\n",
    "more than it says": b"2\r\n{}}\r\n0\r\n\r\n",
    "less than it says": b"5\r\n{}\r\n0\r\n\r\n",
    "a length in the trailers": b"2\r\n{}\r\n0\r\ncontent-length: 5\r\n\r\n",
    "a coding in the trailers": b"2\r\n{}\r\n0\r\ntransfer-encoding: chunked\r\n\r\n",
}


@each(shape=CHUNKS)
@each(packets=[1, 2])
def test_broken_chunks_are_refused(gateway: Running, target: Target, shape: str, packets: int) -> None:
    """They are noticed inside the body: the endpoint answers, and nothing behind it is read."""
    request = target.chunked(CHUNKS[shape] + SMUGGLED)
    head = request.index(b"\r\n\r\n") + 4
    assert statuses(gateway, *([request] if packets == 1 else [request[:head], request[head:]])) == [400]


def test_extensions_and_trailers_in_reason_are_ignored(gateway: Running, target: Target) -> None:
    body = b"%x;name=value;other\r\n%b\r\n0;last\r\nx-checksum: 1\r\nhost: other\r\n\r\n" % (len(target.body), target.body)
    assert statuses(gateway, target.chunked(body) + HEALTH) == [200, 200]


def test_a_body_in_chunks_of_one_byte(gateway: Running, target: Target) -> None:
    body = chunks(*(bytes([byte]) for byte in target.body))
    assert statuses(gateway, target.chunked(body) + HEALTH) == [200, 200]


def test_bytes_after_the_last_request_are_not_read(gateway: Running, target: Target) -> None:
    assert statuses(gateway, target.request(b"connection: close\r\n") + SMUGGLED) == [200]
    assert statuses(gateway, target.request(b"connection: close\r\n"), SMUGGLED) == [200]
    old = target.line("1.0") + b"connection: keep-alive\r\ncontent-length: %d\r\n\r\n" % len(target.body) + target.body
    assert statuses(gateway, old + SMUGGLED) == [200]


def test_a_get_request_has_its_body_too(gateway: Running) -> None:
    head = b"GET /health HTTP/1.1\r\n" + HOST + b"content-length: %d\r\n\r\n" % len(SMUGGLED)
    assert statuses(gateway, head + SMUGGLED + HEALTH) == [200, 200]
    assert statuses(gateway, head, SMUGGLED, HEALTH) == [200, 200]


# --- upgrades


UPGRADES = {
    "h2c": b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n",
    "h2c alone": b"upgrade: h2c\r\nconnection: upgrade\r\n",
    "with others": b"connection: keep-alive, upgrade\r\nupgrade: foo/2, h2c\r\n",
    "websocket": b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n",
}


@each(shape=UPGRADES)
@each(cut=["whole", "head and body", "in the head", "in the body"])
@each(framing=["length", "chunks"])
def test_an_offer_to_upgrade_is_ignored(gateway: Running, target: Target, shape: str, cut: str, framing: str) -> None:
    """Clients that offer h2c by default work, and the body belongs to its request."""
    offer = UPGRADES[shape]
    request = target.request(offer) if framing == "length" else target.chunked(chunks(target.body), offer)
    head = request.index(b"\r\n\r\n") + 4
    places = {"whole": 0, "head and body": head, "in the head": head - 30, "in the body": head + 5}
    packets = [request[: places[cut]], request[places[cut] :] + HEALTH]
    with Attacker(gateway.port, gateway) as one:
        one.send(*filter(None, packets))
        first, second = one.responses()
    assert (first.status, second.status) == (200, 200)
    assert target.says in first.body


@pytest.mark.parametrize("shape", UPGRADES)
@pytest.mark.parametrize("packets", [1, 2])
def test_a_body_after_an_upgrade_is_not_read_as_a_request(gateway: Running, target: Target, shape: str, packets: int) -> None:
    request = target.request(UPGRADES[shape], body=SMUGGLED)
    head = request.index(b"\r\n\r\n") + 4
    sent = [request + HEALTH] if packets == 1 else [request[:head], request[head:] + HEALTH]
    assert statuses(gateway, *sent) == [400, 200]


def test_a_websocket_upgrade_is_refused(gateway: Running, target: Target) -> None:
    with Attacker(gateway.port) as one:
        one.send(f"GET {target.path} HTTP/1.1\r\n".encode() + HOST + UPGRADES["websocket"] + b"\r\n" + HEALTH)
        first, second = one.responses()
    assert (first.status, second.status) == (426, 200)
    assert "POST" in first.json()["error"]["message"]


def test_an_upgrade_without_a_body(gateway: Running) -> None:
    assert statuses(gateway, b"GET /health HTTP/1.1\r\n" + HOST + UPGRADES["h2c"] + b"\r\n", HEALTH) == [200, 200]
    assert statuses(gateway, b"GET /health HTTP/1.0\r\n" + UPGRADES["h2c"] + b"\r\n" + SMUGGLED) == [200]


# --- other protocols


OTHERS = {
    "connect": (b"CONNECT localhost:443 HTTP/1.1\r\n" + HOST + b"\r\n" + SMUGGLED, 405),
    "http/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a version that is too new": (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
    "a version that is too old": (b"GET /\r\n\r\n", 505),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), 400),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET /health HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n", 400),
    "a lower-case method": (b"get /health HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "no path": (b"GET health HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a space in the path": (b"GET /hea lth HTTP/1.1\r\n" + HOST + b"\r\n", 400),
}


@pytest.mark.parametrize("name", OTHERS)
def test_unsupported_requests_are_refused(gateway: Running, name: str) -> None:
    data, status = OTHERS[name]
    assert statuses(gateway, data) == [status]


def test_old_clients_are_answered(gateway: Running, target: Target) -> None:
    """They know no chunks: a stream ends with the connection."""
    head = target.line("1.0") + b"content-length: %d\r\n\r\n" % len(target.body)
    assert statuses(gateway, head + target.body) == [200]
    body = DIRECT.body.replace(b"false", b"true")
    with Attacker(gateway.port) as one:
        one.send(DIRECT.line("1.0") + b"content-length: %d\r\n\r\n" % len(body) + body)
        (response,) = one.responses()
    assert not response.framed
    assert "transfer-encoding" not in response.headers
    assert response.body.endswith(b"data: [DONE]\n\n")


def test_a_head_request_has_no_body(gateway: Running) -> None:
    assert statuses(gateway, b"HEAD /health HTTP/1.1\r\n" + HOST + b"\r\n" + HEALTH, methods=("HEAD", "GET")) == [200, 200]
    assert statuses(gateway, b"HEAD /nowhere HTTP/1.1\r\n" + HOST + b"\r\n" + HEALTH, methods=("HEAD", "GET")) == [404, 200]


# --- what never ends


ENDLESS = {
    "trailers": (DIRECT.chunked(b"0\r\n"), b"x-trailer: value\r\n" * 1000),
    "one trailer": (DIRECT.chunked(b"0\r\nx-trailer: "), b"v" * 16_000),
    "the name of a trailer": (DIRECT.chunked(b"0\r\n"), b"v" * 16_000),
    "chunk extensions": (DIRECT.chunked(b"1;"), b"name=value;" * 1000),
    "extensions of small chunks": (DIRECT.chunked(b""), b"1;" + b"e" * 1000 + b"\r\nx\r\n"),
    "trailers as asgi": (ASGI.chunked(b"0\r\n"), b"x-trailer: value\r\n" * 1000),
    "chunk extensions as asgi": (ASGI.chunked(b"1;"), b"name=value;" * 1000),
    "trailers of an upgrade": (DIRECT.chunked(b"0\r\n", UPGRADES["h2c"]), b"x-trailer: value\r\n" * 1000),
    "headers": (b"GET / HTTP/1.1\r\n", b"x-header: value\r\n" * 1000),
    "one header": (b"GET / HTTP/1.1\r\nx-header: ", b"v" * 16_000),
    "the path": (b"GET /", b"p" * 16_000),
    "empty lines": (b"", b"\r\n" * 8000),
    "a digit": (DIRECT.chunked(b""), b"0" * 16_000),
}


@pytest.mark.parametrize("shape", ENDLESS)
def test_endless_requests_are_refused(gateway: Running, shape: str) -> None:
    start, piece = ENDLESS[shape]
    with Attacker(gateway.port, gateway) as one:
        one.send(start)
        sent = one.flood(piece, FLOOD)
        assert sent < FLOOD, "the server reads on and on"
        (response,) = one.responses()
    assert response.status in (400, 413, 431)


def test_tiny_chunks_take_no_more_memory_than_their_body() -> None:
    """A list of their contents would take twenty times as much."""
    call = HTTPCall(None, RequestHead("POST", b"/", "1.1", {}, [], True, b""))  # type: ignore[arg-type]  # it asks for nothing
    tracemalloc.start()
    try:
        for number in range(200_000):
            call.receive(b"%02x" % (number & 255))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 3 * 400_000
