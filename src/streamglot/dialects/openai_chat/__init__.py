"""OpenAI's Chat Completions API, and servers that are compatible with it."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from ...events import StreamError
from ...messages import Built, Request, Response
from ..abilities import PLAIN
from ..endpoint import Endpoint, bearer, join
from ..interface import Dialect
from ..reader import Reader
from ..writer import Writer


class ChatDialect(Dialect):
    name = "openai_chat"
    title = "OpenAI chat completions"
    activity = True
    abilities = structs.replace(PLAIN, developer_role=False, inner_system=False, user_chars=64)
    """The parameters that every compatible server accepts. Many refuse custom tools, roles that their template lacks, system
    messages after the first, cache marks, and a ``user`` of more than 64 characters."""

    def reader(self, **options: Any) -> Reader:
        from .reader import ChatReader

        return ChatReader(**options)

    def writer(self, **options: Any) -> Writer:
        from .writer import ChatWriter

        return ChatWriter(**options)

    def parse_request(self, body: dict[str, Any], **options: Any) -> Request:
        from .request import parse

        return parse(body, **options)

    def build_body(self, request: Request, **options: Any) -> Built:
        from .request import build

        return build(request, **options)

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Any) -> Endpoint:
        return Endpoint(join(base_url, "chat/completions"), bearer(key))

    def build_response(self, response: Response, *, strict: bool = False, **options: Any) -> dict[str, Any]:
        from .response import build

        return build(response, strict=strict, **options)

    def error_body(self, error: StreamError) -> dict[str, Any]:
        from .wire import error_body

        return error_body(error)


OPENAI_CHAT = ChatDialect()
