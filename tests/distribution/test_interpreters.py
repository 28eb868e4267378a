"""The package with every supported version of Python that this machine has. The metadata promise the others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from distribution.environments import NEWEST, OLDEST, Environment, install, interpreter
from distribution.test_installed_extras import PURE


@pytest.mark.parametrize("minor", range(OLDEST, NEWEST + 1))
def test_the_library_and_the_command_line_run(
    minor: int, distributions: dict[str, Path], environment: Callable[[str], Environment], tmp_path: Path
) -> None:
    python = sys.executable if minor == sys.version_info[1] else interpreter(minor)
    if python is None:
        pytest.skip(f"NOT CHECKED: Python 3.{minor} is not on this machine")
    if minor == sys.version_info[1]:
        installed = environment("server")
    else:
        installed = install(tmp_path / "venv", distributions["wheel"], "server", python)
    assert installed.code(PURE) == "StreamStart StreamEnd Hello\n"
    assert f"Python 3.{minor}." in installed.streamglot("--version").stdout
    assert installed.streamglot("query", "-m", "replay", "hi").stdout.endswith("You said: hi\n")
