"""Responses that are no stream: the upstream's object to a Response, and a Response to the client's object."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...messages import Response, ToolSpec
from ...stages.collect import collect
from ...stages.replay import replay
from .error import error_body
from .reader import ResponsesReader
from .writer import ResponsesWriter


def parse(body: dict[str, Any], *, provider: str | None = None) -> Response:
    """A response at rest is the last event of a stream that said nothing before it."""
    return collect(ResponsesReader(provider=provider).read_whole(body))


def build(
    response: Response,
    *,
    strict: bool = False,
    mirror: Mapping[str, Any] | None = None,
    tools: Iterable[ToolSpec] = (),
) -> dict[str, Any]:
    """What the end of a stream would show: all items, and the usage."""
    if response.error is not None and not any(choice.parts for choice in response.choices):
        return error_body(response.error)
    writer = ResponsesWriter(strict=strict, mirror=mirror, tools=tools)
    writer.feed(replay(response))
    if response.extensions is not None and not strict:
        return {**writer.response, "extensions": response.extensions}
    return writer.response
