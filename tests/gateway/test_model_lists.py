"""The models that upstreams list: in ``/v1/models``, on the page and on the command line."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.conftest import shell
from cli.shell import Shell
from gateway.running import running
from gateway.upstream import HostileUpstream, Until, head, hostile, whole
from streamglot.upstream.models import names_in
from waiting import until

__all__ = ["shell"]
LISTS = {
    "/v1/models": {"object": "list", "data": [{"id": "alpha"}, {"id": "org/beta:free"}, {"id": "shared"}]},
    "/v1/models?limit=1000": {"data": [{"type": "model", "id": "claude-x", "display_name": "X"}], "has_more": False},
    "/v1beta/models?pageSize=1000": {"models": [{"name": "models/gemini-y", "displayName": "Y"}]},
    "/api/tags": {"models": [{"name": "llama:1b", "model": "llama:1b"}, {"name": "shared"}]},
}


@pytest.fixture
def lister() -> Iterator[HostileUpstream]:
    """An upstream that lists models in every dialect."""
    with hostile() as server:
        server.scripts[""] = lambda seen: whole(LISTS.get(seen.path, {"error": "nothing here"}))
        yield server


def upstreams_of(lister: HostileUpstream) -> dict[str, Any]:
    return {
        "work": {"base_url": f"{lister.url}/v1", "key": "sk-work", "models": ["*"]},
        "claude": {"dialect": "anthropic", "base_url": lister.url, "key": "sk-claude", "models": ["claude-*"]},
        "google": {"dialect": "gemini", "base_url": f"{lister.url}/v1beta", "models": ["gemini-*"]},
        "box": {"dialect": "ollama", "base_url": lister.url},
    }


def test_the_models_that_upstreams_list_are_listed_and_can_be_asked_by_that_name(lister: HostileUpstream) -> None:
    with running({"server": {"discover": False}, "upstreams": upstreams_of(lister)}) as gateway:
        entries = {entry["id"]: entry for entry in gateway.ask("/v1/models").json()["data"]}
        named = [model["name"] for model in gateway.ask("/v1beta/models").json()["models"]]
        shown = [model["name"] for model in gateway.ask("/overview/models").json()["models"]]
        one = gateway.ask("/v1/models/org%2Fbeta:free").json()
        routes = gateway.gateway.services.pool.routes
        served = {name: routes.find(name, lambda: 0.0)[0].upstream.name for name in entries}
    assert list(entries) == ["replay", "alpha", "org/beta:free", "shared", "claude-x", "gemini-y", "box/llama:1b", "box/shared"]
    assert entries["claude-x"]["owned_by"] == entries["claude-x"]["provider"] == one["owned_by"].replace("work", "claude")
    assert shown == [name.removeprefix("models/") for name in named] == list(entries)
    assert served == {name: entry["owned_by"] for name, entry in entries.items()}
    keys = {seen.path: seen.headers.get("authorization") or seen.headers.get("x-api-key") for seen in lister.seen}
    assert (keys["/v1/models"], keys["/v1/models?limit=1000"]) == ("Bearer sk-work", "sk-claude")


def test_a_list_is_fetched_once_and_again_after_a_reload_with_another_upstream(lister: HostileUpstream) -> None:
    with running({"server": {"discover": False}, "upstreams": {"work": upstreams_of(lister)["work"]}}) as gateway:
        for _ in range(3):
            assert len(gateway.ask("/v1/models").json()["data"]) == 4
    assert len([seen for seen in lister.seen if seen.path == "/v1/models"]) == 1


@pytest.mark.parametrize("answer", ["refused", "nonsense", "endless", "away"])
def test_an_upstream_without_a_list_is_no_failure(lister: HostileUpstream, answer: str) -> None:
    never = threading.Event()
    scripts: dict[str, Any] = {
        "refused": whole({"error": {"message": "no"}}, 401),
        "nonsense": whole(b"<html>"),
        "endless": [head(200, "application/json", connection="close"), b"[" * 9_000_000, Until(never)],
    }
    lister.scripts[""] = scripts.get(answer)
    place = "http://127.0.0.1:9/v1" if answer == "away" else f"{lister.url}/v1"
    with running({"server": {"discover": False}, "upstreams": {"work": {"base_url": place}}}) as gateway:
        assert [entry["id"] for entry in gateway.ask("/v1/models").json()["data"]] == ["replay"]
        never.set()


def test_upstreams_that_list_their_models_in_the_configuration_are_not_asked(lister: HostileUpstream) -> None:
    exact = {"base_url": f"{lister.url}/v1", "models": ["alpha"]}
    mapped = {"base_url": f"{lister.url}/v1", "models": {"ours": "theirs"}}
    passed = {"base_url": f"{lister.url}/v1", "pass_key": True}
    upstreams = {"exact": exact, "mapped": mapped, "passed": passed}
    with running({"server": {"discover": False}, "upstreams": upstreams}) as gateway:
        assert [entry["id"] for entry in gateway.ask("/v1/models").json()["data"]] == ["alpha", "ours", "replay"]
    assert lister.seen == []


def test_the_command_line_lists_them_and_keeps_the_list(lister: HostileUpstream, shell: Shell) -> None:
    config = Path(shell.environment["STREAMGLOT_CONFIG"])
    config.write_text(f'[server]\ndiscover = false\n[upstreams.work]\nbase_url = "{lister.url}/v1"\n')
    listed = msgspec.json.decode(shell.run("models", "--json").stdout)["models"]
    assert [row["model"] for row in listed] == ["replay", "alpha", "org/beta:free", "shared", "work/*"]
    assert {row["provider"] for row in listed} == {"replay", "work"}
    assert b"org/beta:free  work" in shell.run("models").stdout
    until(lambda: len(lister.seen) == 1, lambda: "the second command asked again")


def test_names_that_cannot_be_models_are_left_out() -> None:
    body = {"data": [{"id": "fine"}, {"id": "line\nend"}, {"id": "x" * 3_000}, {"id": ""}, {"id": "fine"}]}
    assert names_in(msgspec.json.encode(body)) == ["fine"]
    assert names_in(b'{"object": "error"}') is None
    assert names_in(b"[") is None
