"""Where contents go: the model and the verb stand in the address."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from ...messages import Request
from ..endpoint import Endpoint, join


def endpoint(base_url: str, request: Request, key: str = "", **_: Any) -> Endpoint:
    model = quote(request.model.removeprefix("models/"), safe="/")
    verb = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
    return Endpoint(join(base_url, f"models/{model}:{verb}"), {"x-goog-api-key": key} if key else {})
