"""Amazon Bedrock Converse: content blocks in AWS event-stream frames, the same for every model."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Unpack

from msgspec import structs

from ...events import StreamError
from ...json_types import JsonObject
from ...messages import Built, Request
from ..abilities import PLAIN
from ..endpoint import UpstreamEndpoint, bearer, join, path_segment
from ..interface import Dialect
from ..options import BuildOptions
from ..reader import Reader


class BedrockConverseDialect(Dialect):
    name = "bedrock_converse"
    title = "Amazon Bedrock Converse"
    media_type = "application/vnd.amazon.eventstream"
    abilities = structs.replace(PLAIN, cache_control=True)

    @cached_property
    def reader(self) -> Callable[..., Reader]:
        from .reader import BedrockConverseReader

        return BedrockConverseReader

    @cached_property
    def request_parser(self) -> Callable[..., Request]:
        from .request import parse

        return parse

    @cached_property
    def build_body(self) -> Callable[..., Built]:
        from .request import build

        return build

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint:
        verb = "converse-stream" if request.stream else "converse"
        return UpstreamEndpoint(join(base_url, f"model/{path_segment(request.model)}/{verb}"), bearer(key))

    @cached_property
    def response_builder(self) -> Callable[..., JsonObject]:
        from .response import build

        return build

    def error_body(self, error: StreamError) -> JsonObject:
        from .wire import error_body

        return error_body(error)


BEDROCK_CONVERSE = BedrockConverseDialect()
