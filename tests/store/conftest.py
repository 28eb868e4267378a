"""What the tests of the store share."""

from __future__ import annotations

import pytest

NEVER = 1e9
"""Seconds: longer than any test."""


@pytest.fixture
def no_periodic_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores send no heartbeats, look for no dead processes and do not update their index on their own. Tests that do one of these
    themselves need it: on a busy machine the periodic step would come in between."""
    monkeypatch.setattr("streamglot.store.store.FIRST_SECONDS", NEVER)
