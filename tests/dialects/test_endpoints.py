"""The URL and the key of requests in each dialect."""

from __future__ import annotations

from typing import Any

import pytest

from streamglot import ConfigError
from streamglot.dialects import DIALECTS, dialect
from streamglot.dialects.interface import UpstreamEndpoint
from streamglot.events import StreamError
from streamglot.messages import Request

BEARER = {"authorization": "Bearer k"}


@pytest.mark.parametrize(
    ("name", "base", "stream", "wanted"),
    [
        ("openai_chat", "http://a/v1/", True, UpstreamEndpoint("http://a/v1/chat/completions", BEARER)),
        ("openai_responses", "http://a/v1", True, UpstreamEndpoint("http://a/v1/responses", BEARER)),
        ("openai_completions", "http://a/v1", True, UpstreamEndpoint("http://a/v1/completions", BEARER)),
        (
            "anthropic",
            "http://a/v1",
            True,
            UpstreamEndpoint("http://a/v1/messages", {"x-api-key": "k", "anthropic-version": "2023-06-01"}),
        ),
        (
            "gemini",
            "http://a/v1beta",
            True,
            UpstreamEndpoint("http://a/v1beta/models/m:streamGenerateContent?alt=sse", {"x-goog-api-key": "k"}),
        ),
        (
            "gemini",
            "http://a/v1beta",
            False,
            UpstreamEndpoint("http://a/v1beta/models/m:generateContent", {"x-goog-api-key": "k"}),
        ),
        ("ollama", "http://a", True, UpstreamEndpoint("http://a/api/chat", BEARER)),
        ("cohere", "http://a", True, UpstreamEndpoint("http://a/v2/chat", BEARER)),
        ("bedrock_converse", "http://a", True, UpstreamEndpoint("http://a/model/m/converse-stream", BEARER)),
        ("bedrock_converse", "http://a", False, UpstreamEndpoint("http://a/model/m/converse", BEARER)),
        ("bedrock_invoke", "http://a", True, UpstreamEndpoint("http://a/model/m/invoke-with-response-stream", BEARER)),
        ("bedrock_invoke", "http://a", False, UpstreamEndpoint("http://a/model/m/invoke", BEARER)),
        ("qwen_web", "http://a", True, UpstreamEndpoint("http://a/api/v2/chat/completions", BEARER)),
    ],
)
def test_addresses(name: str, base: str, stream: bool, wanted: UpstreamEndpoint) -> None:
    assert dialect(name).endpoint(base, Request("m", stream=stream), key="k") == wanted


@pytest.mark.parametrize("name", [entry.name for entry in DIALECTS.values() if entry.has_reader])
def test_without_a_key_there_is_no_header(name: str) -> None:
    headers = dialect(name).endpoint("http://a", Request("m")).headers
    assert not any("key" in header or header == "authorization" for header in headers)


def test_values_in_the_address_are_quoted() -> None:
    assert dialect("gemini").endpoint("http://a", Request("models/a b")).url == "http://a/models/a%20b:generateContent"
    assert dialect("bedrock_converse").endpoint("http://a", Request("arn:aws/x")).url == "http://a/model/arn%3Aaws%2Fx/converse"
    assert (
        dialect("anthropic").endpoint("http://a", Request("m"), version="2026-10-21").headers["anthropic-version"] == "2026-10-21"
    )
    asked = Request("m", extra={"chat_id": "c 1&x=y"})
    assert dialect("qwen_web").endpoint("http://a", asked).url == "http://a/api/v2/chat/completions?chat_id=c%201%26x%3Dy"


@pytest.mark.parametrize("name", ["agui", "vercel_ui"])
def test_a_dialect_of_clients_has_no_address(name: str) -> None:
    with pytest.raises(ConfigError):
        dialect(name).endpoint("http://a", Request("m"))


@pytest.mark.parametrize("name", [entry.name for entry in DIALECTS.values() if entry.has_writer])
def test_every_dialect_of_clients_has_an_error_body(name: str) -> None:
    body: dict[str, Any] = dialect(name).error_body(StreamError("code", "what went wrong", status=429))
    assert "what went wrong" in str(body)


STATUS_WORDS = {
    400: ("invalid_request_error", "invalid_request_error", "INVALID_ARGUMENT", "invalid_request"),
    401: ("authentication_error", "authentication_error", "UNAUTHENTICATED", "authentication"),
    403: ("permission_error", "permission_error", "PERMISSION_DENIED", "permission"),
    404: ("invalid_request_error", "not_found_error", "NOT_FOUND", "not_found"),
    413: ("invalid_request_error", "request_too_large", "INVALID_ARGUMENT", "too_large"),
    429: ("rate_limit_error", "rate_limit_error", "RESOURCE_EXHAUSTED", "rate_limit"),
    500: ("server_error", "api_error", "INTERNAL", "server"),
    503: ("server_error", "api_error", "UNAVAILABLE", "overloaded"),
    504: ("server_error", "timeout_error", "DEADLINE_EXCEEDED", "timeout"),
    529: ("server_error", "overloaded_error", "UNAVAILABLE", "overloaded"),
}
"""What a status is called in openai_*, anthropic, gemini and agui. The SDKs of the vendors make their exceptions from the status itself."""


def test_each_status_has_the_word_of_its_dialect() -> None:
    for status, (openai, anthropic, gemini, agui) in STATUS_WORDS.items():
        error = StreamError("odd", "no, sorry", status=status)
        bodies: dict[str, Any] = {entry.name: entry.error_body(error)["error"] for entry in DIALECTS.values() if entry.has_writer}
        assert {body if isinstance(body, str) else body["message"] for body in bodies.values()} == {"no, sorry"}
        for name in ("openai_chat", "openai_responses", "openai_completions"):
            assert (bodies[name]["type"], bodies[name]["code"]) == (openai, "odd"), (name, status)
        assert bodies["anthropic"]["type"] == anthropic, status
        assert (bodies["gemini"]["code"], bodies["gemini"]["status"]) == (status, gemini)
        assert bodies["agui"]["code"] == agui, status
