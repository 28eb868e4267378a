"""Policies on a request before an upstream is chosen (messages, tool results coming in, tool definitions), and on the result of a
tool that the engine ran, before the client, the model or the store sees it.

The result of an engine's tool is shown to the client with the answer, and goes to the model with the next request. Each policy
that sees results in answers or in requests judges it once: a request does not check it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from msgspec import structs

from ...errors import PolicyRefused
from ...messages import (
    Message,
    Part,
    ReasoningPart,
    Request,
    TextPart,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    ToolSpec,
)
from ...patterns.scanner import PatternSet
from ...stages.stage import ExchangeContext, Question, QuestionGenerator
from ..needs import Needs
from ..pieces import Direction, Piece
from ..verdicts import End, Refuse, Replace, Retry, Rewrite, Verdict
from .facts import Recorder
from .judging import Approval, ConcurrentQuestions, Judgement, Judging, judge_matches, replacement
from .members import Member
from .release import Unit

CHECKED_RESULTS: Final = "checked_results"
"""The subject in the exchange's state with the ids of calls whose results the policies have checked."""
Place: TypeAlias = tuple[int, int, int]
"""Message, part, and text inside a tool result (-1: the part itself). A tool definition is (-1, its number, -1)."""


def checked(
    request: Request,
    members: tuple[Member, ...],
    context: ExchangeContext,
    recorder: Recorder,
    later: dict[Question, Judging],
) -> QuestionGenerator[Request]:
    """The request after all policies. Raises PolicyRefused for a request that one of them refuses. Questions of
    policies in a dry run go into ``later``: the request does not wait for them."""
    for member in members:
        questions: list[Question] = []
        judge_context = member.context(context, request)
        judging = Judging(member, judge_context, recorder, questions.append)
        changed = member.policy.request(request, judge_context)
        if not member.shadow:
            request = judge_context.request = changed
        known = context.state.get(CHECKED_RESULTS, ())
        units = [
            (place, Unit(piece, judging.now()))
            for place, piece in pieces_of(request, member.needs)
            if member.sees(piece) and not (piece.kind == "tool_result" and piece.call_id in known)
        ]
        yield from judged([unit for _, unit in units], judging, questions, member.needs.request_patterns, later)
        if not member.shadow:
            request = _request_with(request, units, member)
    return request


def judged(
    units: list[Unit],
    judging: Judging,
    questions: list[Question],
    patterns: PatternSet | None,
    later: dict[Question, Judging],
) -> QuestionGenerator[None]:
    """Gives each unit its verdict. ``questions`` are the questions of ``judging``, which all units wait for together."""
    for unit in units:
        if patterns is None:
            judging.judge(unit)
        else:
            verdict = judge_matches(judging.verdict, patterns, unit.piece, judging.note)
            judging.accept(unit, verdict, recorded=True)
    if judging.member.shadow:
        later.update(dict.fromkeys(questions, judging))
        questions.clear()
    while questions:
        together = ConcurrentQuestions([question for question in questions if isinstance(question, (Judgement, Approval))])
        questions.clear()
        replies = yield together
        for number, question in enumerate(together.questions):
            judging.settle(question, replies if isinstance(replies, BaseException) else replies[number])


def pieces_of(request: Request, needs: Needs) -> Iterator[tuple[Place, Piece]]:
    """The pieces of a request that a policy asked to see, each with its place."""
    kinds = needs.request
    if not kinds:
        return
    if "tool_definition" in kinds:
        for number, tool in enumerate(request.tools):
            piece = Piece("tool_definition", tool.description, direction="request", name=tool.name, call_kind=tool.kind)
            yield (-1, number, -1), structs.replace(piece, data=tool.parameters)
    last = max((number for number, message in enumerate(request.messages) if message.role == "assistant"), default=-1)
    names: dict[str, str] = {}
    for number, message in enumerate(request.messages):
        for place, part in enumerate(message.parts):
            if isinstance(part, ToolCallPart):
                names[part.call_id] = part.name
            if not needs.history and number <= last:
                continue
            for inner, piece in _pieces_of_part(part, names):
                if piece.kind in kinds:
                    yield (number, place, inner), structs.replace(piece, direction="request", role=message.role)


def _pieces_of_part(part: Part, names: dict[str, str]) -> Iterator[tuple[int, Piece]]:
    match part:
        case TextPart():
            yield -1, Piece("text", part.text)
        case ReasoningPart():
            yield -1, Piece("reasoning", part.text)
        case ToolCallPart():
            yield -1, Piece("tool_call", part.arguments, name=part.name, call_id=part.call_id, call_kind=part.kind)
        case ToolResultPart():
            name = part.name or names.get(part.call_id, "")
            for inner, content in enumerate(part.content):
                if isinstance(content, TextPart):
                    yield inner, Piece("tool_result", content.text, name=name, call_id=part.call_id, is_error=part.is_error)
        case _:
            return


def _request_with(request: Request, units: list[tuple[Place, Unit]], member: Member) -> Request:
    edits: dict[Place, Verdict] = {}
    for place, unit in units:
        verdict = unit.verdict
        if isinstance(verdict, (Refuse, End, Retry)):
            message = verdict.message or f"the policy {member.policy.name} refuses this request"
            raise PolicyRefused(message, detail={"policy": member.policy.name, "kind": unit.piece.kind})
        if isinstance(verdict, (Rewrite, Replace)):
            edits[place] = verdict
    return edited(request, edits) if edits else request


def edited(request: Request, edits: dict[Place, Verdict]) -> Request:
    """The request with these pieces rewritten or replaced. Signatures of changed parts are dropped with them."""
    messages: list[Message] = []
    for number, message in enumerate(request.messages):
        parts = [_edited_part(part, number, place, edits) for place, part in enumerate(message.parts)]
        if all(new is old for new, old in zip(parts, message.parts, strict=True)):
            messages.append(message)
        elif any(parts):
            messages.append(structs.replace(message, parts=[part for part in parts if part is not None], echo=None))
    tools = [_edited_tool(tool, edits.get((-1, number, -1))) for number, tool in enumerate(request.tools)]
    left = [tool for tool in tools if tool is not None]
    return structs.replace(request, messages=messages, tools=left, tool_choice=_choice_of(request.tool_choice, left))


def _edited_part(part: Part, number: int, place: int, edits: dict[Place, Verdict]) -> Part | None:
    if isinstance(part, ToolResultPart):
        content = list(part.content)
        for inner, old in enumerate(content):
            text = replacement(edits.get((number, place, inner)))
            if text is not None and isinstance(old, TextPart):
                content[inner] = TextPart(text, cache=old.cache)
        same = all(new is old for new, old in zip(content, part.content, strict=True))
        return part if same else structs.replace(part, content=content, native=None)
    verdict = edits.get((number, place, -1))
    text = replacement(verdict)
    if isinstance(part, ToolCallPart) and isinstance(verdict, Rewrite):
        arguments = part.arguments if verdict.text is None else verdict.text
        return structs.replace(part, arguments=arguments, name=verdict.name or part.name, echo=None, native=None)
    if verdict is None or text is None:
        return part
    if isinstance(part, TextPart):
        return structs.replace(part, text=text, citations=[], echo=None) if text else None
    if isinstance(part, ReasoningPart):
        return structs.replace(part, text=text, echo=None) if text else None
    return TextPart(text) if text else None


def _edited_tool(tool: ToolSpec, verdict: Verdict | None) -> ToolSpec | None:
    if isinstance(verdict, Replace):
        return None
    if isinstance(verdict, Rewrite) and verdict.text is not None:
        return structs.replace(tool, description=verdict.text)
    return tool


def _choice_of(choice: ToolChoice | None, tools: list[ToolSpec]) -> ToolChoice | None:
    """The tool choice without the tools that were removed."""
    if choice is None or not tools:
        return None
    names = {tool.name for tool in tools}
    left = [name for name in choice.tools if name in names]
    return choice if left == choice.tools else ToolChoice(choice.mode if left else "auto", left)


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
            result = _result_with(result, units, member)
    context.state.setdefault(CHECKED_RESULTS, set()).add(result.call_id)
    return result


def _pieces(result: ToolResultPart, direction: Direction) -> Iterable[tuple[int, Piece]]:
    """The texts of the result. Their role is that of the message in which they go to the model."""
    for place, content in enumerate(result.content):
        if isinstance(content, TextPart):
            piece = Piece(KIND, content.text, direction=direction, role="tool", name=result.name, call_id=result.call_id)
            yield place, structs.replace(piece, is_error=result.is_error)


def _result_with(result: ToolResultPart, units: dict[int, Unit], member: Member) -> ToolResultPart:
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
