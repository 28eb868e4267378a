"""How much to think: this dialect's ``thinking`` and ``output_config.effort``, and the words of the others.

Older models take a number of tokens, newer ones decide for themselves how long to think and take a word. Where a client
said one and the upstream takes the other, this table translates:

    effort   minimal    low  medium    high  xhigh    max
    budget      1024   2048    8192  16,384  32,768  65,536

A budget is read as the smallest word whose budget is not below it. The API takes no budget under 1024, and none that is
not below ``max_tokens``.
"""

from __future__ import annotations

from typing import Any, Final

from ...messages import Built, Effort, Reasoning, Request
from ..fields import Fields
from .wire import DIALECT

BUDGET_OF: Final[dict[Effort, int]] = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 65_536,
}
MIN_BUDGET: Final = 1024
"""The API refuses a smaller one."""
EFFORTS: Final[tuple[Effort, ...]] = ("low", "medium", "high", "xhigh", "max")


def effort_for(budget_tokens: int) -> Effort:
    """The word that stands for a number of thinking tokens, among those of this dialect."""
    return next((word for word in EFFORTS if budget_tokens <= BUDGET_OF[word]), "max")


def parse_reasoning(fields: Fields, output: Fields | None) -> Reasoning | None:
    """What no other dialect can say (``display: omitted``, a kind of thinking of its own) stays in the rest as well."""
    thinking = fields.take("thinking", dict)
    effort = output.take("effort", str) if output is not None else None
    if effort is not None and effort not in EFFORTS:
        raise fields.wrong("output_config.effort", " or ".join(EFFORTS), effort)
    if thinking is None and effort is None:
        return None
    reasoning = Reasoning(effort=effort)
    if thinking is None:
        return reasoning
    inner = Fields(thinking, "thinking")
    kind = inner.need("type", str)
    display = inner.take("display", str)
    reasoning.summary = "auto" if display == "summarized" else None
    match kind:
        case "enabled":
            reasoning.enabled, reasoning.budget_tokens = True, inner.need("budget_tokens", int)
        case "adaptive":
            reasoning.enabled = True
        case "disabled":
            reasoning.enabled = False
    if inner.rest or kind not in ("enabled", "adaptive", "disabled") or display not in (None, "summarized"):
        fields.rest["thinking"] = thinking
    return reasoning


def build_reasoning(request: Request, built: Built, adaptive: bool) -> None:
    """Writes ``thinking`` and ``output_config.effort``; ``max_tokens`` is in the body already."""
    reasoning = request.reasoning
    own = request.dialect == DIALECT
    if own and "thinking" in request.extra:
        built.body["thinking"] = request.extra["thinking"]
        _give_effort(built, reasoning.effort if reasoning else None)
        return
    if reasoning is None:
        return
    if reasoning.enabled is False or reasoning.effort == "none" or reasoning.budget_tokens == 0:
        built.body["thinking"] = {"type": "disabled"}
        return
    forced = built.body.get("tool_choice", {}).get("type") in ("any", "tool")
    if forced and not own:
        built.dropped.append("reasoning")
        return
    budget = reasoning.budget_tokens
    thinking: dict[str, Any] | None = {"type": "adaptive"}
    if own and budget is None:
        thinking = {"type": "adaptive"} if reasoning.enabled else None
        _give_effort(built, reasoning.effort)
    elif adaptive:
        _give_effort(built, reasoning.effort or (effort_for(budget) if budget is not None else None))
    else:
        thinking = _with_budget(request, built, BUDGET_OF[reasoning.effort or "medium"] if budget is None else budget)
        if own:
            _give_effort(built, reasoning.effort)
    if thinking is None:
        return
    if reasoning.summary is not None and (own or adaptive):
        thinking["display"] = "summarized"
    built.body["thinking"] = thinking


def _with_budget(request: Request, built: Built, budget: int) -> dict[str, Any] | None:
    if request.dialect == DIALECT:
        return {"type": "enabled", "budget_tokens": budget}
    budget = max(budget, MIN_BUDGET)
    if request.max_tokens is None:
        built.body["max_tokens"] += budget
    elif request.max_tokens <= MIN_BUDGET:
        built.dropped.append("reasoning")
        return None
    return {"type": "enabled", "budget_tokens": min(budget, built.body["max_tokens"] - 1)}


def _give_effort(built: Built, effort: Effort | None) -> None:
    if effort is not None and effort != "none":
        built.body.setdefault("output_config", {})["effort"] = "low" if effort == "minimal" else effort
