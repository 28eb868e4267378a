"""The JSON Schema of the configuration agrees with what ``load`` accepts and refuses."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships no types
import msgspec
import pytest

from streamglot.config import Config, ServerConfig, load
from streamglot.config.reference import _any_value, config_schema
from streamglot.errors import ConfigError

ROOT = Path(__file__).parents[1]
TOML = re.compile(r"^```toml\n(.*?)^```", re.DOTALL | re.MULTILINE)
VALIDATOR = jsonschema.Draft202012Validator(config_schema())
WRONG = [
    "colour = 1",
    "[server]\nport = 'many'",
    "[server]\nport = -1",
    "[server]\nwait = 1e300",
    "[server]\nauthentication = 'perhaps'",
    "[upstreams.one]\nbase_url = 'http://x'\ncolour = 1",
    "[upstreams.one]\nbase_url = 'http://x'\n[upstreams.one.timeouts]\nidle = 'long'",
    "[[routes]]\nmodel = 1",
]
RIGHT = """
[server]
port = 9000
keys = [{name = "a", key_env = "A"}]
[store]
url = "none"
[upstreams.one]
base_url = "https://models.example/v1"
models = {mine = "theirs"}
timeouts = {idle = 5}
breaker = {failures = 2}
options = {anything = [1, "two"]}
[[policies]]
use = "max_output"
"""


def valid(text: str) -> bool:
    return bool(VALIDATOR.is_valid(tomllib.loads(text)))


def test_the_schema_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(config_schema())


def test_a_file_that_loads_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "streamglot.toml"
    path.write_text(RIGHT)
    load(path, {})
    assert valid(RIGHT)


@pytest.mark.parametrize("text", WRONG)
def test_a_file_that_does_not_load_is_invalid(text: str, tmp_path: Path) -> None:
    path = tmp_path / "streamglot.toml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        load(path, {})
    assert not valid(text)


def test_every_setting_has_its_default() -> None:
    settings = config_schema()["$defs"]["ServerConfig"]["properties"]
    assert list(settings) == [field.name for field in msgspec.structs.fields(ServerConfig)]
    assert settings["port"]["default"] == ServerConfig().port
    assert set(config_schema()["properties"]) == {field.name for field in msgspec.structs.fields(Config)}


def test_names_that_the_program_fills_in_are_left_out() -> None:
    upstream = config_schema()["$defs"]["Upstream"]["properties"]
    assert "name" not in upstream


def test_a_type_without_a_schema_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="complex has no JSON Schema"):
        _any_value(complex)


def configurations() -> list[tuple[str, str]]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [(page.name, text) for page in pages for text in TOML.findall(page.read_text())]


@pytest.mark.parametrize(("page", "text"), configurations())
def test_configurations_in_the_documents_are_valid(page: str, text: str) -> None:
    del page
    values: dict[str, Any] = tomllib.loads(text)
    errors = [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(values)]
    assert not errors
