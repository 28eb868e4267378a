"""Authentication, limits of keys, and secrets that must never leak."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors, types

from gateway.conftest import upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, asked, body_of, path_of, understood
from gateway.official import USER
from gateway.raw import RawClient
from gateway.running import Running, running
from gateway.scenarios import PLAIN, text_chunk
from gateway.upstream import Hang, HostileUpstream, sse, streamed, unfinished, whole
from store.turns import asynchronous
from streamglot import ConfigError
from streamglot.config import Config, KeyConfig, LoadedConfig, ServerConfig, StoreConfig
from streamglot.gateway.app import Gateway
from streamglot.gateway.auth.authenticator import Caller, digest_of

KEY = "sesame-open-up"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def locked(upstream: HostileUpstream) -> Iterator[Running]:
    keys = [
        {"name": "all", "hash": f"sha256:{digest_of(KEY)}"},
        {"name": "some", "hash": digest_of("only-replay"), "models": ["replay", "re*"]},
        {"name": "env", "key_env": "DOOR_KEY"},
    ]
    with running(
        {"server": {"keys": keys}, "upstreams": upstreams_at(upstream.url)}, environment={"DOOR_KEY": "from-the-hall"}
    ) as gateway:
        yield gateway


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer {KEY}"},
        {"x-api-key": KEY},
        {"x-goog-api-key": KEY},
        {"api-key": KEY},
        {"x-streamglot-key": KEY, "authorization": "Bearer another"},
        {"authorization": "Bearer from-the-hall"},
    ],
)
@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_keys_are_accepted_in_every_header(locked: Running, client: str, headers: dict[str, str]) -> None:
    assert locked.ask(path_of(client, "replay"), body_of(client, "replay"), headers).status == 200


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}, {"authorization": f"Basic {KEY}"}]
)
@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_requests_without_a_valid_key_are_refused(locked: Running, client: str, headers: dict[str, str]) -> None:
    found = understood(client, locked.ask(path_of(client, "replay"), body_of(client, "replay"), headers))
    assert found.status == 401
    assert found.error is not None
    assert "wrong" not in found.error
    assert locked.ask("/v1/models", headers=headers).status == 401
    assert locked.ask("/v1/embeddings", {"model": "m"}, headers).status == 401
    assert locked.ask("/v1/messages/count_tokens", {"model": "m"}, headers).status == 401
    assert locked.ask("/health", headers=headers).status == 200


def test_the_key_in_the_address(locked: Running) -> None:
    path = "/v1beta/models/replay:generateContent?key="
    assert locked.ask(path + KEY, body_of("gemini", "replay")).status == 200
    assert locked.ask(path + "wrong", body_of("gemini", "replay")).status == 401
    assert locked.ask(f"/v1beta/models?key={KEY}").status == 200


def test_official_clients_authenticate(locked: Running) -> None:
    assert openai.OpenAI(base_url=f"{locked.url}/v1", api_key=KEY).chat.completions.create(model="replay", messages=[USER]).id
    assert anthropic.Anthropic(base_url=locked.url, api_key=KEY).messages.create(model="replay", max_tokens=9, messages=[USER]).id
    bearer = anthropic.Anthropic(base_url=locked.url, auth_token=KEY)
    assert bearer.messages.create(model="replay", max_tokens=9, messages=[USER]).id
    google = genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=locked.url))
    assert google.models.generate_content(model="replay", contents="q").text == "You said: q"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong").models.list()
    wrong = genai.Client(api_key="wrong", http_options=types.HttpOptions(base_url=locked.url))
    with pytest.raises(errors.ClientError):
        wrong.models.generate_content(model="replay", contents="q")


def test_a_key_may_use_its_models_only(locked: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["closed"] = streamed(PLAIN)
    assert asked(locked, "openai_chat", "replay", x_api_key="only-replay").status == 200
    for model in ("work/closed", "closed", ""):
        assert asked(locked, "openai_chat", model, x_api_key="only-replay").status == 403
    assert not upstream.requests("closed")
    assert locked.ask("/v1/models/closed", headers={"x-api-key": "only-replay"}).status == 403
    assert locked.ask("/v1/embeddings", {"model": "closed", "input": "q"}, {"x-api-key": "only-replay"}).status == 403
    assert [one["id"] for one in locked.ask("/v1/models", headers={"x-api-key": "only-replay"}).json()["data"]] == ["replay"]
    for field in ("model", "name"):
        assert locked.ask("/api/show", {field: "replay"}, {"x-api-key": "only-replay"}).status == 200
        assert locked.ask("/api/show", {field: "work/closed"}, {"x-api-key": "only-replay"}).status == 403


def test_requests_per_minute() -> None:
    keys = [{"name": "slow", "hash": digest_of(KEY), "requests_per_minute": 1}]
    with running({"server": {"keys": keys}}) as gateway:
        answers = [gateway.ask(CHAT, body_of("openai_chat", "replay"), {"x-api-key": KEY}) for _ in range(2)]
        assert [answer.status for answer in answers] == [200, 429]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
        with pytest.raises(openai.RateLimitError):
            openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0).chat.completions.create(
                model="replay", messages=[USER]
            )


def test_streams_at_once(upstream: HostileUpstream) -> None:
    upstream.scripts["endless"] = unfinished(sse(text_chunk("Hello")), end=Hang())
    keys = [{"name": "one", "hash": digest_of(KEY), "concurrent": 1}]
    with running({"server": {"keys": keys}, "upstreams": upstreams_at(upstream.url)}) as gateway:
        client = RawClient(gateway.port)
        client.post(CHAT, body_of("openai_chat", "work/endless"), {"x-api-key": KEY})
        client.read_until(b"Hello")
        refused = gateway.ask(CHAT, body_of("openai_chat", "replay"), {"x-api-key": KEY})
        client.hang_up()
    error = refused.json()["error"]
    assert (refused.status, error["code"]) == (429, "too_many_streams")
    assert "limit of 1 concurrent requests; wait until one of them ends, or ask for a larger `concurrent`" in error["message"]


def test_tokens_per_minute() -> None:
    keys = [{"name": "small", "hash": digest_of(KEY), "tokens_per_minute": 5}]
    with running({"server": {"keys": keys}}) as gateway:
        body = {"model": "replay", "messages": [{"role": "user", "content": "one two three four five six"}]}
        first = gateway.ask(CHAT, body, {"x-api-key": KEY, "x-request-id": "t1"})
        gateway.line("t1")
        assert first.status == 200
        second = gateway.ask(CHAT, body, {"x-api-key": KEY})
        assert second.status == 429
        assert "tokens per minute" in second.json()["error"]["message"]


@asynchronous
async def test_rate_limits_recover_after_a_minute() -> None:
    caller = Caller(KeyConfig(name="a", requests_per_minute=60))
    for _ in range(60):
        await caller.check("m", 100.0)
    with pytest.raises(Exception, match="requests per minute"):
        await caller.check("m", 100.0)
    await caller.check("m", 101.1)
    with pytest.raises(Exception, match="requests per minute"):
        await caller.check("m", 101.2)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::", ""])
def test_a_gateway_outside_loopback_needs_keys(host: str) -> None:
    with pytest.raises(ConfigError, match="without keys"):
        Gateway(LoadedConfig(Config(server=ServerConfig(host=host), store=StoreConfig(url="none"))), {})
    Gateway(LoadedConfig(Config(server=ServerConfig(host=host, keys=[KeyConfig(name="a", hash=digest_of(KEY))]))), {})


@pytest.mark.parametrize(
    "key", [{"name": "a"}, {"name": "a", "hash": "short"}, {"name": "a", "hash": "x" * 64}, {"name": "a", "key_env": "UNSET"}]
)
def test_an_invalid_key_setting_is_refused(key: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'a'"):
        Gateway(LoadedConfig(Config(server=ServerConfig(keys=[KeyConfig(**key)]))), {})


# --- what never comes out

SECRET = "sk-very-secret-0123456789abcdef"


@pytest.fixture(scope="module")
def secretive(upstream: HostileUpstream) -> Iterator[Running]:
    upstreams = upstreams_at(upstream.url, key=SECRET, headers={"x-extra-token": "another-secret-value"})
    upstreams["passing"] = {**upstreams["work"], "pass_key": True, "headers": {}}
    with running({"upstreams": upstreams}) as gateway:
        yield gateway


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_errors_contain_no_secrets(secretive: Running, upstream: HostileUpstream, client: str) -> None:
    errors = {
        "error": {"message": f"wrong key {SECRET}, token another-secret-value", "type": "invalid_request_error", "detail": SECRET}
    }
    upstream.scripts["telling"] = whole(errors, 401)
    upstream.scripts["telling-late"] = streamed(sse(text_chunk("Hello"), {"error": {"message": f"wrong key {SECRET}"}}))
    for model in ("telling", "telling-late"):
        answer = secretive.ask(path_of(client, f"work/{model}"), body_of(client, f"work/{model}"))
        assert SECRET.encode() not in answer.body
        assert b"another-secret-value" not in answer.body
        assert all(SECRET not in value for value in answer.headers.values())
        masks = "\u2022".encode(), b"\\u2022", b"*" * len(SECRET)
        assert any(mask in answer.body for mask in masks)
    assert upstream.requests("telling")[0].headers["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in str(secretive.lines)
    assert "another-secret-value" not in str(secretive.lines)


def test_pages_show_no_secrets(secretive: Running) -> None:
    for path in ("/", "/ready", "/metrics", "/openapi.json", "/docs", "/v1/models"):
        page = secretive.ask(path).body
        assert SECRET.encode() not in page
        assert b"another-secret" not in page


def test_the_clients_own_key_goes_to_the_upstream_that_wants_it(secretive: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["passed"] = streamed(PLAIN)
    for headers in ({"authorization": "Bearer client-own-key"}, {"x-api-key": "client-own-key"}):
        secretive.ask(CHAT, body_of("openai_chat", "passing/passed"), headers)
    secretive.ask(CHAT, body_of("openai_chat", "work/passed"), {"authorization": "Bearer client-own-key"})
    assert [seen.headers.get("authorization") for seen in upstream.requests("passed")] == [
        "Bearer client-own-key",
        "Bearer client-own-key",
        f"Bearer {SECRET}",
    ]
    upstream.scripts["passed-wrong"] = whole({"error": {"message": "no such key: client-own-key"}}, 401)
    answer = secretive.ask(CHAT, body_of("openai_chat", "passing/passed-wrong"), {"authorization": "Bearer client-own-key"})
    assert b"client-own-key" not in answer.body


def test_a_key_of_ours_is_not_passed_on(upstream: HostileUpstream) -> None:
    upstream.scripts["kept"] = streamed(PLAIN)
    upstreams = {"passing": {**upstreams_at(upstream.url)["work"], "pass_key": True}}
    with running({"server": {"keys": [{"name": "a", "hash": digest_of(KEY)}]}, "upstreams": upstreams}) as gateway:
        assert gateway.ask(CHAT, body_of("openai_chat", "kept"), {"authorization": f"Bearer {KEY}"}).status == 200
        both = {"x-streamglot-key": KEY, "authorization": "Bearer client-own-key"}
        assert gateway.ask(CHAT, body_of("openai_chat", "kept"), both).status == 200
    assert [seen.headers.get("authorization") for seen in upstream.requests("kept")] == [None, "Bearer client-own-key"]


def test_a_secret_in_an_address_is_not_shown(upstream: HostileUpstream) -> None:
    base = upstream.url.replace("127.0.0.1", "127.0.0.2").replace("://", f"://user:{SECRET}@")
    upstream.scripts["addressed"] = [Hang()]
    limits = {"connect": 0.5, "first_byte": 0.5}  # whichever passes first
    with running({"upstreams": {"mine": {"base_url": f"{base}/v1", "attempts": 1, "timeouts": limits}}}) as gateway:
        answer = gateway.ask(CHAT, body_of("openai_chat", "mine/addressed"))
        assert answer.status >= 500
        assert SECRET.encode() not in answer.body
        assert SECRET not in str(gateway.lines)
        assert SECRET.encode() not in gateway.ask("/").body
