"""OpenAI's Chat Completions API, and servers that are compatible with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Unpack

from msgspec import structs

from ...events import StreamError
from ...json_types import JsonObject
from ...messages import Built, Request
from ..abilities import PLAIN
from ..endpoint import UpstreamEndpoint, bearer, join
from ..interface import Dialect
from ..options import BuildOptions
from ..reader import Reader
from ..writer import Writer


class ChatDialect(Dialect):
    name = "openai_chat"
    title = "OpenAI chat completions"
    model_list_path = "models"
    plain_reasoning = True
    activity = True
    reasoning_summary = True
    reasoning_field = True
    abilities = structs.replace(PLAIN, developer_role=False, inner_system=False, user_chars=64, reasoning_object=False)
    """The parameters that every compatible server accepts. Many refuse custom tools, roles that their template lacks, system
    messages after the first, cache marks, the object ``reasoning``, and a ``user`` of more than 64 characters."""

    @cached_property
    def reader(self) -> Callable[..., Reader]:
        from .reader import ChatReader

        return ChatReader

    @cached_property
    def writer(self) -> Callable[..., Writer]:
        from .writer import ChatWriter

        return ChatWriter

    def writer_options(self, request: Request) -> JsonObject:
        return {**super().writer_options(request), "functions": request.functions}

    @cached_property
    def request_parser(self) -> Callable[..., Request]:
        from .request import parse

        return parse

    @cached_property
    def build_body(self) -> Callable[..., Built]:
        from .request import build

        return build

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint:
        return UpstreamEndpoint(join(base_url, "chat/completions"), bearer(key))

    @cached_property
    def response_builder(self) -> Callable[..., JsonObject]:
        from .response import build

        return build

    def error_body(self, error: StreamError) -> JsonObject:
        from .wire import error_body

        return error_body(error)


OPENAI_CHAT = ChatDialect()
