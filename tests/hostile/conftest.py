"""One gateway for all attacks, so that a test notices what an earlier one broke."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.conftest import upstreams_at
from gateway.running import Running, running
from gateway.upstream import HostileUpstream, hostile
from hostile.targets import TARGETS, Target


@pytest.fixture(scope="session")
def upstream() -> Iterator[HostileUpstream]:
    with hostile() as server:
        yield server


@pytest.fixture(scope="session")
def gateway(upstream: HostileUpstream) -> Iterator[Running]:
    with running({"upstreams": upstreams_at(upstream.url, breaker={"failures": 1_000_000})}) as started:
        yield started


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> Target:
    return TARGETS[request.param]
