"""How many tokens a model may think, for APIs that take a number and count the thinking against the limit of the whole answer."""

from __future__ import annotations

from typing import Final

MIN_BUDGET: Final = 1024
"""The smallest budget that these APIs accept, in tokens."""


def fit_budget(budget: int, max_tokens: int | None, *, given: bool) -> int | None:
    """Returns the budget for an answer of at most ``max_tokens``; None if the limit has no room for thinking.

    The limit is never raised, because clients set it to limit the cost. A budget that the client itself has ``given`` is used
    if the limit is greater. Any other is at most half of the limit, so that the rest is for the answer.
    """
    budget = max(budget, MIN_BUDGET)
    if max_tokens is None or (given and budget < max_tokens):
        return budget
    budget = max(min(budget, max_tokens // 2), MIN_BUDGET)
    return budget if budget < max_tokens else None
