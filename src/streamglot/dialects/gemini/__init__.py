"""Gemini's generateContent API, as Google AI Studio and Vertex AI offer it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final, Unpack

from ...events import Event, StreamError
from ...json_types import JsonObject
from ...messages import Built, Request
from ..endpoint import UpstreamEndpoint, join, path_segments
from ..hosted_tools import HostedCall
from ..interface import Dialect, checked_body
from ..options import BuildOptions
from ..reader import Reader
from ..writer import Writer

PREFIX: Final = "models/"


class GeminiDialect(Dialect):
    name = "gemini"
    conversation = "contents"
    title = "Google Gemini"
    model_list_path = "models?pageSize=1000"

    @cached_property
    def reader(self) -> Callable[..., Reader]:
        from .reader import GeminiReader

        return GeminiReader

    @cached_property
    def writer(self) -> Callable[..., Writer]:
        from .writer import GeminiWriter

        return GeminiWriter

    @cached_property
    def request_parser(self) -> Callable[..., Request]:
        from .request import parse

        return parse

    @cached_property
    def build_body(self) -> Callable[..., Built]:
        from .request import build

        return build

    def parse_request(self, body: JsonObject, *, model: str = "", stream: bool | None = None) -> Request:
        """The URL of a request names the model and whether it streams; the body does not."""
        return self.request_parser(checked_body(body), model=model, stream=bool(stream))

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint:
        verb = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
        path = f"{PREFIX}{path_segments(self.model_name(request.model))}:{verb}"
        return UpstreamEndpoint(join(base_url, path), {"x-goog-api-key": key} if key else {})

    def model_name(self, model: str) -> str:
        """The model without the prefix that clients of this dialect add. The URL has the prefix already."""
        while model.startswith(PREFIX):
            model = model.removeprefix(PREFIX)
        return model

    @cached_property
    def response_builder(self) -> Callable[..., JsonObject]:
        from .response import build

        return build

    def error_body(self, error: StreamError) -> JsonObject:
        from .wire import error_body

        return error_body(error)

    def parse_count(self, body: JsonObject, model: str = "") -> Request:
        from .request import parse_count

        return parse_count(body, model)

    def count_body(self, tokens: int) -> JsonObject:
        return {"totalTokens": tokens}

    def hosted_events(self, call: HostedCall) -> list[Event] | None:
        from .hosted import events

        return events(call)


GEMINI = GeminiDialect()
