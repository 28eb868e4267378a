"""Builds the response object for a client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...json_types import JsonObject, JsonValue
from ...messages import Response, ToolSpec
from ...stages.replay import replay
from .wire import error_body
from .write import ResponsesWriter


def build(
    response: Response,
    *,
    strict: bool = False,
    mirror: Mapping[str, JsonValue] | None = None,
    tools: Iterable[ToolSpec] = (),
) -> JsonObject:
    """The object that the end of a stream would contain: all items, and the usage."""
    if response.error is not None and not any(choice.parts for choice in response.choices):
        return error_body(response.error)
    writer = ResponsesWriter(strict=strict, mirror=mirror, tools=tools)
    writer.feed(replay(response))
    if response.extensions is not None and not strict:
        return {**writer.response, "extensions": response.extensions}
    return writer.response
