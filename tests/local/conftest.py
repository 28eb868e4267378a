"""One model for all tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local.model import real_model
from streamglot import Upstream


@pytest.fixture(scope="session")
def model() -> Iterator[Upstream]:
    with real_model() as upstream:
        yield upstream
