"""Where requests for a plain completion go."""

from __future__ import annotations

from typing import Any

from ...messages import Request
from ..endpoint import Endpoint, bearer, join


def endpoint(base_url: str, request: Request, key: str = "", **_: Any) -> Endpoint:
    return Endpoint(join(base_url, "completions"), bearer(key))
