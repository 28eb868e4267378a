"""The error object of this dialect: for an HTTP answer, for a failed response and for the middle of a stream."""

from __future__ import annotations

from typing import Any, Final

from ...events import StreamError
from .. import faults

_CODES: Final = frozenset(
    (
        "server_error",
        "rate_limit_exceeded",
        "invalid_prompt",
        "data_residency_mismatch",
        "bio_policy",
        "misalignment_policy_violation",
        "vector_store_timeout",
    )
)
"""What the specification allows in ``response.error.code``, beside the family of image errors."""


def error_body(error: StreamError) -> dict[str, Any]:
    kind = faults.TYPE_OF.get(error.status, "server_error")
    if error.status in (404, 413):
        kind = "invalid_request_error"
    elif error.status >= 500:
        kind = "server_error"
    return {"error": {"message": error.message, "type": kind, "param": None, "code": error.code}}


def response_error(error: StreamError, strict: bool = False) -> dict[str, Any]:
    """``response.error`` of a failed response. Clients act on well-known codes, so the code is kept unless ``strict``."""
    code = error.code
    if strict and code not in _CODES and not code.startswith(("image_", "invalid_image", "invalid_base64_image")):
        code = {429: "rate_limit_exceeded", 400: "invalid_prompt"}.get(error.status, "server_error")
    return {"code": code, "message": error.message}
