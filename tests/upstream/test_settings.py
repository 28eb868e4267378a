"""The settings of an upstream."""

from __future__ import annotations

import msgspec
import pytest

from streamglot import Upstream
from streamglot.upstream.settings import BreakerSettings


def test_the_former_name_of_the_breaker_settings_is_accepted() -> None:
    upstream = msgspec.convert({"rest": {"failures": 3, "seconds": 1.0}}, Upstream)
    assert upstream.breaker == BreakerSettings(failures=3, seconds=1.0)
    assert upstream == Upstream(breaker=BreakerSettings(failures=3, seconds=1.0)) == Upstream(rest=upstream.breaker)


def test_the_breaker_settings_cannot_be_given_under_both_names() -> None:
    with pytest.raises(msgspec.ValidationError, match="set only `breaker`"):
        msgspec.convert({"rest": {"failures": 3}, "breaker": {"failures": 2}}, Upstream)
