"""How many tokens a request may have, where nobody can be asked: a rule of thumb, and said to be one."""

from __future__ import annotations

import msgspec

from ..messages import MediaPart, Request, TextPart

BYTES_PER_TOKEN = 3.6
"""English prose has about 4.2 bytes a token, code and JSON about 3: an estimate that errs to the safe side."""
TOKENS_PER_MESSAGE = 4
TOKENS_PER_IMAGE = 1200


def estimate(request: Request) -> int:
    size, tokens = 0, 0
    for message in request.messages:
        tokens += TOKENS_PER_MESSAGE
        for part in message.parts:
            if isinstance(part, MediaPart):
                tokens += TOKENS_PER_IMAGE
            elif isinstance(part, TextPart):
                size += len(part.text.encode())
            else:
                size += len(msgspec.json.encode(part))
    size += sum(len(msgspec.json.encode(tool)) for tool in request.tools)
    return tokens + round(size / BYTES_PER_TOKEN)
