"""The error object of this dialect: a string and nothing else, for an HTTP answer and for a line alike."""

from __future__ import annotations

from typing import Any

from ...events import StreamError


def error_body(error: StreamError) -> dict[str, Any]:
    return {"error": error.message or error.code}
