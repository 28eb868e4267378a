"""A moment of ``make fuzz``: broken requests are all answered."""

from __future__ import annotations

from fuzz_http import CONCURRENT, run


def test_broken_requests_are_answered() -> None:
    assert run(0.0, seed=11) == CONCURRENT
