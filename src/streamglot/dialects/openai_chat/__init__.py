"""OpenAI's Chat Completions API, and servers that are compatible with it."""

from __future__ import annotations

from msgspec import structs

from ...json_types import JsonObject
from ...messages import Request
from ..common.abilities import PLAIN
from ..interface import Dialect, lazy


class ChatDialect(Dialect):
    name = "openai_chat"
    title = "OpenAI chat completions"
    request_path = "chat/completions"
    model_list_path = "models"
    plain_reasoning = True
    activity = True
    reasoning_summary = True
    reasoning_field = True
    abilities = structs.replace(PLAIN, developer_role=False, inner_system=False, user_chars=64, reasoning_object=False)
    """The parameters that every compatible server accepts. Many refuse custom tools, roles that their template lacks, system
    messages after the first, cache marks, the object ``reasoning``, and a ``user`` of more than 64 characters."""

    reader = lazy("read.ChatReader")
    writer = lazy("write.ChatWriter")
    request_parser = lazy("request.parse")
    build_body = lazy("request.build")
    response_builder = lazy("write.build")
    error_body = lazy("wire.error_body")

    def writer_options(self, request: Request) -> JsonObject:
        return {**super().writer_options(request), "functions": request.functions}


OPENAI_CHAT = ChatDialect()
