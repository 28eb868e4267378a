"""OpenAI's older text Completions API: a prompt in, a text out. Base models and old clients use it."""

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


class CompletionsDialect(Dialect):
    name = "openai_completions"
    conversation = ""  # a prompt may be empty
    title = "OpenAI text completions"
    model_list_path = "models"

    @cached_property
    def reader(self) -> Callable[..., Reader]:
        from .reader import CompletionsReader

        return CompletionsReader

    @cached_property
    def writer(self) -> Callable[..., Writer]:
        from .writer import CompletionsWriter

        return CompletionsWriter

    @cached_property
    def request_parser(self) -> Callable[..., Request]:
        from .request import parse

        return parse

    @cached_property
    def build_body(self) -> Callable[..., Built]:
        from .request import build

        return build

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint:
        return UpstreamEndpoint(join(base_url, "completions"), bearer(key))

    @cached_property
    def response_builder(self) -> Callable[..., JsonObject]:
        from .response import build

        return build

    def error_body(self, error: StreamError) -> JsonObject:
        from .wire import error_body

        return error_body(error)


OPENAI_COMPLETIONS = CompletionsDialect()
