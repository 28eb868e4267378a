"""The message about a package that is not installed."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from streamglot.errors import ConfigError
from streamglot.installation import EXTRAS, missing_package, require

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(("package", "extra"), EXTRAS.items())
def test_the_extra_installs_the_package(package: str, extra: str) -> None:
    required = PROJECT["optional-dependencies"][extra]
    assert any(requirement.replace("-", "_").startswith(package) for requirement in required)


def test_a_package_of_an_extra_is_named_with_the_command_that_installs_it() -> None:
    message = missing_package(ModuleNotFoundError("no", name="asyncpg.exceptions"))
    assert message is not None
    assert message.message == "the package 'asyncpg' is not installed; install it with: pip install 'streamglot[postgres]'"


def test_another_module_is_left_to_its_own_error() -> None:
    assert missing_package(ModuleNotFoundError("no", name="streamglot.none")) is None
    assert missing_package(ModuleNotFoundError("no")) is None


def test_packages_are_checked_before_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    require("msgspec", "click")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"streamglot\[server\]"):
        require("click", "prometheus_client")
