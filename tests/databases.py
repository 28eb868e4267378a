"""The databases that tests run on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from store.servers import Postgres

DATABASES = ["sqlite", "postgresql"]
EVERY_DATABASE = pytest.mark.parametrize("url", DATABASES, indirect=True)
"""For a test outside the folders of the store that is about what databases do differently: locks, strings that they refuse, a
process that is killed."""


def empty_database(request: pytest.FixtureRequest, folder: Path) -> str:
    """The URL of an empty database of the kind that the test's parameter names."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{folder / 'store' / 'streamglot.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return asyncio.run(server.database())
