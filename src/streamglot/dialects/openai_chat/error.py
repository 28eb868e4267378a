"""The error object of this dialect, for an HTTP answer and for the middle of a stream alike."""

from __future__ import annotations

from typing import Any

from ...errors import ToolCallParseError
from ...events import StreamError
from .. import faults


def error_body(error: StreamError) -> dict[str, Any]:
    kind = faults.TYPE_OF.get(error.status, "server_error")
    if error.status in (404, 413):
        kind = "invalid_request_error"
    elif error.status >= 500:
        kind = "server_error"
    if error.code == ToolCallParseError.code:
        kind = error.code
    return {"error": {"message": error.message, "type": kind, "param": None, "code": error.code}}
