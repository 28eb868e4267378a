"""The stream of Qwen's web chat. The server keeps the conversation and sends its state in the first event."""

from __future__ import annotations

from typing import Unpack

from ...messages import Request
from ..common.options import BuildOptions
from ..interface import Dialect, Setup, UpstreamEndpoint, bearer, encoded, join, lazy


class QwenWebDialect(Dialect):
    name = "qwen_web"
    title = "Qwen web chat"
    model_list_path = "api/models"
    keeps_conversation = True
    calls_in_text = "tool_tags"
    bad_call = "text"

    reader = lazy("read.QwenWebReader")
    build_body = lazy("request.build")
    continuation = lazy("request.continuation")

    def setup(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> Setup | None:
        """A new chat, unless the conversation, its client or the configuration names one."""
        from .request import build_chat, chat_of, read_chat

        if chat_of(request, options.get("chat_id")):
            return None
        timestamp, mode = options.get("timestamp"), options.get("chat_mode")
        body = build_chat(
            request,
            timestamp=1000 * timestamp if isinstance(timestamp, int) else 0,
            chat_mode=mode if isinstance(mode, str) else "normal",
        )
        return Setup("a new chat", UpstreamEndpoint(join(base_url, "api/v2/chats/new"), bearer(key)), body, read_chat)

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint:
        from .request import chat_of

        chat = chat_of(request, options.get("chat_id"))
        query = f"?chat_id={encoded(chat)}" if chat else ""
        return UpstreamEndpoint(join(base_url, f"api/v2/chat/completions{query}"), bearer(key))


QWEN_WEB = QwenWebDialect()
