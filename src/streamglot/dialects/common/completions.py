"""What chat completions and text completions have in common: parameters, the options of a stream, the frame of a whole answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ...events import StreamError
from ...json_types import JsonObject
from ...messages import Request, Response
from .fields import Fields
from .tables import completion_usage

SAMPLING: Final = {
    "max_tokens": "max_tokens",
    "stop": "stop",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "logit_bias": "logit_bias",
    "seed": "seed",
    "n": "n",
    "user": "user",
}


def parse_usage_option(fields: Fields, request: Request) -> None:
    """A whole answer always tells its usage, a stream on request."""
    options = fields.inner("stream_options")
    request.include_usage = bool(options and options.take("include_usage", bool, False)) or not request.stream


def build_stream(request: Request) -> JsonObject:
    return {"stream": True, "stream_options": {"include_usage": True}} if request.stream else {}


def build_completion(
    response: Response,
    kind: str,
    choices: list[JsonObject],
    extras: Iterable[JsonObject],
    error_body: Callable[[StreamError], JsonObject],
    *,
    strict: bool,
) -> JsonObject:
    """``extras`` are the provider's own fields, which the specification does not have."""
    if response.error is not None and not any(choice.parts for choice in response.choices):
        return error_body(response.error)
    body: JsonObject = {
        "id": response.id,
        "object": kind,
        "created": response.created,
        "model": response.model,
        "choices": choices,
    }
    usage = completion_usage(response.usage, strict)
    if usage is not None:
        body["usage"] = usage
    if not strict:
        for fields in extras:
            body.update(fields)
        if response.extensions is not None:
            body["extensions"] = response.extensions
    if response.error is not None:
        body.update(error_body(response.error))
    return body
