"""OpenAI's older text Completions API: a prompt in, a text out. Base models and old clients use it."""

from __future__ import annotations

from typing import Any

from ...events import StreamError
from ...messages import Built, Request, Response
from ..endpoint import Endpoint, bearer, join
from ..interface import Dialect
from ..reader import Reader
from ..writer import Writer


class CompletionsDialect(Dialect):
    name = "openai_completions"
    title = "OpenAI text completions"

    def reader(self, **options: Any) -> Reader:
        from .reader import CompletionsReader

        return CompletionsReader(**options)

    def writer(self, **options: Any) -> Writer:
        from .writer import CompletionsWriter

        return CompletionsWriter(**options)

    def parse_request(self, body: dict[str, Any], **options: Any) -> Request:
        from .request import parse

        return parse(body, **options)

    def build_body(self, request: Request, **options: Any) -> Built:
        from .request import build

        return build(request, **options)

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Any) -> Endpoint:
        return Endpoint(join(base_url, "completions"), bearer(key))

    def build_response(self, response: Response, *, strict: bool = False, **options: Any) -> dict[str, Any]:
        from .response import build

        return build(response, strict=strict, **options)

    def error_body(self, error: StreamError) -> dict[str, Any]:
        from .wire import error_body

        return error_body(error)


OPENAI_COMPLETIONS = CompletionsDialect()
