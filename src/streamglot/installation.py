"""What streamglot is installed with: the extras and their packages, the versions, and the directories of a user."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from .errors import ConfigError

EXTRAS: Final = {
    "aiohttp": "client",
    "httptools": "client",
    "click": "cli",
    "markdown_it": "cli",
    "prompt_toolkit": "cli",
    "rich": "cli",
    "cryptography": "server",
    "prometheus_client": "server",
    "uvloop": "server",
    "wsproto": "server",
    "xllamacpp": "local",
    "asyncpg": "postgres",
    "valkey": "valkey",
    "mcp": "mcp",
    "obstore": "s3",
    "pyarrow": "parquet",
    "opentelemetry": "otel",
}
"""A package's import name, and the extra of streamglot that installs it."""


def missing_package(error: ModuleNotFoundError, extra: str = "") -> ConfigError | None:
    """The error that says what to install; None if the module belongs to no extra, which is a defect. ``extra`` is one that
    brings more than this package, where more is needed."""
    package = (error.name or "").partition(".")[0]
    return _not_installed(package, extra) if package in EXTRAS else None


def require(*packages: str) -> None:
    """Raises an error for the first of these packages that is not installed. Call it before the work that needs them."""
    for package in packages:
        if find_spec(package) is None:
            raise _not_installed(package)


def _not_installed(package: str, extra: str = "") -> ConfigError:
    wanted = extra or EXTRAS[package]
    return ConfigError(f"the package {package!r} is not installed; install it with: pip install 'streamglot[{wanted}]'")


PACKAGES: Final = (
    "msgspec",
    "aiohttp",
    "httptools",
    "uvloop",
    "xllamacpp",
    "mcp",
    "opentelemetry-sdk",
)
"""The packages that decide how streamglot behaves: a report of a fault needs their versions."""


def version_lines(own: str) -> list[str]:
    """One line each: streamglot, Python, then the packages that are installed."""
    lines = [
        f"streamglot {own}",
        f"Python {platform.python_version()} ({platform.python_implementation()}, {platform.platform()})",
    ]
    for package in PACKAGES:
        try:
            lines.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return lines


def data_directory(environment: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """The directory for data of this user. A relative XDG_DATA_HOME is not valid and is not used."""
    environment = os.environ if environment is None else environment
    home = Path(environment.get("USERPROFILE" if platform == "win32" else "HOME") or Path.home())
    if platform == "win32":
        base = Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        named = environment.get("XDG_DATA_HOME", "")
        base = Path(named) if named.startswith("/") else home / ".local" / "share"
    return base / "streamglot"
