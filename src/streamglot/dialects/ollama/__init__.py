"""Ollama's API: /api/chat and /api/generate, one JSON object per line."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Unpack

from ...events import StreamError
from ...json_types import JsonObject
from ...messages import Built, Request
from ..endpoint import UpstreamEndpoint, bearer, join
from ..interface import Dialect
from ..options import BuildOptions
from ..reader import Reader
from ..writer import Writer


class OllamaDialect(Dialect):
    name = "ollama"
    conversation = ""  # an empty request loads the model
    title = "Ollama"
    model_list_path = "api/tags"
    plain_reasoning = True
    media_type = "application/x-ndjson"

    @cached_property
    def reader(self) -> Callable[..., Reader]:
        from .reader import OllamaReader

        return OllamaReader

    @cached_property
    def writer(self) -> Callable[..., Writer]:
        from .writer import OllamaWriter

        return OllamaWriter

    @cached_property
    def request_parser(self) -> Callable[..., Request]:
        from .request import parse

        return parse

    @cached_property
    def build_body(self) -> Callable[..., Built]:
        from .request import build

        return build

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint:
        return UpstreamEndpoint(join(base_url, "api/chat"), bearer(key))

    @cached_property
    def response_builder(self) -> Callable[..., JsonObject]:
        from .response import build

        return build

    def error_body(self, error: StreamError) -> JsonObject:
        from .wire import error_body

        return error_body(error)


OLLAMA = OllamaDialect()
