"""The optional packages, and the extra that installs each of them."""

from __future__ import annotations

from importlib.util import find_spec
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
