"""The stream of Qwen's web chat. The server keeps the conversation and sends its state in the first event."""

from __future__ import annotations

from typing import Any

from ...messages import Built, Request
from ..endpoint import Endpoint, bearer, encoded, join
from ..interface import Continuation, Dialect
from ..reader import Reader


class QwenWebDialect(Dialect):
    name = "qwen_web"
    title = "Qwen web chat"

    def reader(self, **options: Any) -> Reader:
        from .reader import QwenWebReader

        return QwenWebReader(**options)

    def build_body(self, request: Request, **options: Any) -> Built:
        from .request import build

        return build(request, **options)

    @property
    def continued(self) -> Continuation:
        from .request import continued

        return continued

    def endpoint(self, base_url: str, request: Request, key: str = "", chat_id: Any = "", **options: Any) -> Endpoint:
        chat_id = chat_id or request.extra.get("chat_id")
        query = f"?chat_id={encoded(chat_id)}" if isinstance(chat_id, str) and chat_id else ""
        return Endpoint(join(base_url, f"api/v2/chat/completions{query}"), bearer(key))


QWEN_WEB = QwenWebDialect()
