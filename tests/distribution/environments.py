"""Clean environments with the built package in them, one for each extra, made by uv from its cache or from the index."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

ROOT = Path(__file__).parents[2]
SECONDS = 240
"""For one command: an installation that takes longer does not come to an end."""
EXTRAS = ("", "client", "server", "all")
"""The installed variants: the base, and three extras."""
OLDEST, NEWEST = 11, 14
"""Python 3.x: what the metadata promises."""


def run(*command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=SECONDS)


def succeed(*command: str, **more: Any) -> str:
    done = run(*command, **more)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def uv() -> str:
    """The uv of the development environment."""
    return find_uv_bin()


class Environment:
    """A virtual environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"

    @property
    def site(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def code(self, code: str) -> str:
        return succeed(str(self.python), "-I", "-c", code, cwd=self.folder)

    def streamglot(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        variables = {"HOME": str(home), "PATH": "/usr/bin:/bin", "STREAMGLOT_STORE__URL": "none", **(env or {})}
        return run(str(self.folder / "bin" / "streamglot"), *arguments, cwd=home, env=variables)

    def megabytes(self) -> float:
        """The size of the installed files, without what Python compiles later."""
        files = (path for path in self.site.rglob("*") if "__pycache__" not in path.parts and path.is_file())
        return sum(path.stat().st_size for path in files) / 1e6


def install(folder: Path, distribution: Path, extra: str = "", python: str = sys.executable) -> Environment:
    """Skips the test with a visible warning if the packages are neither cached nor on an index that can be reached."""
    succeed(uv(), "venv", "--quiet", "--clear", "--no-project", "--python", python, str(folder))
    environment = Environment(folder)
    wanted = f"streamglot[{extra}] @ {distribution.as_uri()}" if extra else str(distribution)
    done = run(uv(), "pip", "install", "--quiet", "--no-config", "--python", str(environment.python), wanted)
    if done.returncode and any(word in done.stderr for word in ("Failed to fetch", "error sending request", "dns error")):
        pytest.skip(f"NOT CHECKED: the packages of {extra or 'the base'} cannot be fetched: {done.stderr[-500:]}")
    assert done.returncode == 0, done.stderr
    return environment


def interpreter(minor: int) -> str | None:
    """Python 3.minor, where this machine has it."""
    name = f"python3.{minor}"
    places = [shutil.which(name), *map(str, sorted((Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/{name}")))]
    code = "import sys; print(sys.version_info[1])"
    for place in places:
        if place is not None:
            done = run(place, "-I", "-c", code)
            if done.returncode == 0 and done.stdout.strip() == str(minor):
                return place
    return None
