"""The error object of this dialect for an HTTP answer; the client shows its text."""

from __future__ import annotations

from typing import Any

from ...events import StreamError


def error_body(error: StreamError) -> dict[str, Any]:
    return {"error": {"message": error.message, "code": error.code}}
