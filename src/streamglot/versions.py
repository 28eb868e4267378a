"""The version of streamglot, of Python and of the packages that it runs on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

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
