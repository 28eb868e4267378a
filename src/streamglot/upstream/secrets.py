"""Secrets taken out of texts that others see: upstreams repeat keys in their errors, and people paste them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

HIDDEN = "••••"
SHORTEST = 6
"""Shorter secrets are placeholders such as "none", which stand in ordinary words."""
_LOOKS_LIKE_A_KEY = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|csk|fw|nvapi|r8|ghp|gho|glpat|xox[abps])[-_][A-Za-z0-9_\-]{16,}\b"
    r"|\bAIza[A-Za-z0-9_\-]{30,}\b|\bAKIA[A-Z0-9]{16}\b|\beyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]+"
)


def hide(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without these secrets, and without anything else that has the form of a key."""
    for secret in secrets:
        if len(secret) >= SHORTEST:
            text = text.replace(secret, HIDDEN)
    return _LOOKS_LIKE_A_KEY.sub(HIDDEN, text)


def hide_in(value: Any, secrets: Iterable[str] = ()) -> Any:
    """The same for all texts of a JSON value. One that cannot be told without them is not told."""
    if value is None:
        return None
    try:
        return msgspec.json.decode(hide(msgspec.json.encode(value).decode(), secrets))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return None
