"""Fixtures of the batch tests: a mock upstream that answers with the words of the prompt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batch.mock import MockUpstream, mock_upstream


@pytest.fixture
def upstream() -> Iterator[MockUpstream]:
    with mock_upstream() as server:
        yield server
