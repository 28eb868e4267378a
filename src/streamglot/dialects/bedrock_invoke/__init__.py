"""Amazon Bedrock InvokeModel: AWS event-stream frames around the format of the model's family."""

from __future__ import annotations

from typing import Any

from ...messages import Built, Request, Response
from ..abilities import UNSPECIFIED, Abilities
from ..endpoint import Endpoint, bearer, join, path_segment
from ..interface import Dialect
from ..reader import Reader


class BedrockInvokeDialect(Dialect):
    name = "bedrock_invoke"
    title = "Amazon Bedrock InvokeModel"
    media_type = "application/vnd.amazon.eventstream"

    def reader(self, **options: Any) -> Reader:
        from .reader import BedrockInvokeReader

        return BedrockInvokeReader(**options)

    def parse_request(self, body: dict[str, Any], **options: Any) -> Request:
        from .request import parse

        return parse(body, **options)

    def build_request(self, request: Request, *, abilities: Abilities = UNSPECIFIED, **options: Any) -> Built:
        """The builder of the model's family makes the body, with the abilities of that family."""
        from .request import build

        return build(request, abilities=abilities, **options)

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Any) -> Endpoint:
        verb = "invoke-with-response-stream" if request.stream else "invoke"
        return Endpoint(join(base_url, f"model/{path_segment(request.model)}/{verb}"), bearer(key))

    def build_response(self, response: Response, *, strict: bool = False, **options: Any) -> dict[str, Any]:
        from .response import build

        return build(response, strict=strict, **options)


BEDROCK_INVOKE = BedrockInvokeDialect()
