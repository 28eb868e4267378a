"""What was asked and answered, for the log: only where the configuration asks for it, and without secrets."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ..messages import Request, Response
from ..upstream.secrets import HIDDEN, hide

MOST_CHARS = 100_000
"""Of the question and of the answer each: a line of the log must stay one that can be read."""


class ContentLog:
    """``patterns`` find what must not stand in the log, beside keys, which never do."""

    def __init__(self, patterns: list[str]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]

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
        text = hide(msgspec.json.encode(value).decode())
        for pattern in self._patterns:
            text = pattern.sub(HIDDEN, text)
        return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]} … ({len(text)} in all)"
