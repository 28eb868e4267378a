"""The reasoning effort: this dialect's ``thinking`` and ``output_config.effort``, and the words of other dialects.

Older models take a number of tokens; newer ones decide themselves how long to think and take a word. If a client sent one and the
upstream takes the other, this table converts:

    effort   minimal    low  medium    high  xhigh    max
    budget      1024   2048    8192  16,384  32,768  65,536

A budget becomes the smallest word whose budget is not below it. ``fit_budget`` makes it fit into ``max_tokens``.
"""

from __future__ import annotations

from typing import Final

from ...json_types import JsonObject
from ...messages import EFFORTS, Built, Effort, Reasoning, Request
from ..fields import Fields
from ..thinking_budget import fit_budget, is_off
from .wire import DIALECT

BUDGET_OF: Final[dict[Effort, int]] = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16_384,
    "xhigh": 32_768,
    "max": 65_536,
}
API_EFFORTS: Final = EFFORTS[2:]
"""The efforts that this API knows: all but "none" and "minimal"."""


def effort_for(budget_tokens: int) -> Effort:
    """The effort of this dialect for a number of thinking tokens."""
    return next((word for word in API_EFFORTS if budget_tokens <= BUDGET_OF[word]), "max")


def parse_reasoning(fields: Fields, output: Fields | None) -> Reasoning | None:
    """Settings that other dialects cannot express (``display: omitted``, an unknown type of thinking) also stay in the
    remaining fields."""
    thinking = fields.take("thinking", dict)
    given = output.take("effort", str) if output is not None else None
    effort = fields.effort("output_config.effort", given, API_EFFORTS)
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
    if is_off(reasoning):
        built.body["thinking"] = {"type": "disabled"}
        return
    forced = built.body.get("tool_choice", {}).get("type") in ("any", "tool")
    if forced and not own:
        built.dropped.append("reasoning")
        return
    budget = reasoning.budget_tokens
    thinking: JsonObject | None = {"type": "adaptive"}
    if own and budget is None:
        thinking = {"type": "adaptive"} if reasoning.enabled else None
        _give_effort(built, reasoning.effort)
    elif adaptive:
        _give_effort(built, reasoning.effort or (effort_for(budget) if budget is not None else None))
    else:
        wanted = BUDGET_OF[reasoning.effort or "medium"] if budget is None else budget
        thinking = _with_budget(request, built, wanted, given=budget is not None)
        if own:
            _give_effort(built, reasoning.effort)
    if thinking is None:
        return
    if reasoning.summary is not None and (own or adaptive):
        thinking["display"] = "summarized"
    built.body["thinking"] = thinking


def _with_budget(request: Request, built: Built, budget: int, *, given: bool) -> JsonObject | None:
    if request.dialect == DIALECT:
        return {"type": "enabled", "budget_tokens": budget}
    fitted = fit_budget(budget, request.max_tokens, given=given)
    if fitted is None:
        built.dropped.append("reasoning")
        return None
    if request.max_tokens is None:
        built.body["max_tokens"] += fitted  # our own default is for the answer alone
    return {"type": "enabled", "budget_tokens": fitted}


def _give_effort(built: Built, effort: Effort | None) -> None:
    if effort is not None and effort != "none":
        built.body.setdefault("output_config", {})["effort"] = "low" if effort == "minimal" else effort
