from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distribution.environments import ROOT, Environment, install, succeed


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of one test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "distribution"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def once(folder: Path, name: str) -> Iterator[bool]:
    """Whether this process is the first one here, which makes what the others wait for."""
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / f"{name}.done"
        yield not done.exists()
        done.touch()


@pytest.fixture(scope="session")
def distributions(shared: Path) -> dict[str, Path]:
    """The wheel and the source distribution."""
    folder = shared / "dist"
    with once(shared, "dist") as first:
        if first:
            succeed(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(folder), cwd=ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="session")
def environment(distributions: dict[str, Path], shared: Path) -> Callable[[str], Environment]:
    """The environment with this extra, made when it is first asked for."""

    def get(extra: str) -> Environment:
        name = extra or "base"
        with once(shared, name) as first:
            return install(shared / name, distributions["wheel"], extra) if first else Environment(shared / name)

    return get
