"""Policies on the result of a tool that the engine ran, before the client, the model or the store sees it.

Such a result is shown to the client with the answer, and goes to the model with the next request. Each policy that sees results
in answers or in requests judges it once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import structs

from ...errors import PolicyRefused
from ...messages import Request, TextPart, ToolResultPart
from ...stages.stage import ExchangeContext, Question, QuestionGenerator
from ..pieces import Direction, Piece
from ..verdicts import End, Refuse, Replace, Retry, Rewrite
from .judging import Judging
from .members import Member
from .records import Recorder
from .release import Unit
from .requests import CHECKED_RESULTS, judged

KIND: Final = "tool_result"


def directions_of(member: Member, context: ExchangeContext) -> list[Direction]:
    """The directions in which a policy sees results in this exchange. A policy that sees them in both judges them as a part of the
    request, because only there it can hide something from the model and give it back later. A policy with policies inside judges
    both, because each of those may see another direction."""
    found: list[Direction] = []
    if KIND in member.needs.request and member.applies(context, "request"):
        found.append("request")
    if KIND in member.needs.answer and member.applies(context, "answer") and (not found or member.policy.nested):
        found.append("answer")
    return found


def checked_result(
    result: ToolResultPart,
    members: Iterable[Member],
    context: ExchangeContext,
    request: Request | None,
    recorder: Recorder,
    later: dict[Question, Judging],
) -> QuestionGenerator[ToolResultPart]:
    """The result after all policies. Raises PolicyRefused where one of them ends the exchange. Questions of policies in a dry run go
    into ``later``: the result does not wait for them."""
    for member, direction in [(each, direction) for each in members for direction in directions_of(each, context)]:
        questions: list[Question] = []
        judging = Judging(member, member.context(context, request), recorder, questions.append)
        patterns = member.needs.request_patterns if direction == "request" else member.needs.answer[KIND].patterns
        units = {place: Unit(piece, judging.now()) for place, piece in _pieces(result, direction) if member.sees(piece)}
        yield from judged(list(units.values()), judging, questions, patterns, later)
        if not member.shadow:
            result = _applied(result, units, member)
    context.state.setdefault(CHECKED_RESULTS, set()).add(result.call_id)
    return result


def _pieces(result: ToolResultPart, direction: Direction) -> Iterable[tuple[int, Piece]]:
    """The texts of the result. Their role is that of the message in which they go to the model."""
    for place, content in enumerate(result.content):
        if isinstance(content, TextPart):
            piece = Piece(KIND, content.text, direction=direction, role="tool", name=result.name, call_id=result.call_id)
            yield place, structs.replace(piece, is_error=result.is_error)


def _applied(result: ToolResultPart, units: dict[int, Unit], member: Member) -> ToolResultPart:
    """The result after the verdicts. A refusal withholds the whole result, including media."""
    content = list(result.content)
    name = member.policy.name
    for place, unit in units.items():
        verdict = unit.verdict
        if isinstance(verdict, End):
            message = verdict.message or f"the policy {name} ended the exchange at a result of {result.name}"
            raise PolicyRefused(message, detail={"policy": name, "kind": KIND})
        if isinstance(verdict, (Refuse, Retry)):
            message = verdict.message or f"[withheld by the policy {name}]"
            return structs.replace(result, content=[TextPart(message)], is_error=True, native=None)
        if isinstance(verdict, (Rewrite, Replace)) and verdict.text is not None:
            content[place] = TextPart(verdict.text)
    return structs.replace(result, content=[part for part in content if part != TextPart("")])
