"""Amazon Bedrock InvokeModel: AWS event-stream frames around the format of the model's family."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Unpack

from ...json_types import JsonObject
from ...messages import Built, Request
from ..abilities import UNSPECIFIED, Abilities
from ..echo import maker
from ..endpoint import UpstreamEndpoint, bearer, join, path_segment
from ..interface import Dialect
from ..options import BuildOptions, PrepareOptions
from ..reader import Reader


class BedrockInvokeDialect(Dialect):
    name = "bedrock_invoke"
    title = "Amazon Bedrock InvokeModel"
    media_type = "application/vnd.amazon.eventstream"

    @cached_property
    def reader(self) -> Callable[..., Reader]:
        from .reader import BedrockInvokeReader

        return BedrockInvokeReader

    @cached_property
    def request_parser(self) -> Callable[..., Request]:
        from .request import parse

        return parse

    def build_request(
        self, request: Request, *, abilities: Abilities = UNSPECIFIED, provider: str = "", **options: Unpack[PrepareOptions]
    ) -> Built:
        """The builder of the model's family makes the body, with the abilities of that family."""
        return self.build_body(request, abilities=abilities, provider=maker(self.name, provider), **options)

    @cached_property
    def build_body(self) -> Callable[..., Built]:
        from .request import build

        return build

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint:
        verb = "invoke-with-response-stream" if request.stream else "invoke"
        return UpstreamEndpoint(join(base_url, f"model/{path_segment(request.model)}/{verb}"), bearer(key))

    @cached_property
    def response_builder(self) -> Callable[..., JsonObject]:
        from .response import build

        return build


BEDROCK_INVOKE = BedrockInvokeDialect()
