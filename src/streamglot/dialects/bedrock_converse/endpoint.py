"""Where conversations go; the key is a bearer token of the service."""

from __future__ import annotations

from typing import Any

from ...messages import Request
from ..endpoint import Endpoint, bearer, join, path_segment


def endpoint(base_url: str, request: Request, key: str = "", **_: Any) -> Endpoint:
    verb = "converse-stream" if request.stream else "converse"
    return Endpoint(join(base_url, f"model/{path_segment(request.model)}/{verb}"), bearer(key))
