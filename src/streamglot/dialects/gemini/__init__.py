"""Gemini's generateContent API, as Google AI Studio and Vertex AI offer it."""

from __future__ import annotations

from typing import Final, Unpack

from ...json_types import JsonObject
from ...messages import Request
from ..common.options import BuildOptions
from ..interface import Dialect, UpstreamEndpoint, checked_body, join, lazy, path_segments

PREFIX: Final = "models/"


class GeminiDialect(Dialect):
    name = "gemini"
    conversation = "contents"
    title = "Google Gemini"
    model_list_path = "models?pageSize=1000"

    reader = lazy("read.GeminiReader")
    writer = lazy("write.GeminiWriter")
    request_parser = lazy("request.parse")
    build_body = lazy("request.build")
    response_builder = lazy("write.build")
    error_body = lazy("wire.error_body")
    parse_count = lazy("request.parse_count")
    hosted_events = lazy("parts.hosted_events")

    def parse_request(self, body: JsonObject, *, model: str = "", stream: bool | None = None) -> Request:
        """The URL of a request names the model and whether it streams; the body does not."""
        request: Request = self.request_parser(checked_body(body), model=model, stream=bool(stream))
        return request

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint:
        verb = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
        path = f"{PREFIX}{path_segments(self.model_name(request.model))}:{verb}"
        return UpstreamEndpoint(join(base_url, path), {"x-goog-api-key": key} if key else {})

    def model_name(self, model: str) -> str:
        """The model without the prefix that clients of this dialect add. The URL has the prefix already."""
        while model.startswith(PREFIX):
            model = model.removeprefix(PREFIX)
        return model

    def count_body(self, tokens: int) -> JsonObject:
        return {"totalTokens": tokens}


GEMINI = GeminiDialect()
