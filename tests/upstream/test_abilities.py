"""The table of abilities: what is known about each provider, and what a configuration changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.generate import ABILITIES

from streamglot import ConfigError, Message, Request, Upstream
from streamglot.config import load
from streamglot.dialects import DIALECTS
from streamglot.dialects.common.abilities import UNSPECIFIED, Abilities
from streamglot.messages import TextPart, ToolSpec
from streamglot.upstream.providers import PROVIDERS, abilities_of

ROWS = {provider.name: provider for provider in PROVIDERS}


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_valid_and_found_by_its_address(name: str) -> None:
    provider = ROWS[name]
    assert provider.abilities.fault() == ""
    upstream = Upstream(name="any-name", dialect=provider.dialect, base_url=provider.base_url + "/more?x=1")
    assert abilities_of(upstream) == provider.abilities


@pytest.mark.parametrize(
    ("name", "user", "custom", "roles"),
    [
        ("openai", 64, True, ["developer", "user", "system"]),
        ("openrouter", 128, False, ["developer", "user", "user"]),
        ("deepseek", 64, False, ["system", "user", "user"]),
        ("groq", 64, False, ["system", "user", "user"]),
        ("mistral", 0, False, ["system", "user", "user"]),
        ("zai", 128, False, ["system", "user", "user"]),
    ],
)
def test_each_chat_server_gets_what_it_accepts(name: str, user: int, custom: bool, roles: list[str]) -> None:
    messages = [Message("developer", [TextPart("a")]), Message("user", [TextPart("b")]), Message("system", [TextPart("c")])]
    request = Request("m", messages, [ToolSpec("t", kind="custom")], user="u" * 300)
    upstream = Upstream(name="x", dialect="openai_chat", base_url=ROWS[name].base_url)
    built = DIALECTS["openai_chat"].build_request(request, abilities=abilities_of(upstream))
    assert len(built.body.get("user", "")) == min(user, 64)
    assert "user" in built.dropped
    assert built.body["tools"][0]["type"] == ("custom" if custom else "function")
    assert [message["role"] for message in built.body["messages"]] == roles


def test_every_ability_is_documented() -> None:
    assert tuple(ABILITIES) == Abilities.__struct_fields__


def test_an_unknown_upstream_gets_what_all_servers_accept() -> None:
    assert abilities_of(Upstream(name="x", base_url="http://127.0.0.1:8000/v1")) == UNSPECIFIED
    assert abilities_of(Upstream(name="openai", base_url="http://elsewhere.example/v1")) == UNSPECIFIED


def test_a_configuration_changes_single_abilities(tmp_path: Path) -> None:
    path = tmp_path / "streamglot.toml"
    path.write_text(
        """
        [upstreams.mine]
        base_url = "https://api.mistral.ai/v1"
        [upstreams.mine.abilities]
        custom_tools = true
        refused = ["store"]
        """
    )
    upstream = load(path, {}).config.upstreams["mine"]
    assert abilities_of(upstream) == Abilities(
        custom_tools=True, call_id_chars=9, call_id_fixed=True, user_chars=0, refused=("store",)
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('refused = ["colour"]', "upstreams.mine.abilities: refused names 'colour'"),
        ("user_chars = -1", "user_chars is -1"),
        ("flies = true", "flies"),
    ],
)
def test_an_invalid_ability_is_a_config_error(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "streamglot.toml"
    path.write_text(f'[upstreams.mine]\nbase_url = "http://a/v1"\n[upstreams.mine.abilities]\n{line}\n')
    with pytest.raises(ConfigError, match=words):
        load(path, {})
