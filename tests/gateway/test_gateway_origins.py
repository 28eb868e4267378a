"""Requests of web pages: allowed origins pass, others are refused."""

from __future__ import annotations

import pytest

from gateway.dialect_clients import body_of
from gateway.running import Running, running
from streamglot.gateway.auth.authenticator import digest_of
from streamglot.gateway.http.origins import CORS

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1:5173", "https://localhost", "http://[::1]:80"])
def test_pages_of_this_machine_are_allowed(gateway: Running, origin: str) -> None:
    for path, body in ((CHAT, body_of("openai_chat", "replay")), ("/v1/models", None), ("/health", None)):
        answer = gateway.ask(path, body, {"origin": origin})
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["vary"] == "origin"


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "http://localhost.evil.example",
        "http://127.0.0.1.evil.example:80",
        "http://evil.example:8484",
    ],
)
def test_pages_of_other_origins_are_refused(gateway: Running, origin: str) -> None:
    headers = {"origin": origin, "host": origin.partition("://")[2]}  # a name that a stranger points to this machine
    for path, body in ((CHAT, body_of("openai_chat", "replay")), ("/v1/models", None)):
        answer = gateway.ask(path, body, headers)
        assert answer.status == 403
        assert answer.json()["error"]["code"] == "origin_not_allowed"
        assert "access-control-allow-origin" not in answer.headers
    assert gateway.ask(CHAT, None, {**headers, "access-control-request-method": "POST"}, method="OPTIONS").status == 403


def test_a_cors_preflight_is_answered(gateway: Running) -> None:
    headers = {
        "origin": "http://localhost:3000",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
        "access-control-request-private-network": "true",
    }
    for path in ("/agui", "/ui", CHAT):
        answer = gateway.ask(path, None, headers, method="OPTIONS")
        assert answer.status == 204
        assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["access-control-allow-private-network"] == "true"


def test_configured_origins_are_allowed() -> None:
    with running({"server": {"origins": ["https://app.example/"]}}) as gateway:
        assert gateway.ask(CHAT, body_of("openai_chat", "replay"), {"origin": "https://app.example"}).status == 200
        assert gateway.ask(CHAT, body_of("openai_chat", "replay"), {"origin": "https://other.example"}).status == 403


def test_an_error_can_be_read_by_the_page(gateway: Running) -> None:
    answer = gateway.ask(CHAT, b"nonsense", {"origin": "http://localhost:3000"})
    assert answer.status == 400
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"


def test_with_keys_the_own_origin_is_allowed() -> None:
    keys = [{"name": "a", "hash": digest_of("sesame")}]
    with running({"server": {"keys": keys}}) as gateway:
        own = {"origin": "https://gateway.example", "host": "gateway.example"}
        assert gateway.ask(CHAT, body_of("openai_chat", "replay"), {**own, "x-api-key": "sesame"}).status == 200
        assert gateway.ask(CHAT, body_of("openai_chat", "replay"), own).status == 401
    assert CORS(["*"], lambda: False).allows("https://anything.example", "")
