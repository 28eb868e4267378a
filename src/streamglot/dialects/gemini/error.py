"""The error object of this dialect, for an HTTP answer and for the middle of a stream alike."""

from __future__ import annotations

from typing import Any, Final

from ...events import StreamError

STATUS_OF: Final[dict[int, str]] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    529: "UNAVAILABLE",
}


def error_body(error: StreamError) -> dict[str, Any]:
    """Clients choose their exception by ``code``, which is the HTTP status; our own code goes into the details."""
    status = STATUS_OF.get(error.status, "INTERNAL" if error.status >= 500 else "INVALID_ARGUMENT")
    detail = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": error.code, "domain": "streamglot"}
    return {"error": {"code": error.status, "message": error.message, "status": status, "details": [detail]}}
