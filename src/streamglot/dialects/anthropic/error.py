"""The error object of this dialect, for an HTTP answer and for the middle of a stream alike."""

from __future__ import annotations

from typing import Any, Final

from ...events import StreamError
from .. import faults

KINDS: Final = frozenset((*faults.TYPE_OF.values(), "api_error"))


def error_body(error: StreamError) -> dict[str, Any]:
    """``type`` is what clients act on, in a stream above all, where the status is 200."""
    kind = error.code if error.code in KINDS else faults.TYPE_OF.get(error.status, "api_error")
    if kind == "api_error" and 400 <= error.status < 500:
        kind = "invalid_request_error"
    body: dict[str, Any] = {"type": kind, "message": error.message}
    if error.code != kind:
        body["details"] = {"error_code": error.code}
    return {"type": "error", "error": body}
