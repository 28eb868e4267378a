"""The parser gives the same requests, or the same refusal, however its bytes are cut."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from each import each
from hostile.targets import DIRECT, HEALTH, HOST, chunks
from hostile.test_framing import CHUNKS, LENGTHS, OTHERS, SMUGGLED, UPGRADES
from streamglot.gateway.http.parser import FRAMING_BYTES, HEAD_BYTES, HEADERS, ProtocolError, RequestHead, RequestParser

SHAPES = {
    "plain": DIRECT.request() + HEALTH,
    "pipelined": (DIRECT.request() + SMUGGLED) * 2,
    "chunks": DIRECT.chunked(chunks(b"{", b"}")) + HEALTH,
    "trailers": DIRECT.chunked(b"2;a=b\r\n{}\r\n0\r\nx: y\r\nz: \r\n\r\n") + HEALTH,
    "empty lines": b"\r\n\r\n" + DIRECT.request() + b"\r\n\r\n" + HEALTH,
    "behind the last": HEALTH + SMUGGLED,
    "old": b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n" + SMUGGLED,
    **{f"length: {name}": DIRECT.line() + HOST + shape + b"\r\n0\r\n\r\n" + SMUGGLED for name, shape in LENGTHS.items()},
    **{f"chunk: {name}": DIRECT.chunked(shape + SMUGGLED) for name, shape in CHUNKS.items()},
    **{f"upgrade: {name}": DIRECT.request(shape) + HEALTH for name, shape in UPGRADES.items()},
    **{f"upgraded chunks: {name}": DIRECT.chunked(chunks(b"{}"), shape) + HEALTH for name, shape in UPGRADES.items()},
    **{f"other: {name}": data for name, (data, _) in OTHERS.items()},
}


class Seen:
    """Records its calls; pieces of a body run together, as their borders mean nothing."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def request_started(self, head: RequestHead) -> None:
        self.events.append((head.method, head.target, head.version, head.fields, head.keep_alive, head.upgrade))

    def body_received(self, data: bytes) -> None:
        if type(self.events[-1]) is bytes:
            self.events[-1] += data
        else:
            self.events.append(data)

    def request_ended(self) -> None:
        self.events.append("end")


def seen(*pieces: bytes) -> list[Any]:
    receiver = Seen()
    parser = RequestParser(receiver)
    try:
        for piece in pieces:
            parser.feed(piece)
    except ProtocolError as error:
        receiver.events.append((error.status, error.code))
    return receiver.events


@each(name=SHAPES)
def test_any_split_gives_the_same_requests(name: str) -> None:
    data = SHAPES[name]
    whole = seen(data)
    assert whole
    assert seen(*(data[place : place + 1] for place in range(len(data)))) == whole
    for place in range(len(data)):
        assert seen(data[:place], data[place:]) == whole, place
    source = random.Random(name)
    for _ in range(50):
        places = sorted({0, len(data), *(source.randrange(len(data)) for _ in range(5))})
        assert seen(*(data[begin:end] for begin, end in pairwise(places))) == whole, places


@pytest.mark.parametrize("name", UPGRADES)
def test_an_upgrade_offer_is_reported_and_removed(name: str) -> None:
    head, body, end, *_ = seen(DIRECT.request(UPGRADES[name]))
    _, _, _, fields, keep_alive, upgrade = head
    assert upgrade in (b"h2c", b"foo/2, h2c", b"websocket")
    assert not {"upgrade", "http2-settings"} & set(fields)
    assert "upgrade" not in fields.get("connection", "").lower()
    assert (body, end, keep_alive) == (DIRECT.body, "end", True)


def refusal(*pieces: bytes) -> Any:
    return seen(*pieces)[-1]


def test_limits_are_counted_for_each_request() -> None:
    """Earlier requests in the same read do not count."""
    fields = b"".join(b"x-%d: %b\r\n" % (number, b"y" * 500) for number in range(100))
    large = b"GET / HTTP/1.1\r\n" + HOST + fields + b"\r\n"
    assert 50_000 < len(large) < HEAD_BYTES
    assert refusal(DIRECT.request(body=b"x" * 200_000) + large) == "end"
    assert refusal(large * 10) == "end"
    assert refusal(DIRECT.request(body=b"x" * 200_000) + large[:100], large[100:]) == "end"


@pytest.mark.parametrize("size", [1, 1000, HEAD_BYTES])
def test_a_head_may_be_this_large(size: int) -> None:
    def head(count: int) -> list[bytes]:
        data = b"GET / HTTP/1.1\r\n" + HOST + b"x: " + b"y" * count + b"\r\n\r\n"
        return [data[place : place + size] for place in range(0, len(data), size)]

    assert refusal(*head(HEAD_BYTES - 100)) == "end"
    assert refusal(*head(HEAD_BYTES + 100)) == (431, "headers_too_large")


def test_the_number_of_fields_is_limited() -> None:
    def head(count: int) -> bytes:
        return b"GET / HTTP/1.1\r\n" + HOST + b"x: y\r\n" * (count - 1) + b"\r\n"

    assert refusal(head(HEADERS)) == "end"
    assert refusal(head(HEADERS + 1)) == (431, "headers_too_large")
    trailers = DIRECT.chunked(b"0\r\n" + b"x: y\r\n" * HEADERS + b"\r\n")
    assert refusal(trailers) == "end"
    assert refusal(trailers[:-2] + b"x: y\r\n\r\n") == (413, "framing_too_large")


def test_framing_is_counted_and_content_is_not() -> None:
    start = DIRECT.chunked(b"")
    many = b"1\r\nx\r\n" * 100_000
    assert refusal(start, *(many[place : place + 9000] for place in range(0, len(many), 9000)), b"0\r\n\r\n") == "end"
    extended = b"1;" + b"e" * 1000 + b"\r\nx\r\n"
    assert refusal(start, *[extended] * (FRAMING_BYTES // 1100), b"0\r\n\r\n") == "end"
    assert refusal(start, *[extended] * (FRAMING_BYTES // 900)) == (413, "framing_too_large")


@pytest.mark.parametrize("cut", [0, 1])
def test_limits_hold_after_an_offer_to_upgrade(cut: int) -> None:
    request = DIRECT.chunked(b"0\r\n" + b"x: y\r\n" * 2 * HEADERS, UPGRADES["h2c"])
    place = cut * (request.index(b"\r\n\r\n") + 4)
    assert refusal(request[:place], request[place:]) == (413, "framing_too_large")
    broken = DIRECT.chunked(b"zz\r\n", UPGRADES["h2c"])
    assert refusal(broken) == (400, "not_http")


@each(name=SHAPES)
def test_an_error_that_is_being_handled_does_not_affect_the_parser(name: str) -> None:
    """A request may be read while another one fails: the errors are not mixed up."""
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        inside = seen(SHAPES[name])
    assert inside == seen(SHAPES[name])


def test_an_error_of_the_receiver_is_not_a_client_error() -> None:
    """It is raised and not reported as a fault of the client."""

    class Broken(Seen):
        def request_started(self, head: RequestHead) -> None:
            raise ZeroDivisionError

    for data in (HEALTH, DIRECT.request(UPGRADES["h2c"])):
        with pytest.raises(ZeroDivisionError):
            RequestParser(Broken()).feed(data)
