"""The error object of this dialect for an HTTP answer; the client shows its text with the status."""

from __future__ import annotations

from typing import Any

from ...events import StreamError
from .. import faults


def error_code(error: StreamError) -> str:
    """The kind of fault, as one word for each status."""
    return faults.KIND_OF.get(error.status, "server" if error.status >= 500 else "invalid_request")


def error_body(error: StreamError) -> dict[str, Any]:
    return {"error": {"message": error.message, "code": error_code(error), "reason": error.code}}
