"""Amazon Bedrock Converse: content blocks in AWS event-stream frames, the same for every model."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from ...events import StreamError
from ...messages import Built, Request, Response
from ..abilities import PLAIN
from ..endpoint import Endpoint, bearer, join, path_segment
from ..interface import Dialect
from ..reader import Reader


class BedrockConverseDialect(Dialect):
    name = "bedrock_converse"
    title = "Amazon Bedrock Converse"
    media_type = "application/vnd.amazon.eventstream"
    abilities = structs.replace(PLAIN, cache_control=True)

    def reader(self, **options: Any) -> Reader:
        from .reader import BedrockConverseReader

        return BedrockConverseReader(**options)

    def parse_request(self, body: dict[str, Any], **options: Any) -> Request:
        from .request import parse

        return parse(body, **options)

    def build_body(self, request: Request, **options: Any) -> Built:
        from .request import build

        return build(request, **options)

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Any) -> Endpoint:
        verb = "converse-stream" if request.stream else "converse"
        return Endpoint(join(base_url, f"model/{path_segment(request.model)}/{verb}"), bearer(key))

    def build_response(self, response: Response, *, strict: bool = False, **options: Any) -> dict[str, Any]:
        from .response import build

        return build(response, strict=strict, **options)

    def error_body(self, error: StreamError) -> dict[str, Any]:
        from .wire import error_body

        return error_body(error)


BEDROCK_CONVERSE = BedrockConverseDialect()
