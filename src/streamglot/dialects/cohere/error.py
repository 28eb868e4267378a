"""The error object of this dialect: words, and nothing else."""

from __future__ import annotations

from typing import Any

from ...events import StreamError


def error_body(error: StreamError) -> dict[str, Any]:
    return {"message": error.message}
