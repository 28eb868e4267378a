"""The real model for tests: downloaded once into the user's cache, run on one thread. Without it the tests say what is
missing."""

from __future__ import annotations

import os
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from streamglot import ConfigError, Upstream
from streamglot.upstream.local import LIBRARY, LocalServer, missing
from streamglot.upstream.local.weights import chosen, pull
from waiting import WAIT_SECONDS

os.environ.setdefault("STREAMGLOT_LOCAL_THREADS", "1")


def needed() -> None:
    """Skips the test with a warning if the model is not available."""
    why = missing()
    if "weights" in why:
        try:
            pull()
            why = missing()
        except ConfigError as error:
            why = error.message
    if why:
        warnings.warn(f"NOT TESTED with a real model: {why}", stacklevel=2)
        pytest.skip(f"no real model: {why} ({LIBRARY} and the weights are required)")


@contextmanager
def real_model() -> Iterator[Upstream]:
    needed()
    weights = chosen()
    assert weights is not None
    server = LocalServer(weights)
    try:
        yield server.start()
    finally:
        server.stop()


def counter(upstream: Upstream, name: str) -> float:
    """A counter of the server's metrics."""
    address = f"{upstream.base_url.removesuffix('/v1')}/metrics"
    request = urllib.request.Request(address, headers={"authorization": f"Bearer {upstream.key}"})
    with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"llamacpp:{name} ")))
