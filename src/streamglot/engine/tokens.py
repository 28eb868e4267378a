"""How many tokens a request and its answer may have, where nobody can be asked: a rule of thumb, and said to be one."""

from __future__ import annotations

from typing import Final

import msgspec

from ..events import Usage
from ..messages import MediaPart, ReasoningPart, RefusalPart, Request, Response, TextPart, TokenCounts, ToolCallPart

BYTES_PER_TOKEN: Final = 3.6
"""English prose has about 4.2 bytes a token, code and JSON about 3: an estimate that errs to the safe side."""
TOKENS_PER_MESSAGE: Final = 4
TOKENS_PER_IMAGE: Final = 1200


def estimate(request: Request) -> int:
    size, tokens = 0, 0
    for message in request.messages:
        tokens += TOKENS_PER_MESSAGE
        for part in message.parts:
            if isinstance(part, MediaPart):
                tokens += TOKENS_PER_IMAGE
            elif isinstance(part, TextPart):
                size += _bytes(part.text)
            else:
                size += len(msgspec.json.encode(part))
    size += sum(len(msgspec.json.encode(tool)) for tool in request.tools)
    return tokens + round(size / BYTES_PER_TOKEN)


def estimated_usage(
    request: Request, response: Response | None, events: int, told: Usage | TokenCounts | None, *, whole: bool
) -> TokenCounts | None:
    """The usage of an answer whose upstream did not say it, or not to the end (``whole``): what was ``told``, and an estimate
    for the rest. None where nothing is missing. An answer that was not collected has about a token in each of its events."""
    counts = TokenCounts() if told is None else TokenCounts(*(getattr(told, name) for name in TokenCounts.__struct_fields__))
    known = (counts.input_tokens, counts.output_tokens)
    if counts.input_tokens is None or not (whole or counts.input_tokens):
        counts.input_tokens = estimate(request)
    if counts.output_tokens is None or not whole:
        came = events if response is None else _said(response)
        counts.output_tokens = max(counts.output_tokens or 0, came)
    return None if known == (counts.input_tokens, counts.output_tokens) else counts


def _said(response: Response) -> int:
    size = 0
    for choice in response.choices:
        for part in choice.parts:
            if isinstance(part, (TextPart, ReasoningPart, RefusalPart)):
                size += _bytes(part.text)
            elif isinstance(part, ToolCallPart):
                size += _bytes(part.name) + _bytes(part.arguments)
    return round(size / BYTES_PER_TOKEN)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
