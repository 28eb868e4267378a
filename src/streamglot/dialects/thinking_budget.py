"""How many tokens a model may think, for APIs that take a number and count the thinking against the limit of the whole answer."""

from __future__ import annotations

from typing import Final

from ..messages import Built, Reasoning

MIN_BUDGET: Final = 1024
"""The smallest budget that these APIs accept, in tokens."""
_EFFORTS: Final = ((0, "none"), (2048, "low"), (12_288, "medium"))
"""The efforts for budgets up to these numbers of tokens; a larger one is ``high``."""


def is_off(reasoning: Reasoning) -> bool:
    """Whether the model is not to think."""
    return reasoning.enabled is False or reasoning.effort == "none" or reasoning.budget_tokens == 0


def effort_for(reasoning: Reasoning, built: Built) -> str | None:
    """The effort, for APIs that take no number of tokens."""
    budget = reasoning.budget_tokens
    if budget is not None:
        built.dropped.append("reasoning.budget_tokens")
    if reasoning.enabled is False:
        return "none"
    if reasoning.effort is None and budget is not None:
        return next((effort for max_budget, effort in _EFFORTS if budget <= max_budget), "high")
    return reasoning.effort or ("medium" if reasoning.enabled else None)


def fit_budget(budget: int, max_tokens: int | None, *, given: bool) -> int | None:
    """The budget for an answer of at most ``max_tokens``; None if the limit has no room for thinking.

    The limit is never raised, because clients set it to limit the cost. A budget that the client itself has ``given`` is used
    if the limit is greater. Any other is at most half of the limit, so that the rest is for the answer.
    """
    budget = max(budget, MIN_BUDGET)
    if max_tokens is None or (given and budget < max_tokens):
        return budget
    budget = max(min(budget, max_tokens // 2), MIN_BUDGET)
    return budget if budget < max_tokens else None
