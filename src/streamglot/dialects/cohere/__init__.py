"""Cohere's chat API, version 2."""

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


class CohereDialect(Dialect):
    name = "cohere"
    title = "Cohere v2 chat"
    model_list_path = "v1/models?page_size=1000"

    @cached_property
    def reader(self) -> Callable[..., Reader]:
        from .reader import CohereReader

        return CohereReader

    @cached_property
    def request_parser(self) -> Callable[..., Request]:
        from .request import parse

        return parse

    @cached_property
    def build_body(self) -> Callable[..., Built]:
        from .request import build

        return build

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint:
        return UpstreamEndpoint(join(base_url, "v2/chat"), bearer(key))

    @cached_property
    def response_builder(self) -> Callable[..., JsonObject]:
        from .response import build

        return build

    def error_body(self, error: StreamError) -> JsonObject:
        from .wire import error_body

        return error_body(error)


COHERE = CohereDialect()
