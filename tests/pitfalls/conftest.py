"""One hostile upstream and one gateway that reaches it in every dialect, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.conftest import SHORT_IDLE, UPSTREAM_DIALECTS, upstreams_at
from gateway.running import Running, running
from gateway.upstream import HostileUpstream, hostile


@pytest.fixture(scope="session")
def upstream() -> Iterator[HostileUpstream]:
    with hostile() as server:
        yield server


@pytest.fixture(scope="session")
def gateway(upstream: HostileUpstream) -> Iterator[Running]:
    """The circuit breaker stays closed, because the tests make upstreams fail on purpose."""
    upstreams = upstreams_at(upstream.url, breaker={"failures": 1_000_000})
    for name in UPSTREAM_DIALECTS:
        upstreams[f"restless_{name}"] = {**upstreams[name], "timeouts": SHORT_IDLE}
    upstreams["hermes"] = {**upstreams["openai_chat"], "inband": "hermes"}
    with running({"upstreams": upstreams}) as started:
        yield started


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
