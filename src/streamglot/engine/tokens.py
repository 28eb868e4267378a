"""Estimates the tokens of a request and its answer, if no upstream reports them."""

from __future__ import annotations

from typing import Final

import msgspec

from ..events import Usage
from ..messages import MediaPart, ReasoningPart, RefusalPart, Request, Response, TextPart, TokenCounts, ToolCallPart

BYTES_PER_TOKEN: Final = 3.6
"""English prose has about 4.2 bytes per token, code and JSON about 3. This value estimates prose too high rather than too low."""
TOKENS_PER_MESSAGE: Final = 4
"""Tokens that the chat template adds to each message, for its role and its delimiters."""
TOKENS_PER_IMAGE: Final = 1200
"""Tokens of an image of about one megapixel: a middle value of what vendors count."""


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
    request: Request, response: Response | None, events: int, reported: Usage | TokenCounts | None, *, whole: bool
) -> TokenCounts | None:
    """The usage of an answer whose upstream did not report it, or not completely; None if nothing is missing.

    ``reported`` is the upstream's count; the rest is estimated. ``whole`` says that the answer came to its end. An answer that
    was not collected counts as one token per event.
    """
    counts = (
        TokenCounts() if reported is None else TokenCounts(*(getattr(reported, name) for name in TokenCounts.__struct_fields__))
    )
    known = (counts.input_tokens, counts.output_tokens)
    if counts.input_tokens is None or not (whole or counts.input_tokens):
        counts.input_tokens = estimate(request)
    if counts.output_tokens is None or not whole:
        output = events if response is None else _answer_tokens(response)
        counts.output_tokens = max(counts.output_tokens or 0, output)
    return None if known == (counts.input_tokens, counts.output_tokens) else counts


def _answer_tokens(response: Response) -> int:
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
