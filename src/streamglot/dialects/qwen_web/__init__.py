"""The stream of Qwen's web chat. The server keeps the conversation and sends its state in the first event."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from ...json_types import JsonValue
from ...messages import Built, Request
from ..endpoint import UpstreamEndpoint, bearer, encoded, join
from ..interface import Continuation, Dialect
from ..reader import Reader


class QwenWebDialect(Dialect):
    name = "qwen_web"
    title = "Qwen web chat"
    model_list_path = "api/models"

    @cached_property
    def reader(self) -> Callable[..., Reader]:
        from .reader import QwenWebReader

        return QwenWebReader

    @cached_property
    def build_body(self) -> Callable[..., Built]:
        from .request import build

        return build

    @property
    def continued(self) -> Continuation:
        from .request import continued

        return continued

    def endpoint(
        self, base_url: str, request: Request, key: str = "", chat_id: JsonValue = "", **options: JsonValue
    ) -> UpstreamEndpoint:
        chat_id = chat_id or request.extra.get("chat_id")
        query = f"?chat_id={encoded(chat_id)}" if isinstance(chat_id, str) and chat_id else ""
        return UpstreamEndpoint(join(base_url, f"api/v2/chat/completions{query}"), bearer(key))


QWEN_WEB = QwenWebDialect()
