"""Each test of durable batches that takes ``url`` runs on every database."""

from __future__ import annotations

from pathlib import Path

import pytest

from databases import DATABASES, empty_database


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, of each kind."""
    return empty_database(request, tmp_path)
