"""The optional packages, and the extra that installs each of them."""

from __future__ import annotations

from typing import Final

from .errors import ConfigError

EXTRAS: Final = {
    "aiohttp": "client",
    "httptools": "client",
    "alembic": "store",
    "sqlalchemy": "store",
    "click": "cli",
    "prompt_toolkit": "cli",
    "rich": "cli",
    "prometheus_client": "server",
    "starlette": "server",
    "uvicorn": "server",
    "uvloop": "server",
    "xllamacpp": "local",
    "asyncpg": "postgres",
    "valkey": "valkey",
    "opentelemetry": "otel",
}
"""Name of the package as it is imported, and the extra of streamglot that has it."""


def missing_package(error: ModuleNotFoundError) -> ConfigError | None:
    """The error that tells the user what to install; None if the module is not one of an extra (then it is a defect)."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return None
    return ConfigError(f"the package {package!r} is not installed; install it with: pip install 'streamglot[{extra}]'")
