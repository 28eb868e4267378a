"""OpenAI's Responses API: typed items over server-sent events."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Unpack

from msgspec import structs

from ...events import Event, StreamError
from ...json_types import JsonObject
from ...messages import Built, Request, Response
from ..abilities import PLAIN
from ..endpoint import UpstreamEndpoint, bearer, join
from ..hosted_tools import HostedCall
from ..interface import Dialect, FindAnswers
from ..options import BuildOptions
from ..reader import Reader
from ..writer import Writer

_ELSEWHERE = ("previous_response_id", "conversation", "prompt")
"""Fields that give a conversation which is not in the request."""


class ResponsesDialect(Dialect):
    name = "openai_responses"
    reasoning_summary = True
    conversation = "input"
    title = "OpenAI responses"
    model_list_path = "models"
    abilities = structs.replace(PLAIN, custom_tools=True, namespaces=True, user_chars=64, call_id_chars=64)

    @cached_property
    def reader(self) -> Callable[..., Reader]:
        from .reader import ResponsesReader

        return ResponsesReader

    @cached_property
    def writer(self) -> Callable[..., Writer]:
        from .writer import ResponsesWriter

        return ResponsesWriter

    @cached_property
    def request_parser(self) -> Callable[..., Request]:
        from .request import parse

        return parse

    @cached_property
    def build_body(self) -> Callable[..., Built]:
        from .request import build

        return build

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint:
        return UpstreamEndpoint(join(base_url, "responses"), bearer(key))

    @cached_property
    def response_builder(self) -> Callable[..., JsonObject]:
        from .response import build

        return build

    def error_body(self, error: StreamError) -> JsonObject:
        from .wire import error_body

        return error_body(error)

    def parse_count(self, body: JsonObject, model: str = "") -> Request:
        return self.parse_request(body)

    def count_body(self, tokens: int) -> JsonObject:
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def need_conversation(self, body: JsonObject) -> None:
        if body.get("generate") is not False and not any(body.get(name) for name in _ELSEWHERE):
            super().need_conversation(body)

    def writer_options(self, request: Request) -> JsonObject:
        return {**super().writer_options(request), "mirror": self.repeated_fields(request, False), "tools": request.tools}

    def repeated_fields(self, request: Request, instructed: bool) -> JsonObject:
        from .stored import repeated_fields

        return repeated_fields(request, instructed)

    def input_items(self, request: Request, response_id: str, instructed: bool) -> list[JsonObject]:
        from .stored import input_items

        return input_items(request, response_id, instructed)

    def hosted_events(self, call: HostedCall) -> list[Event] | None:
        from .hosted import events

        return events(call)

    @property
    def approval_answers(self) -> FindAnswers | None:
        from .request import approval_answers

        return approval_answers

    def summary_request(self, request: Request) -> Request:
        from .compaction import summary_request

        return summary_request(request)

    def build_compaction(self, response: Response, body: JsonObject) -> JsonObject:
        from .compaction import build_compaction

        return build_compaction(response, body)


OPENAI_RESPONSES = ResponsesDialect()
