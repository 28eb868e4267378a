"""Names of models that no upstream serves: the fallback, names by pattern, and refusals that no agent repeats."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.conftest import upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, asked, body_of, path_of
from gateway.running import running
from gateway.scenarios import PLAIN
from gateway.upstream import HostileUpstream, streamed
from streamglot import ConfigError
from streamglot.upstream.routing.routes import Route, Routes, Target
from streamglot.upstream.settings import Upstream

FINE = streamed(PLAIN)
SIDE_MODELS = ("gemini-3-flash-preview", "claude-haiku-4-5-20251001", "haiku", "gpt-5.5")


def one_model(url: str, models: object, **server: Any) -> dict[str, Any]:
    return {"server": server, "upstreams": {"mine": {**upstreams_at(url)["work"], "models": models}}}


@pytest.mark.parametrize("name", CLIENT_DIALECTS)
def test_the_only_model_answers_for_unknown_names(upstream: HostileUpstream, name: str) -> None:
    upstream.scripts["theirs"] = FINE
    with running(one_model(upstream.url, {"ours": "theirs"})) as gateway:
        for model in SIDE_MODELS:
            answer = gateway.ask(path_of(name, model), body_of(name, model))
            assert answer.status == 200
            assert answer.headers["x-streamglot-model"] == "ours"
        known = gateway.ask(path_of(name, "ours"), body_of(name, "ours"))
        assert "x-streamglot-model" not in known.headers


@pytest.mark.parametrize("models", [["a", "b"], {"a": "x", "b-*": "y"}, ["a", "b-?"]])
def test_unknown_names_are_refused_where_several_models_are_served(upstream: HostileUpstream, models: object) -> None:
    with running(one_model(upstream.url, models)) as gateway:
        assert asked(gateway, "openai_chat", "nothing").status == 404


def test_the_fallback_can_be_named_or_turned_off(upstream: HostileUpstream) -> None:
    upstream.scripts["b"] = FINE
    with running(one_model(upstream.url, ["a", "b"], fallback_model="b")) as gateway:
        assert asked(gateway, "openai_chat", "nothing").text == "Hello world"
    with running(one_model(upstream.url, ["a"], fallback_model="none")) as gateway:
        assert asked(gateway, "openai_chat", "nothing").status == 404


def test_a_fallback_that_no_upstream_serves_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"server\.fallback_model is 'c'"):
        Routes([Upstream(name="up", models=["a"])], [], fallback_model="c")


def test_a_key_is_checked_against_the_fallback(upstream: HostileUpstream) -> None:
    upstream.scripts["ours"] = FINE
    environment = {"KEY_A": "sk-a-0123456789abcdef", "KEY_B": "sk-b-0123456789abcdef"}
    keys = [{"name": "a", "key_env": "KEY_A", "models": ["ours"]}, {"name": "b", "key_env": "KEY_B", "models": ["haiku"]}]
    with running(one_model(upstream.url, ["ours"], keys=keys), environment=environment) as gateway:
        statuses = [
            gateway.ask("/v1/messages", body_of("anthropic", "haiku"), {"x-api-key": key}).status for key in environment.values()
        ]
    assert statuses == [200, 403]


def test_gemini_clients_get_a_refusal_that_they_do_not_repeat(upstream: HostileUpstream) -> None:
    """gemini-cli sends a request again and again, without a pause, when its model is answered with 404."""
    with running(one_model(upstream.url, ["a", "b"])) as gateway:
        for stream in (True, False):
            answer = gateway.ask(path_of("gemini", "gemini-3-flash-preview", stream), body_of("gemini", "", stream))
            assert answer.status == 400
            assert answer.json()["error"]["code"] == 400
            assert "gemini-3-flash-preview" in answer.json()["error"]["message"]


def test_a_table_of_models_may_have_patterns() -> None:
    upstream = Upstream(name="up", models={"claude-haiku-*": "small", "claude-*": "large", "claude-haiku-x": "exact"})
    assert [upstream.model_for(name) for name in ("claude-haiku-4", "claude-opus", "claude-haiku-x", "gpt")] == [
        "small",
        "large",
        "exact",
        None,
    ]
    assert upstream.listed == ["claude-haiku-x"]


def test_a_route_is_an_alias_by_pattern_and_goes_before_the_fallback() -> None:
    upstream = Upstream(name="up", models=["large", "small"])
    routes = Routes([upstream], [Route(["*haiku*"], [Target("up", "small")])], fallback_model="large")
    assert [routes.find(name, lambda: 0.0)[0].model for name in ("claude-haiku-4-5", "claude-opus")] == ["small", "large"]
