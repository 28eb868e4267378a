"""OpenAI's Responses API: typed items over server-sent events."""

from __future__ import annotations

from msgspec import structs

from ...json_types import JsonObject
from ...messages import Request
from ..common.abilities import PLAIN
from ..interface import Dialect, lazy

_ELSEWHERE = ("previous_response_id", "conversation", "prompt")
"""Fields that give a conversation which is not in the request."""


class ResponsesDialect(Dialect):
    name = "openai_responses"
    reasoning_summary = True
    conversation = "input"
    title = "OpenAI responses"
    request_path = "responses"
    model_list_path = "models"
    abilities = structs.replace(PLAIN, custom_tools=True, namespaces=True, user_chars=64, call_id_chars=64)

    reader = lazy("read.ResponsesReader")
    writer = lazy("write.ResponsesWriter")
    request_parser = lazy("request.parse")
    build_body = lazy("request.build")
    response_builder = lazy("response.build")
    error_body = lazy("wire.error_body")
    approval_answers = lazy("request.approval_answers")
    hosted_events = lazy("tools.hosted_events")
    repeated_fields = lazy("stored.repeated_fields")
    input_items = lazy("stored.input_items")
    summary_request = lazy("compaction.summary_request")
    build_compaction = lazy("compaction.build_compaction")

    def parse_count(self, body: JsonObject, model: str = "") -> Request:
        return self.parse_request(body)

    def count_body(self, tokens: int) -> JsonObject:
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def need_conversation(self, body: JsonObject) -> None:
        if body.get("generate") is not False and not any(body.get(name) for name in _ELSEWHERE):
            super().need_conversation(body)

    def writer_options(self, request: Request) -> JsonObject:
        return {**super().writer_options(request), "mirror": self.repeated_fields(request, False), "tools": request.tools}


OPENAI_RESPONSES = ResponsesDialect()
