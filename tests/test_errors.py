"""The exception tree, and the errors of upstreams."""

from __future__ import annotations

from typing import Any

import pytest

import streamglot
from streamglot import StreamError, StreamglotError, Unsupported, UpstreamRefused, UpstreamTruncated
from streamglot.dialects.common.upstream_errors import is_error, refusal
from streamglot.errors import excerpt


def test_an_error_becomes_the_last_event() -> None:
    error = UpstreamTruncated("cut", detail={"after": 3})
    assert error.as_event() == StreamError("upstream_truncated", "cut", "upstream", True, 502, {"after": 3})
    assert Unsupported("no", code="x", status=422, retryable=True).as_event() == StreamError("x", "no", "client", True, 422)


def test_all_errors_have_one_base_class() -> None:
    for name in streamglot.__all__:
        kind = getattr(streamglot, name)
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert issubclass(kind, StreamglotError)


def test_excerpts_are_short() -> None:
    assert excerpt("a") == "'a'"
    assert excerpt(b"x" * 999).endswith("… (999 in all)")
    assert len(excerpt({"a": "x" * 999})) < 220


@pytest.mark.parametrize(
    ("error", "code", "status", "retryable", "message"),
    [
        ({"message": "m", "type": "server_error", "code": None}, "server_error", 500, True, "m"),
        ({"message": "m", "code": 429}, "rate_limit", 429, True, "m"),
        ({"message": "m", "code": "503"}, "overloaded", 503, True, "m"),
        ({"message": "m", "status_code": 400, "code": "tool_use_failed"}, "tool_use_failed", 400, False, "m"),
        ({"type": "overloaded_error", "message": "Overloaded"}, "overloaded_error", 529, True, "Overloaded"),
        ({"code": 404, "status": "NOT_FOUND", "message": "m"}, "NOT_FOUND", 404, False, "m"),
        (
            {"code": 502, "message": "m", "metadata": {"error_type": "provider_unavailable"}},
            "provider_unavailable",
            502,
            True,
            "m",
        ),
        ({"detail": "d", "error": {"message": "m"}}, "upstream", 502, True, "m"),
        ({"error": "out of memory"}, "upstream", 502, True, "out of memory"),
        ([{"error": {"message": "m", "code": 401}}], "authentication", 401, False, "m"),
        ([], "upstream", 502, True, "the upstream reported an error: {}"),
        ({"message": {"a": 1}}, "upstream", 502, True, "the upstream reported an error: {'message': {'a': 1}}"),
        ({"code": 418, "message": "m"}, "upstream_error", 418, False, "m"),
        ("text", "upstream", 502, True, "text"),
    ],
)
def test_any_error_object(error: Any, code: str, status: int, retryable: bool, message: str) -> None:
    refused = refusal(error)
    assert (refused.code, refused.status, refused.retryable, refused.message) == (code, status, retryable, message)
    assert isinstance(refused, UpstreamRefused)
    assert refused.retry_after is None


def test_values_that_are_errors() -> None:
    assert is_error({"a": 1})
    assert is_error("x")
    nothing: list[Any] = [None, {}, "", [], 0, 1, True]
    assert not any(is_error(value) for value in nothing)
