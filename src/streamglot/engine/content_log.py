"""The content of requests and answers for the log. It is logged only if the configuration enables it, and without secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from ..json_types import JsonObject
from ..messages import Request, Response
from ..upstream.secrets import HIDDEN, hide

if TYPE_CHECKING:
    from ..patterns.scanner import PatternSet

MAX_LOGGED_CHARS: Final = 100_000
"""Characters of the request and of the answer in one log line, so that people can read it."""
EDGE_CHARS: Final = 10_000
"""Characters dropped at the end of a text that was cut before the search, because half a secret may be there."""


class ContentLog:
    """Makes log lines with content.

    It hides keys, the ``secrets`` of upstreams and the ``patterns`` of ``server.redact``. The policies' pattern engine runs in
    linear time, so a client cannot stop the gateway with a text on which a pattern backtracks.
    """

    def __init__(self, patterns: list[str], secrets: Callable[[], Iterable[str]] = tuple) -> None:
        self._patterns = _compiled(patterns) if patterns else None
        self._secrets = secrets

    def line(self, request_id: str, request: Request, response: Response) -> JsonObject:
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
        text = whole[: 2 * MAX_LOGGED_CHARS]
        for secret in self._secrets():
            text = hide(text, {secret, msgspec.json.encode(secret).decode()[1:-1]})
        text = hide(text)
        if self._patterns is not None:
            # A match is not plain text, nor is a candidate that is too long to be decided, which is always the last segment.
            text = "".join(segment if isinstance(segment, str) else HIDDEN for segment in self._patterns.segments(text))
        room = min(MAX_LOGGED_CHARS, len(text) - EDGE_CHARS) if len(whole) > 2 * MAX_LOGGED_CHARS else MAX_LOGGED_CHARS
        return text if len(text) <= room else f"{text[: max(0, room)]} … ({len(whole)} in all)"


def _compiled(patterns: list[str]) -> PatternSet:
    from ..patterns.scanner import Pattern, PatternSet  # re2 is an optional extra, which only a gateway with patterns needs

    return PatternSet([Pattern("redact", pattern) for pattern in patterns])
