"""What stands behind the question mark of an address."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from starlette.requests import Request as HttpRequest

from ...errors import RequestError, excerpt

KEY = "key"
"""Where some clients put their key."""


class Parameters:
    """A name that means nothing is refused: it would be a filter that filters nothing."""

    def __init__(self, http: HttpRequest, *names: str) -> None:
        unknown = [name for name in http.query_params if name not in (*names, KEY)]
        if unknown:
            raise RequestError(f"{excerpt(unknown[0])} means nothing here; there are {', '.join(names) or 'no parameters'}")
        self._values = http.query_params

    def __getitem__(self, name: str) -> str:
        return plain(self._values.get(name, ""))

    def one_of(self, name: str, *words: str) -> str:
        """One of these words, the first where nothing is said."""
        word = self[name] or words[0]
        if word not in words:
            raise RequestError(f"{name} is {' or '.join(words)}, not {excerpt(word)}")
        return word

    def limit(self, usual: int, most: int) -> int:
        text = self["limit"] or str(usual)
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
            raise RequestError(f"limit is a number from 1 to {most}, not {excerpt(text)}")
        return int(text)

    def moment(self, name: str) -> float:
        """Seconds since 1970, or a date as people write one; 0 where nothing is said."""
        text = self[name] or "0"
        try:
            seconds = float(text)
        except ValueError:
            try:
                moment = datetime.fromisoformat(text)
                seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
            except (ValueError, OverflowError):
                seconds = math.nan
        if not math.isfinite(seconds):
            raise RequestError(f"{name} is seconds since 1970 or a date like 2026-01-31T12:00Z, not {excerpt(text)}")
        return seconds


def plain(text: str) -> str:
    """Text as a database takes it in a question, and never another one that is in it."""
    return text.replace("\0", "\ufffd")
