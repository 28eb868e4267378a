"""Resumes tool calls that ended their stream to ask the client's user: the user's decisions become the next answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import structs

from ..dialects.approval import ApprovalAnswer
from ..events import StreamEnd, StreamStart
from ..messages import Part, Response, ResponseChoice, TextPart, TokenCounts, ToolCallPart
from ..stages import collect

if TYPE_CHECKING:
    from .shared_approvals import SharedApprovals

REFUSED: Final = "[refused by the user]"


async def resumed_answer(approvals: SharedApprovals, answers: list[ApprovalAnswer], key: str) -> tuple[Response, frozenset[str]]:
    """The suspended calls with their outcomes as a model's answer, and the ids of the calls that were approved.

    If one of the answers is not valid, none of the calls is resumed.
    """
    parts: list[Part] = []
    approved: set[str] = set()
    for answer, suspended in zip(answers, await approvals.resume(answers, key), strict=True):
        if not answer.approved:
            parts.append(TextPart(answer.reason or REFUSED))
            continue
        for part in collect([StreamStart(), *suspended.events, StreamEnd("tool_calls")]).choices[0].parts:
            if isinstance(part, ToolCallPart):
                approved.add(part.call_id)
                if answer.arguments is not None:
                    part = structs.replace(part, arguments=answer.arguments, echo=None, native=None)
                parts.append(part)
    choice = ResponseChoice(0, parts, "tool_calls" if approved else "end")
    return Response(choices=[choice], usage=TokenCounts(0, 0)), frozenset(approved)  # no model is called
