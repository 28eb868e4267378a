"""Anthropic's Messages API in both generations, and servers that are compatible with it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Unpack

from msgspec import structs

from ...json_types import JsonObject
from ...messages import Request
from ..common.abilities import PLAIN
from ..common.options import BuildOptions
from ..interface import Dialect, UpstreamEndpoint, join, lazy

DEFAULT_VERSION: Final = "2023-06-01"


class AnthropicDialect(Dialect):
    name = "anthropic"
    title = "Anthropic messages"
    model_list_path = "v1/models?limit=1000"
    abilities = structs.replace(PLAIN, cache_control=True, inner_system=False, user_chars=256)
    """System messages inside the conversation are new: servers that are only compatible refuse them."""

    reader = lazy("read.AnthropicReader")
    writer = lazy("write.AnthropicWriter")
    request_parser = lazy("request.parse")
    build_body = lazy("request.build")
    response_builder = lazy("write.build")
    error_body = lazy("wire.error_body")
    hosted_events = lazy("wire.hosted_events")

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint:
        headers = {"anthropic-version": options.get("version", DEFAULT_VERSION)}
        if key:
            headers["x-api-key"] = key
        return UpstreamEndpoint(join(_without_version(base_url), "v1/messages"), headers)

    def model_list(self, base_url: str, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint | None:
        return super().model_list(_without_version(base_url), key, **options)

    def limit_headers(self, what: str, limit: int, left: int, seconds: float, now: float) -> dict[str, str]:
        reset = datetime.fromtimestamp(now + seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        names = (("limit", str(limit)), ("remaining", str(left)), ("reset", reset))
        return {f"anthropic-ratelimit-{what}-{name}": value for name, value in names}

    def parse_count(self, body: JsonObject, model: str = "") -> Request:
        return self.parse_request({"max_tokens": 1, **body})

    def count_body(self, tokens: int) -> JsonObject:
        return {"input_tokens": tokens}


def _without_version(base_url: str) -> str:
    """The base URL without the version that some clients put at its end."""
    base, mark, parameters = base_url.partition("?")
    return f"{base.rstrip('/').removesuffix('/v1')}{mark}{parameters}"


ANTHROPIC = AnthropicDialect()
