"""What the tests of the store share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from databases import DATABASES, empty_database
from waiting import WAIT_SECONDS

NEVER = 1e9
"""Seconds: longer than any test."""


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, of each kind."""
    return empty_database(request, tmp_path)


@pytest.fixture(scope="module")
def patient_lookups() -> Iterator[None]:
    """Stores look for the history of a request as long as it takes. Otherwise they go on without it after a second, which may pass
    on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamglot.store.sessions.FIND_SECONDS", WAIT_SECONDS)
        yield


@pytest.fixture
def no_periodic_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores send no heartbeats, look for no dead processes and do not update their index on their own. Tests that do one of these
    themselves need it: on a busy machine the periodic step would come in between."""
    monkeypatch.setattr("streamglot.store.store.FIRST_SECONDS", NEVER)
