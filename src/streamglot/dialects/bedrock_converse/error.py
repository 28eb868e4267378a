"""The error object of this service, named after its exceptions."""

from __future__ import annotations

from typing import Any, Final

from ...events import StreamError

EXCEPTION_OF: Final[dict[int, str]] = {
    400: "ValidationException",
    401: "AccessDeniedException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    413: "ValidationException",
    422: "ValidationException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
    504: "ModelTimeoutException",
    529: "ServiceUnavailableException",
}


def error_body(error: StreamError) -> dict[str, Any]:
    return {"__type": EXCEPTION_OF.get(error.status, "InternalServerException"), "message": error.message}
