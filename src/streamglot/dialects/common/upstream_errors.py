"""Converts the errors of upstreams, whatever their form, to UpstreamRefused."""

from __future__ import annotations

import re
from typing import Final

from ...errors import UpstreamRefused, excerpt
from ...events import StreamError
from ...json_types import JsonObject

MESSAGE_CHARS: Final = 4096
"""Maximum characters of an upstream's message that are passed on. Some upstreams send a whole page."""
_CODE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.:#/-]{0,63}")
"""An error code is one word. Anything else is text and belongs in the message."""

STATUS_OF: Final[dict[str, int]] = {
    "invalid_request_error": 400,
    "invalid_request": 400,
    "invalid_argument": 400,
    "failed_precondition": 400,
    "context_length_exceeded": 400,
    "exceed_context_size_error": 400,
    "badrequesterror": 400,
    "invalid_prompt": 400,
    "tool_use_failed": 400,
    "content_policy_violation": 400,
    "validationexception": 400,
    "authentication_error": 401,
    "authentication": 401,
    "unauthenticated": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "payment_required": 402,
    "permission_error": 403,
    "permission_denied": 403,
    "accessdeniedexception": 403,
    "not_found_error": 404,
    "not_found": 404,
    "model_not_found": 404,
    "resourcenotfoundexception": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "payload_too_large": 413,
    "unprocessable": 422,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "resource_exhausted": 429,
    "insufficient_quota": 429,
    "throttlingexception": 429,
    "servicequotaexceededexception": 429,
    "server_error": 500,
    "api_error": 500,
    "internal": 500,
    "internal_server_error": 500,
    "internalserverexception": 500,
    "modelstreamerrorexception": 500,
    "not_supported_error": 501,
    "upstream_error": 502,
    "provider_unavailable": 502,
    "unavailable": 503,
    "unavailable_error": 503,
    "service_unavailable_error": 503,
    "serviceunavailableexception": 503,
    "modelnotreadyexception": 503,
    "server_is_overloaded": 503,
    "provider_overloaded": 503,
    "timeout": 504,
    "timeout_error": 504,
    "deadline_exceeded": 504,
    "modeltimeoutexception": 504,
    "overloaded_error": 529,
}
"""The HTTP status for a word in ``type``, ``code`` or ``status`` of an error object."""

KIND_OF: Final[dict[int, str]] = {
    400: "invalid_request",
    401: "authentication",
    402: "billing",
    403: "permission",
    404: "not_found",
    409: "conflict",
    413: "too_large",
    422: "invalid_request",
    429: "rate_limit",
    500: "server",
    501: "unsupported",
    502: "upstream",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
"""Our word for the kind of fault behind a status. It is the error's ``code`` if the upstream sent none."""

RETRYABLE: Final = frozenset((408, 409, 429, 500, 502, 503, 504, 529))


def is_error(value: object) -> bool:
    """Whether a value is an error: a non-empty object, list or string."""
    return bool(value) and isinstance(value, (dict, str, list))


def refusal(error: object, status: int | None = None) -> UpstreamRefused:
    """The exception for an upstream's error object."""
    while True:
        if isinstance(error, list):
            error = error[0] if error else {}
        if not isinstance(error, dict):
            error = {"message": str(error)}
        if not is_error(error.get("error")):
            break
        error = error["error"]
    words = [error.get(key) for key in ("code", "type", "status", "error_type", "__type")]
    metadata = error.get("metadata")
    if isinstance(metadata, dict):
        words.append(metadata.get("error_type"))
    if status is None:
        status = next(filter(None, map(_status, (error.get("status_code"), error.get("code"), error.get("status")))), None)
    named = [word for word in words if isinstance(word, str) and _CODE.fullmatch(word) and word != "error"]
    if status is None:
        status = next((STATUS_OF[word.lower()] for word in named if word.lower() in STATUS_OF), 502)
    message = next((error[key] for key in ("message", "detail", "msg", "error_description", "title") if error.get(key)), None)
    if not isinstance(message, str):
        message = f"the upstream reported an error: {excerpt(error)}"
    elif len(message) > MESSAGE_CHARS:
        message = f"{message[:MESSAGE_CHARS]} … ({len(message)} in all)"
    return UpstreamRefused(
        message,
        code=named[0] if named else KIND_OF.get(status, "upstream_error"),
        status=status,
        retryable=status in RETRYABLE,
        detail=error,
    )


def _status(value: object) -> int | None:
    """The HTTP status in a field of an error object; None if it has none."""
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and 400 <= value < 600 else None


TYPE_OF: Final[dict[int, str]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    410: "invalid_request_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The value of ``error.type`` for a status, on which the dialects agree."""


def typed_error_body(error: StreamError) -> JsonObject:
    """The error object with a ``type``, a ``param`` and a ``code``, which several dialects share."""
    kind = TYPE_OF.get(error.status, "server_error")
    if error.status in (404, 413):
        kind = "invalid_request_error"
    elif error.status >= 500:
        kind = "server_error"
    return {"error": {"message": error.message, "type": kind, "param": _param(error), "code": error.code}}


def _param(error: StreamError) -> str | None:
    """The field of the client's request that is at fault. The field that an upstream names is a field of our request to it."""
    param = error.detail.get("param") if error.detail is not None and error.origin == "client" else None
    return param if isinstance(param, str) and param else None
