"""Reads and checks the query parameters of a request."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from starlette.requests import Request as HttpRequest

from ...errors import RequestError, excerpt

KEY = "key"
"""The query parameter in which some clients send their key."""


class Parameters:
    """The query parameters of a request. Unknown names are refused, because a misspelled filter would filter nothing."""

    def __init__(self, http: HttpRequest, *names: str) -> None:
        unknown = [name for name in http.query_params if name not in (*names, KEY)]
        if unknown:
            raise RequestError(
                f"{excerpt(unknown[0])} is not a parameter of this path; it has {', '.join(names) or 'no parameters'}"
            )
        self._values = http.query_params

    def __getitem__(self, name: str) -> str:
        return plain(self._values.get(name, ""))

    def one_of(self, name: str, *words: str) -> str:
        """Returns one of these words; the first if the parameter is absent."""
        word = self[name] or words[0]
        if word not in words:
            raise RequestError(f"{name} must be {' or '.join(words)}, not {excerpt(word)}")
        return word

    def limit(self, default: int, maximum: int) -> int:
        text = self["limit"] or str(default)
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= maximum):
            raise RequestError(f"limit must be a number from 1 to {maximum}, not {excerpt(text)}")
        return int(text)

    def moment(self, name: str) -> float:
        """Returns seconds since 1970, given as a number or an ISO date; 0 if the parameter is absent."""
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
            raise RequestError(f"{name} must be seconds since 1970 or a date like 2026-01-31T12:00Z, not {excerpt(text)}")
        return seconds


def plain(text: str) -> str:
    """Replaces NUL characters, which PostgreSQL does not accept in text."""
    return text.replace("\0", "\ufffd")
