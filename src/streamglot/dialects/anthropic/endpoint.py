"""Where messages go, and the version of the API that they are written for."""

from __future__ import annotations

from typing import Any

from ...messages import Request
from ..endpoint import Endpoint, join

DEFAULT_VERSION = "2023-06-01"


def endpoint(base_url: str, request: Request, key: str = "", version: str = DEFAULT_VERSION, **_: Any) -> Endpoint:
    base, mark, parameters = base_url.partition("?")
    base = base.rstrip("/").removesuffix("/v1")
    headers = {"anthropic-version": version}
    if key:
        headers["x-api-key"] = key
    return Endpoint(join(f"{base}{mark}{parameters}", "v1/messages"), headers)
