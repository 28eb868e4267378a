from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from distribution.environments import ROOT, Environment, install, succeed


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    succeed(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="session")
def environment(distributions: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Environment]:
    """The environment with this extra, made when it is first asked for."""
    made: dict[str, Environment] = {}

    def get(extra: str) -> Environment:
        if extra not in made:
            folder = tmp_path_factory.mktemp(extra or "base") / "venv"
            made[extra] = install(folder, distributions["wheel"], extra)
        return made[extra]

    return get
