"""The hostile upstream and the gateway of tests/gateway, for all tests of this folder."""

from __future__ import annotations

import pytest

from gateway.conftest import gateway, upstream

__all__ = ["gateway", "upstream"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
