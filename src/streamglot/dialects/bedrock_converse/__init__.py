"""Amazon Bedrock Converse: content blocks in AWS event-stream frames, the same for every model."""

from __future__ import annotations

from typing import Unpack

from msgspec import structs

from ...messages import Request
from ..common.abilities import PLAIN
from ..common.options import BuildOptions
from ..interface import Dialect, UpstreamEndpoint, bearer, join, lazy, path_segment


class BedrockConverseDialect(Dialect):
    name = "bedrock_converse"
    title = "Amazon Bedrock Converse"
    media_type = "application/vnd.amazon.eventstream"
    abilities = structs.replace(PLAIN, cache_control=True)

    reader = lazy("read.BedrockConverseReader")
    request_parser = lazy("request.parse")
    build_body = lazy("request.build")
    response_builder = lazy("write.build")
    error_body = lazy("wire.error_body")

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint:
        verb = "converse-stream" if request.stream else "converse"
        return UpstreamEndpoint(join(base_url, f"model/{path_segment(request.model)}/{verb}"), bearer(key))


BEDROCK_CONVERSE = BedrockConverseDialect()
