"""Amazon Bedrock InvokeModel: AWS event-stream frames around the format of the model's family."""

from __future__ import annotations

from typing import Unpack

from ...messages import Built, Request
from ..common.abilities import UNSPECIFIED, Abilities
from ..common.options import BuildOptions, PrepareOptions
from ..common.state import maker
from ..interface import Dialect, UpstreamEndpoint, bearer, join, lazy, path_segment


class BedrockInvokeDialect(Dialect):
    name = "bedrock_invoke"
    title = "Amazon Bedrock InvokeModel"
    media_type = "application/vnd.amazon.eventstream"

    reader = lazy("read.BedrockInvokeReader")
    request_parser = lazy("request.parse")
    build_body = lazy("request.build")
    response_builder = lazy("read.build")

    def build_request(
        self, request: Request, *, abilities: Abilities = UNSPECIFIED, provider: str = "", **options: Unpack[PrepareOptions]
    ) -> Built:
        """The builder of the model's family makes the body, with the abilities of that family."""
        built: Built = self.build_body(request, abilities=abilities, provider=maker(self.name, provider), **options)
        return built

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint:
        verb = "invoke-with-response-stream" if request.stream else "invoke"
        return UpstreamEndpoint(join(base_url, f"model/{path_segment(request.model)}/{verb}"), bearer(key))


BEDROCK_INVOKE = BedrockInvokeDialect()
