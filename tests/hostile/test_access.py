"""Which names, pages and paths a stranger can use: DNS rebinding, cross-origin requests, pages about the gateway itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.running import Running, running
from hostile.responses import Response
from hostile.targets import TARGETS, Attacker, Target, on_another_server, statuses
from streamglot import ConfigError
from streamglot.config import load
from streamglot.gateway.auth.authenticator import digest_of
from streamglot.gateway.http.origins import AllowedHosts

KEYS = [{"name": "a", "hash": digest_of("sesame")}]
OWN = ["localhost", "localhost:8484", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:8484", "127.1.2.3", "[::1]:8484", "app.localhost:1"]
FOREIGN = [
    "evil.example",
    "evil.example:8484",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil-localhost",
    "[::1].evil.example",
    "localhost:80@evil.example",
    "localhost:evil.example",
    "evil.example:80:80",
    "192.168.1.1",
    "0.0.0.0",
    "[::2]",
    "x",
]
PATHS = ("/turns", "/v1/models", "/health", "/", "/docs")


@pytest.fixture(scope="module", params=["ours", "another"])
def port(request: pytest.FixtureRequest, gateway: Running) -> Iterator[int]:
    """A gateway without keys, on our server and on another one."""
    if request.param == "ours":
        yield gateway.port
    else:
        with on_another_server({}) as other:
            yield other


def asked(port: int, request: bytes) -> Response:
    with Attacker(port) as one:
        one.send(request)
        (response,) = one.responses()
    return response


def get(port: int, path: str, *headers: str) -> Response:
    return asked(port, "\r\n".join([f"GET {path} HTTP/1.1", *headers, "connection: close", "", ""]).encode())


@pytest.mark.parametrize("host", OWN)
def test_names_of_this_machine_are_answered(port: int, host: str) -> None:
    assert get(port, "/v1/models", f"host: {host}").status == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_foreign_host_names_are_refused(port: int, host: str) -> None:
    for path in PATHS:
        response = get(port, path, f"host: {host}")
        assert response.status in (403, 400), "400 where the other server finds that it is no name at all"
        if response.status == 403:
            assert response.code == "host_not_allowed"
            assert "allowed_hosts" in response.json()["error"]["message"]


@pytest.mark.parametrize("target", TARGETS)
def test_foreign_host_names_are_refused_for_requests_too(port: int, target: str) -> None:
    one = TARGETS[target]
    body = b"host: evil.example\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(one.body) + one.body
    assert asked(port, one.line() + body).code == "host_not_allowed"


def test_a_name_in_the_target_counts(gateway: Running) -> None:
    """The host in the target takes precedence over the header."""
    assert get(gateway.port, "http://evil.example/turns", "host: localhost").code == "host_not_allowed"
    assert get(gateway.port, "http://localhost@evil.example/turns", "host: localhost").code == "host_not_allowed"
    assert get(gateway.port, "http://localhost:80/health", "host: evil.example").status == 200
    assert get(gateway.port, "http://[::1]:80/health?x=1", "host: evil.example").status == 200


def test_a_page_of_this_machine_gets_no_further_under_a_foreign_name(gateway: Running) -> None:
    response = get(gateway.port, "/v1/models", "host: evil.example", "origin: http://localhost:3000")
    assert response.code == "host_not_allowed"
    assert "access-control-allow-origin" not in response.headers


def test_names_can_be_allowed() -> None:
    with running({"server": {"allowed_hosts": ["host.docker.internal", "Box.Example:8484"]}}) as gateway:
        assert get(gateway.port, "/v1/models", "host: host.docker.internal:8484").status == 200
        assert get(gateway.port, "/v1/models", "host: box.example").status == 200
        assert get(gateway.port, "/v1/models", "host: evil.example").status == 403
    assert AllowedHosts(["*"]).allows("anything.example")


def test_with_keys_any_host_name_is_accepted() -> None:
    """A page has no key, and a gateway behind a proxy has many names."""
    with running({"server": {"keys": KEYS}}) as gateway:
        assert get(gateway.port, "/v1/models", "host: gateway.example", "x-api-key: sesame").status == 200
        assert get(gateway.port, "/v1/models", "host: gateway.example").status == 401


def test_an_unauthenticated_request_is_refused_before_its_body_is_read(gateway: Running, target: Target) -> None:
    head = target.line() + b"host: evil.example\r\nexpect: 100-continue\r\ncontent-length: 99999\r\n\r\n"
    assert statuses(gateway, head) == [403]


# --- pages about the gateway itself


def test_pages_are_closed_outside_this_machine() -> None:
    with running({"server": {"keys": KEYS, "host": "0.0.0.0"}}) as gateway:
        for path in ("/metrics", "/ready"):
            assert get(gateway.port, path, "host: gateway.example").code == "missing_api_key"
            assert get(gateway.port, path, "host: gateway.example", "authorization: Bearer sesame").status == 200
        for path in ("/health", "/", "/web/js/app.js"):
            assert get(gateway.port, path, "host: gateway.example").status == 200, "it says nothing about the gateway"


def test_pages_are_open_on_this_machine() -> None:
    with running({"server": {"keys": KEYS}}) as gateway:
        for path in ("/metrics", "/ready"):
            assert get(gateway.port, path, "host: localhost").status == 200


def test_pages_are_closed_to_other_names_of_this_machine() -> None:
    """A web page that points its own name to this machine has no key."""
    with running({"server": {"keys": KEYS}}) as gateway:
        for path in ("/metrics", "/ready"):
            assert get(gateway.port, path, "host: evil.example").code == "missing_api_key"
            assert get(gateway.port, path, "host: evil.example", "authorization: Bearer sesame").status == 200
    with running({"server": {"keys": KEYS, "allowed_hosts": ["gateway.example"]}}) as gateway:
        assert get(gateway.port, "/metrics", "host: gateway.example").status == 200


def test_pages_can_be_opened_and_closed() -> None:
    with running({"server": {"keys": KEYS, "host": "0.0.0.0", "public_paths": ["/metrics"]}}) as gateway:
        assert get(gateway.port, "/metrics", "host: x").status == 200
        assert get(gateway.port, "/ready", "host: x").status == 401
    with running({"server": {"keys": KEYS, "public_paths": []}}) as gateway:
        assert get(gateway.port, "/metrics", "host: x").status == 401


def test_only_those_pages_can_be_opened() -> None:
    with pytest.raises(ConfigError, match="'/turns'; it can list /, /metrics, /ready"):
        load(environment={"STREAMGLOT_SERVER__PUBLIC_PATHS": '["/turns"]', "HOME": "/nowhere"})
