"""Clients are told rate limits: those of the upstream, or those of their own key."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.conftest import upstreams_at
from gateway.dialect_clients import body_of, path_of
from gateway.running import Running, running
from gateway.scenarios import DONE, END, text_chunk, usage
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, sse, streamed, whole
from streamglot.gateway.auth.authenticator import digest_of

TOLD: dict[str, Any] = {
    "x_ratelimit_limit_requests": "60",
    "x_ratelimit_remaining_tokens": "149984",
    "x_ratelimit_reset_tokens": "6m0s",
    "anthropic_ratelimit_input_tokens_reset": "2026-01-01T00:00:00Z",
}
KEY = "told-my-limits"


def told(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if "ratelimit" in name}


@pytest.mark.parametrize("client", ["openai_chat", "anthropic", "ollama"])
def test_the_limits_of_the_upstream_reach_a_client_without_a_key(
    gateway: Running, upstream: HostileUpstream, client: str
) -> None:
    expected = {name.replace("_", "-"): value for name, value in TOLD.items()}
    answer = {"id": "c", "choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
    for number, (script, status) in enumerate(
        (
            (streamed(sse(text_chunk("Hello"), END, DONE), **TOLD), 200),
            (whole(answer, **TOLD, retry_after="7"), 200),
            (whole({"error": {"message": "slow down"}}, 429, **TOLD, retry_after="7"), 429),
        )
    ):
        upstream.scripts["told"] = script
        found = gateway.ask(path_of(client, ""), body_of(client, "work/told", stream=not number))
        assert found.status == status
        assert told(found.headers) == expected
        assert found.headers.get("retry-after") == ("7" if number else None)


def test_only_headers_of_limits_are_passed_on(gateway: Running, upstream: HostileUpstream) -> None:
    odd: dict[str, Any] = {f"x_ratelimit_{number}": "1" for number in range(40)}
    upstream.scripts["odd"] = streamed(
        sse(text_chunk("Hello"), END, DONE), x_ratelimit_long="x" * 999, x_other="1", set_cookie="a=b", **odd
    )
    headers = gateway.ask(path_of("openai_chat", ""), body_of("openai_chat", "work/odd")).headers
    assert len(told(headers)) == 24
    assert not {"x-ratelimit-long", "x-other", "set-cookie"} & headers.keys()


def keyed(upstream: HostileUpstream, **limits: Any) -> dict[str, Any]:
    key = {"name": "told", "hash": digest_of(KEY), **limits}
    return {"server": {"keys": [key]}, "upstreams": upstreams_at(upstream.url)}


def test_the_limits_of_the_key_are_told_in_the_dialect_of_the_client(upstream: HostileUpstream) -> None:
    upstream.scripts["limited"] = streamed(sse(text_chunk("Hello"), END, usage(10, 5), DONE), **TOLD)
    with running(keyed(upstream, requests_per_minute=3, tokens_per_minute=100_000)) as gateway:
        given = [
            gateway.ask(path_of(client, ""), body_of(client, "work/limited"), {"x-api-key": KEY})
            for client in ("openai_chat", "openai_responses", "anthropic", "openai_chat")
        ]
    assert [answer.status for answer in given] == [200, 200, 200, 429]
    first, second, third, refused = (told(answer.headers) for answer in given)
    assert first.keys() == {
        f"x-ratelimit-{name}-{what}" for name in ("limit", "remaining", "reset") for what in ("requests", "tokens")
    }
    assert (first["x-ratelimit-limit-requests"], first["x-ratelimit-remaining-requests"]) == ("3", "2")
    assert first["x-ratelimit-limit-tokens"] == "100000"
    assert 0 < int(first["x-ratelimit-remaining-tokens"]) < 100_000, "the request has reserved some"
    assert re.fullmatch(r"(\d+m)?[\d.]+s|\d+ms", first["x-ratelimit-reset-requests"])
    assert second["x-ratelimit-remaining-requests"] == "1"
    assert third["anthropic-ratelimit-requests-limit"] == "3"
    assert third["anthropic-ratelimit-requests-remaining"] == "0"
    reset = datetime.fromisoformat(third["anthropic-ratelimit-requests-reset"])
    assert reset > datetime(2026, 1, 1, tzinfo=UTC)
    assert not any(name.startswith("x-") for name in third)
    assert refused["x-ratelimit-remaining-requests"] == "0"


def test_a_key_without_limits_is_told_none(upstream: HostileUpstream) -> None:
    upstream.scripts["limited"] = streamed(sse(text_chunk("Hello"), END, DONE), **TOLD)
    with running(keyed(upstream, tokens_per_minute=9)) as gateway:
        headers = gateway.ask(path_of("ollama", ""), body_of("ollama", "work/limited"), {"x-api-key": KEY}).headers
        assert {name.rpartition("-")[2] for name in told(headers)} == {"tokens"}
    with running(keyed(upstream)) as gateway:
        assert not told(gateway.ask(path_of("ollama", ""), body_of("ollama", "work/limited"), {"x-api-key": KEY}).headers)


PAGES = [
    ("/v1/embeddings", {"model": "work/told", "input": "Hi"}),
    ("/v1/messages/count_tokens", {"model": "claude/told", "messages": [{"role": "user", "content": "Hi"}]}),
]
"""Pages whose requests are forwarded."""


@pytest.mark.parametrize(("path", "body"), PAGES)
def test_forwarded_pages_tell_the_limits_of_the_upstream(
    gateway: Running, upstream: HostileUpstream, path: str, body: dict[str, Any]
) -> None:
    body = {**body, "model": body["model"].replace("claude", UPSTREAM_NAMES["anthropic"])}
    expected = {name.replace("_", "-"): value for name, value in TOLD.items()}
    for script, status in (
        (whole({"data": [], "input_tokens": 5}, **TOLD, retry_after="7"), 200),
        (whole({"error": {"message": "slow down"}}, 429, **TOLD, retry_after="7"), 429),
    ):
        upstream.scripts["told"] = script
        found = gateway.ask(path, body)
        assert (found.status, told(found.headers), found.headers.get("retry-after")) == (status, expected, "7")


@pytest.mark.parametrize(
    ("path", "body", "remaining"),
    [
        (*PAGES[0], "x-ratelimit-remaining-requests"),
        (*PAGES[1], "anthropic-ratelimit-requests-remaining"),
        ("/v1/responses/input_tokens", {"model": "work/told", "input": "Hi"}, "x-ratelimit-remaining-requests"),
    ],
)
def test_forwarded_pages_tell_the_limits_of_the_key(
    upstream: HostileUpstream, path: str, body: dict[str, Any], remaining: str
) -> None:
    body = {**body, "model": body["model"].replace("claude", UPSTREAM_NAMES["anthropic"])}
    upstream.scripts["told"] = whole({"data": [], "input_tokens": 5}, **TOLD)
    with running(keyed(upstream, requests_per_minute=2)) as gateway:
        given = [gateway.ask(path, body, {"x-api-key": KEY}) for _ in range(3)]
    assert [answer.status for answer in given] == [200, 200, 429]
    assert [answer.headers.get(remaining) for answer in given] == ["1", "0", "0"]
    assert {len(told(answer.headers)) for answer in given} == {3}, "nothing of the upstream"
