"""What was asked and answered, for the log: only where the configuration asks for it, and without secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from ..messages import Request, Response
from ..upstream.secrets import HIDDEN, hide

MOST_CHARS: Final = 100_000
"""Of the question and of the answer each: a line of the log must stay one that can be read."""
EDGE_CHARS: Final = 10_000
"""Of a text that was cut before it was searched, the end is left out: half a secret may stand there."""


class ContentLog:
    """``patterns`` find what must not stand in the log, beside keys and the ``secrets`` of upstreams, which never do."""

    def __init__(self, patterns: list[str], secrets: Callable[[], Iterable[str]] = tuple) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._secrets = secrets

    def line(self, request_id: str, request: Request, response: Response) -> dict[str, Any]:
        parts = [part for choice in response.choices for part in choice.parts]
        return {
            "event": "content",
            "request_id": request_id,
            "asked": self._clean(request.messages),
            "answered": self._clean(parts),
            "error": response.error.code if response.error is not None else None,
        }

    def _clean(self, value: object) -> str:
        whole = msgspec.json.encode(value).decode()
        text = whole[: 2 * MOST_CHARS]
        for secret in self._secrets():
            text = hide(text, {secret, msgspec.json.encode(secret).decode()[1:-1]})
        text = hide(text)
        for pattern in self._patterns:
            text = pattern.sub(HIDDEN, text)
        room = min(MOST_CHARS, len(text) - EDGE_CHARS) if len(whole) > 2 * MOST_CHARS else MOST_CHARS
        return text if len(text) <= room else f"{text[: max(0, room)]} … ({len(whole)} in all)"
