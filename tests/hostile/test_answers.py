"""The client always gets an answer, for any upstream response and any internal fault."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from each import each
from gateway.conftest import upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, body_of, path_of
from gateway.running import Running
from gateway.scenarios import PLAIN
from gateway.upstream import HostileUpstream, streamed, whole
from hostile.responses import Response
from hostile.targets import DIRECT, HOST, Attacker, on_another_server
from streamglot.gateway.app import Gateway
from streamglot.gateway.auth.access import Access
from streamglot.gateway.http.call import retry_after
from streamglot.gateway.observe.recording import Recording

ORIGIN = b"origin: http://localhost:3000\r\n"


@pytest.fixture(scope="module", params=["ours", "another"])
def port(request: pytest.FixtureRequest, gateway: Running, upstream: HostileUpstream) -> Iterator[int]:
    if request.param == "ours":
        yield gateway.port
    else:
        with on_another_server({"upstreams": upstreams_at(upstream.url, breaker={"failures": 1_000_000})}) as other:
            yield other


def post(port: int, path: str, body: dict[str, Any], *headers: bytes) -> Response:
    data = msgspec.json.encode(body)
    with Attacker(port) as one:
        head = f"POST {path} HTTP/1.1\r\n".encode() + HOST + b"connection: close\r\n" + b"".join(headers)
        one.send(head + b"content-length: %d\r\n\r\n" % len(data) + data)
        (response,) = one.responses()
    return response


@each(origin=[b"", ORIGIN])
@each(value=["inf", "-inf", "nan", "1e400", "1e300", "-5", "9" * 400, "soon", "0"])
@each(stream=[False, True])
def test_any_retry_after_is_an_answer(port: int, upstream: HostileUpstream, value: str, origin: bytes, stream: bool) -> None:
    upstream.scripts["retry"] = whole({"error": {"message": "busy"}}, 429, retry_after=value)
    response = post(port, DIRECT.path, body_of("openai_chat", "work/retry", stream), origin)
    assert response.status == 429
    if "retry-after" in response.headers:
        assert 1 <= int(response.headers["retry-after"]) <= 86_400


@pytest.mark.parametrize("origin", [b"", ORIGIN], ids=["no page", "a page"])
@pytest.mark.parametrize("status", [999, 600, 666, 799, 304, 101, 300, 418, 599])
def test_any_status_is_an_answer(port: int, upstream: HostileUpstream, status: int, origin: bytes) -> None:
    upstream.scripts["status"] = whole({"error": {"message": "odd"}}, status)
    response = post(port, DIRECT.path, body_of("openai_chat", "work/status"), origin)
    assert 400 <= response.status <= 599
    assert response.json()["error"]


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_a_field_name_with_line_ends_does_not_become_a_header(port: int, upstream: HostileUpstream, client: str) -> None:
    """If it is dropped, a header says so."""
    upstream.scripts["lines"] = streamed(PLAIN)
    for stream in (False, True):
        body = {**body_of(client, "work/lines", stream), "odd\r\nx-evil: 1": 1, "nul\x00": 1, "é\u2028": 1}
        for origin in (b"", ORIGIN):
            response = post(port, path_of(client, "work/lines", stream), body, origin)
            assert response.status in (200, 400)
            assert "x-evil" not in response.headers
            assert bool(origin) == ("access-control-allow-origin" in response.headers)


def test_a_request_id_with_anything_in_it(port: int, upstream: HostileUpstream) -> None:
    upstream.scripts["id"] = streamed(PLAIN)
    odd = b"x-request-id: \xff\xe9 \t" + b"a" * 1000 + b"\r\n"
    for path, body in ((DIRECT.path, body_of("openai_chat", "work/id")), ("/v1/embeddings", {"model": "no"}), ("/no", {})):
        response = post(port, path, body, odd)
        assert response.status in (200, 400, 404)
        assert response.headers["x-request-id"] == "a" * 128


@pytest.mark.parametrize("origin", [b"", ORIGIN], ids=["no page", "a page"])
def test_an_internal_error_is_answered(gateway: Running, monkeypatch: pytest.MonkeyPatch, origin: bytes) -> None:
    """The error may happen at any point of an exchange."""
    for part, name in ((Access, "screen"), (Access, "slot"), (Recording, "observers_for"), (Gateway, "exchange")):
        with monkeypatch.context() as patch:
            patch.setattr(part, name, lambda *_: 1 / 0)
            response = post(gateway.port, DIRECT.path, body_of("openai_chat", "replay", False), origin)
        assert response.status == 500, name
        assert b"division" not in response.body
    assert post(gateway.port, DIRECT.path, body_of("openai_chat", "replay", False), origin).status == 200


def test_retry_after_is_bounded_to_a_day() -> None:
    values = [retry_after(seconds) for seconds in (0, -1, 0.2, 1.4, 7, math.inf, -math.inf, math.nan, 1e300)]
    assert values == ["1", "1", "1", "1", "7", "86400", "1", "1", "86400"]
