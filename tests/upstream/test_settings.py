"""The settings of an upstream."""

from __future__ import annotations

import msgspec
import pytest

from streamglot import Upstream
from streamglot.upstream.settings import BreakerSettings


def test_the_breaker_has_one_name() -> None:
    upstream = msgspec.convert({"breaker": {"failures": 3, "seconds": 1.0}}, Upstream)
    assert upstream.breaker == BreakerSettings(failures=3, seconds=1.0)
    with pytest.raises(msgspec.ValidationError, match="unknown field `rest`"):
        msgspec.convert({"rest": {"failures": 3}}, Upstream)
