"""The package with every supported version of Python that this machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from distribution.environments import NEWEST, OLDEST, install, interpreter
from distribution.test_installed_extras import PURE


@pytest.mark.parametrize("minor", range(OLDEST, NEWEST + 1))
def test_the_library_and_the_command_line_run(minor: int, distributions: dict[str, Path], tmp_path: Path) -> None:
    python = interpreter(minor)
    if python is None:
        pytest.skip(f"NOT CHECKED: Python 3.{minor} is not on this machine")
    environment = install(tmp_path / "venv", distributions["wheel"], "server", python)
    assert environment.code(PURE) == "StreamStart StreamEnd Hello\n"
    assert f"Python 3.{minor}." in environment.streamglot("--version").stdout
    assert environment.streamglot("query", "-m", "replay", "hi").stdout.endswith(": hi\n")
