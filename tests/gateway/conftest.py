"""Fixtures of the gateway's tests: one hostile upstream, and one gateway that uses it in every dialect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.running import Running, running
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, hostile
from store.conftest import patient_lookups

__all__ = ["patient_lookups"]
UPSTREAM_DIALECTS = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama", "openai_completions")
PREFIX = {"openai_chat": "/v1", "openai_responses": "/v1", "gemini": "/v1beta", "openai_completions": "/v1"}
LONG_TIMEOUTS = {"connect": 120.0, "first_byte": 120.0, "idle": 120.0, "total": 240.0}
"""Timeouts that no test reaches, even on a slow machine."""
SHORT_FIRST_BYTE = {**LONG_TIMEOUTS, "first_byte": 0.5}
"""For upstreams that never answer."""
SHORT_IDLE = {**LONG_TIMEOUTS, "idle": 0.4}
"""For upstreams that become silent inside an answer."""


def upstreams_at(url: str, **more: Any) -> dict[str, Any]:
    """One upstream for each dialect, all at this address, named as in ``UPSTREAM_NAMES``."""
    return {
        UPSTREAM_NAMES[dialect]: {
            "dialect": dialect,
            "base_url": url + PREFIX.get(dialect, ""),
            "attempts": 1,
            "pause": 0.01,
            "timeouts": LONG_TIMEOUTS,
            **more,
        }
        for dialect in UPSTREAM_DIALECTS
    }


@pytest.fixture(scope="session")
def upstream() -> Iterator[HostileUpstream]:
    with hostile() as server:
        yield server


@pytest.fixture(scope="session")
def gateway(upstream: HostileUpstream) -> Iterator[Running]:
    """The circuit breakers never open, because the tests make the upstreams fail often."""
    upstreams = upstreams_at(upstream.url, breaker={"failures": 1_000_000})
    for name in list(upstreams):
        upstreams[f"short_first_byte_{name}"] = {**upstreams[name], "timeouts": SHORT_FIRST_BYTE}
        upstreams[f"short_idle_{name}"] = {**upstreams[name], "timeouts": SHORT_IDLE}
    upstreams["hermes"] = {**upstreams["work"], "inband": "hermes"}
    upstreams["gone"] = {**upstreams["work"], "base_url": "http://127.0.0.1:9/v1"}
    upstreams["whole"] = {**upstreams["work"], "stream": "never"}
    with running({"upstreams": upstreams}) as started:
        yield started
