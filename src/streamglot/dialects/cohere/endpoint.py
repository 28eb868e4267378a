"""Where chats go."""

from __future__ import annotations

from typing import Any

from ...messages import Request
from ..endpoint import Endpoint, bearer, join


def endpoint(base_url: str, request: Request, key: str = "", **_: Any) -> Endpoint:
    return Endpoint(join(base_url, "v2/chat"), bearer(key))
