"""Where messages of a chat on the web go: the chat's id stands in the address."""

from __future__ import annotations

from typing import Any

from ...messages import Request
from ..endpoint import Endpoint, bearer, encoded, join


def endpoint(base_url: str, request: Request, key: str = "", chat_id: Any = "", **_: Any) -> Endpoint:
    chat_id = chat_id or request.extra.get("chat_id")
    query = f"?chat_id={encoded(chat_id)}" if isinstance(chat_id, str) and chat_id else ""
    return Endpoint(join(base_url, f"api/v2/chat/completions{query}"), bearer(key))
