"""Where contents go: the model and the verb stand in the address."""

from __future__ import annotations

from typing import Any

from ...messages import Request
from ..endpoint import Endpoint, join, path_segments

PREFIX = "models/"


def model_name(model: str) -> str:
    """The model without the folder that clients of this dialect put in front of it: the address has it already."""
    while model.startswith(PREFIX):
        model = model.removeprefix(PREFIX)
    return model


def endpoint(base_url: str, request: Request, key: str = "", **_: Any) -> Endpoint:
    verb = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
    path = f"{PREFIX}{path_segments(model_name(request.model))}:{verb}"
    return Endpoint(join(base_url, path), {"x-goog-api-key": key} if key else {})
