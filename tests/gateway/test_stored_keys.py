"""Keys in the store: they are accepted within seconds, until they are revoked or their budget is used up."""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.archived import database, inside, keep, store_of, with_store
from gateway.dialect_clients import body_of
from gateway.official import USER
from gateway.running import Answer, Running, running
from store.turns import answer, ask, user
from streamglot import ConfigError, RequestError
from streamglot.config import Config, KeyConfig, LoadedConfig, ServerConfig, StoreConfig
from streamglot.gateway.app import Gateway
from streamglot.gateway.auth.authenticator import Authenticator, StoredCallers, digest_of, refusal
from streamglot.store import BudgetExceeded, Spent, Store, StoredKey, StoreUnavailable
from waiting import until

CHAT = "/v1/chat/completions"


def add(url: str, name: str, **limits: Any) -> str:
    """As ``streamglot keys add`` does it: in a process of its own."""
    return with_store(url, lambda store: store.keys.add(name, **limits))[1]


def asked(gateway: Running, secret: str = "", model: str = "replay") -> Answer:
    return gateway.ask(CHAT, body_of("openai_chat", model), {"x-api-key": secret} if secret else {})


def test_new_and_revoked_keys_take_effect_without_a_restart(tmp_path: Path) -> None:
    url = database(tmp_path)
    with running({"store": {"url": url}}) as gateway:
        assert asked(gateway).status == 200  # this machine, and no keys yet
        secret = add(url, "me", models=["replay", "re*"])
        until(lambda: asked(gateway).status == 401)
        assert asked(gateway, secret).status == 200
        assert asked(gateway, "sg-another").json()["error"]["code"] == "invalid_api_key"
        assert asked(gateway, secret, "other").json()["error"]["code"] == "model_not_allowed"
        second = add(url, "you")
        until(lambda: asked(gateway, second).status == 200)
        assert with_store(url, lambda store: store.keys.revoke("you"))
        until(lambda: asked(gateway, second).status == 401)
        assert asked(gateway, secret).status == 200
        assert with_store(url, lambda store: store.keys.revoke("me"))
        until(lambda: asked(gateway, secret).status == 401)
        assert asked(gateway).status == 401  # authentication stays on after the last key was revoked
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret).models.list()
        assert secret not in str(gateway.lines)


def test_limits_are_enforced(tmp_path: Path) -> None:
    url = database(tmp_path)
    secret = add(url, "slow", requests_per_minute=2, concurrent=1)
    with running({"store": {"url": url}}) as gateway:
        answers = [asked(gateway, secret) for _ in range(3)]
        assert [found.status for found in answers] == [200, 200, 429]
        caller = gateway.gateway.access.authenticator.admit({"x-api-key": secret})
        assert caller is not None
        assert (caller.name, caller.concurrent) == ("slow", 1)
        store = store_of(gateway)
        inside(gateway, gateway.gateway.access.stored.refresh(store))
        assert gateway.gateway.access.authenticator.admit({"x-api-key": secret}) is caller  # what it did is not forgotten
        assert asked(gateway, secret).status == 429


def test_budgets_are_enforced(tmp_path: Path) -> None:
    url = database(tmp_path)
    secret = add(url, "spender", budget_tokens=100, budget_seconds=86_400.0)
    other = add(url, "other", budget_cost=1.0)

    async def spend(store: Store) -> None:
        for number in range(2):
            await keep(store, ask(user(f"{number}")), answer("x"), caller="spender", cost=5.0)

    with_store(url, spend)
    with running({"store": {"url": url}}) as gateway:
        assert asked(gateway, secret).status == 200  # 80 of 100
        with_store(url, spend)
        until(lambda: asked(gateway, secret).status == 429)
        refused = asked(gateway, secret)
        error = refused.json()["error"]
        assert error["code"] == "budget_exceeded"
        assert re.search(r"used \d{3} of the 100 tokens that it may use in 1 day; it renews at 20\d\d-", error["message"])
        assert 80_000 < int(refused.headers["retry-after"]) <= 86_400
        assert refused.headers["x-should-retry"] == "false"
        with pytest.raises(openai.RateLimitError, match="may use in 1 day"):
            openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret).chat.completions.create(model="replay", messages=[USER])
        assert gateway.ask("/turns", headers={"x-api-key": secret}).status == 200  # it may still read its own turns
        assert asked(gateway, other).status == 200
        with_store(url, lambda store: keep(store, ask(user("x")), answer("y"), caller="other", cost=1.5))
        until(lambda: asked(gateway, other).status == 429)
        refused = asked(gateway, other)
        assert "1.50 of the 1.00 that it may cost; it does not renew" in refused.json()["error"]["message"]
        assert "retry-after" not in refused.headers


@pytest.mark.parametrize(
    ("seconds", "words"), [(3_600.0, "1 hour"), (172_800.0, "2 days"), (90.0, "90 seconds"), (0.5, "0.5 seconds")]
)
def test_refusals_name_the_limit_and_the_time(seconds: float, words: str) -> None:
    key = StoredKey(id="1", name="me", budget_cost=1.0, budget_tokens=10, budget_seconds=seconds)
    over = BudgetExceeded(key=key, spent=Spent(turns=1, tokens=12, cost=1.25), renews=1_767_225_600.0)
    error = refusal(over)
    assert error.message == (
        f"the key 'me' has used 1.25 of the 1.00 that it may cost in {words} and 12 of the 10 tokens that it may use in {words}; "
        "it renews at 2026-01-01 00:00:00 UTC"
    )
    assert (error.status, error.detail) == (429, {"retry_after": 1.0})


# --- a store that does not answer, a configuration that is read again


def test_a_store_that_does_not_answer_leaves_keys_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = database(tmp_path)
    secret = add(url, "me")
    with running({"store": {"url": url}}) as gateway:
        failed: list[int] = []

        async def gone() -> Any:
            failed.append(1)
            raise StoreUnavailable("the database does not answer")

        monkeypatch.setattr(store_of(gateway).keys, "changes", gone)
        until(lambda: len(failed) > 1)
        assert asked(gateway, secret).status == 200
        assert asked(gateway).status == 401

        async def broken() -> Any:
            raise ValueError("a fault")

        monkeypatch.setattr(store_of(gateway).keys, "changes", broken)
        assert gateway.log_line(lambda line: line.get("event") == "store_fault")["message"] == "ValueError: a fault"
        monkeypatch.undo()
        second = add(url, "you")
        until(lambda: asked(gateway, second).status == 200)


def test_keys_of_configuration_and_store_are_accepted(tmp_path: Path) -> None:
    url = database(tmp_path)
    secret = add(url, "stored")
    with running({"store": {"url": url}, "server": {"keys": [{"name": "set", "hash": digest_of("sesame")}]}}) as gateway:
        assert [asked(gateway, key).status for key in (secret, "sesame", "wrong")] == [200, 200, 401]
        gateway.gateway.lifecycle.apply(gateway.gateway.lifecycle.loaded)
        assert [asked(gateway, key).status for key in (secret, "sesame", "wrong")] == [200, 200, 401]


# --- a gateway that other machines can reach


async def _enter(config: Config) -> Gateway:
    gateway = Gateway(LoadedConfig(config), {}, lambda line: None)
    await gateway.check()
    async with gateway.running():
        return gateway


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_gateway_outside_loopback_needs_a_stored_or_configured_key(tmp_path: Path, host: str) -> None:
    url = database(tmp_path)
    config = Config(server=ServerConfig(host=host, discover=False), store=StoreConfig(url=url))
    with pytest.raises(ConfigError, match=r"without keys.*streamglot keys add"):
        asyncio.run(_enter(config))
    configured = Config(
        server=ServerConfig(host=host, discover=False, keys=[KeyConfig(name="a", hash=digest_of("k"))]),
        store=StoreConfig(url=url),
    )
    asyncio.run(_enter(configured))
    secret = add(url, "me")
    gateway = asyncio.run(_enter(config))
    caller = gateway.access.authenticator.admit({"x-api-key": secret})
    assert caller is not None
    with_store(url, lambda store: store.keys.revoke("me"))
    with pytest.raises(ConfigError, match="without keys"):
        asyncio.run(_enter(config))


def test_remote_callers_are_refused_before_the_store_was_read() -> None:
    authenticator = Authenticator(ServerConfig(host="0.0.0.0"), {}, StoredCallers())
    with pytest.raises(Exception, match="asks for a key"):
        authenticator.admit({})
    with pytest.raises(Exception, match="not known"):
        authenticator.admit({"x-api-key": hashlib.sha256(b"").hexdigest()})


def test_a_stored_key_names_the_tools_that_it_may_use(tmp_path: Path) -> None:
    url = database(tmp_path)
    some, none, free = add(url, "some", tools=["time"]), add(url, "none", tools=[]), add(url, "free")
    with running({"store": {"url": url}, "tools": {"enabled": ["time", "calculator"]}}) as gateway:

        def status(secret: str, tool: str) -> int:
            return gateway.ask(CHAT, body_of("openai_chat", "replay"), {"x-api-key": secret, "x-streamglot-tools": tool}).status

        until(lambda: asked(gateway, free).status == 200)
        assert [status(some, "time"), status(some, "calculator")] == [200, 403]
        assert [status(none, "time"), status(none, "")] == [403, 200]
        assert status(free, "calculator") == 200
    with pytest.raises(RequestError, match="a pattern of tools must consist of visible characters"):
        add(url, "odd", tools=["\n"])
