"""Has the pieces of one choice judged by one policy: at once, or through a question to the engine. Failures become verdicts too.

``judge_matches`` judges each match of patterns in a complete text and combines the verdicts into one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import structs

from ...errors import FOREIGN_ERRORS, excerpt, foreign_exception
from ...events import BareEvent, Extra, StreamEnd, StreamError
from ...json_types import JsonValue
from ...patterns.scanner import Overflow, PatternMatch, PatternSet, Scanner
from ...stages.stage import ExchangeEnded, Question, Reply
from ..approvals import ApprovalRequest, Approvals, Decision, SuspendedCall
from ..arguments import JsonScanner
from ..pieces import Kind, Piece
from ..policy import Engine, JudgeContext, Policy
from ..verdicts import DEFER, FORWARD, SEVERITY, Ask, Defer, Forward, Refuse, Replace, Rewrite, Verdict, severity
from .facts import Recorder
from .members import Member
from .release import Unit

MAX_PENDING: Final = 128
"""Verdicts of one policy that may be awaited at once for one choice: more calls than a model makes in one turn."""
APPROVAL: Final = "approval"
"""The dialect of an Extra that asks the client's user about a call; writers of dialects that can ask write it in their own
form."""
APPROVED_CALLS: Final = "approved_calls"
"""The subject in the exchange's state with the ids of calls that the client's user has approved."""
Judge = Callable[[Piece], "Verdict | Defer"]
Note = Callable[[Piece, Verdict], None]


class Judging:
    """``ask`` takes the questions that the engine must resolve."""

    def __init__(self, member: Member, context: JudgeContext, recorder: Recorder, ask: Callable[[Question], None]) -> None:
        self.member = member
        self.context = context
        self._recorder = recorder
        self._ask = ask
        self._pending: dict[Question, Unit] = {}

    def now(self) -> float:
        return self._recorder.clock()

    def judge(self, unit: Unit) -> None:
        """Sets the verdict of the unit, or asks for it."""
        self.accept(unit, self.verdict(unit.piece))

    def verdict(self, piece: Piece) -> Verdict | Defer:
        """The immediate verdict of the policy. A policy that fails refuses, unless its ``on_error`` says otherwise."""
        try:
            verdict = self.member.policy.judge(piece, self.context)
        except FOREIGN_ERRORS as error:
            return self._failed_at_once(piece, foreign_exception(error))
        if isinstance(verdict, Defer) or type(verdict) in SEVERITY:
            return verdict
        return self._failed_at_once(piece, TypeError(f"judge gave {excerpt(verdict)}, which is not a verdict"))

    def ended(self, end: StreamEnd | StreamError) -> None:
        """Tells the policy that the answer has ended. Its failure is recorded, and changes nothing any more."""
        try:
            self.member.policy.ended(end, self.context)
        except FOREIGN_ERRORS as error:
            self.note(Piece("answer", unit="answer"), self._failure(foreign_exception(error)))

    def accept(self, unit: Unit, verdict: Verdict | Defer, *, recorded: bool = False) -> None:
        """Takes a verdict, or turns it into a question."""
        policy = self.member.policy
        if isinstance(verdict, Ask) and unit.piece.call_id in self.context.exchange.state.get(APPROVED_CALLS, ()):
            verdict = Forward(reason="the user of the client approved the call")
            self.note(unit.piece, verdict)
        if isinstance(verdict, Ask) and self.member.shadow:
            self.note(unit.piece, verdict)  # a dry run asks no person
            unit.verdict = Forward()
            return
        if isinstance(verdict, (Defer, Ask)):
            if len(self._pending) >= MAX_PENDING:
                verdict = self._failure(OverflowError(f"{MAX_PENDING} verdicts are awaited already"))
                self.note(unit.piece, verdict)
            else:
                question: Question
                if isinstance(verdict, Ask):
                    question = self._ask_about(unit, verdict)
                else:
                    question = Judgement(policy, unit.piece, self.context)
                self._pending[question] = unit
                self._ask(question)
                return
        elif not recorded and not isinstance(verdict, Forward):
            self.note(unit.piece, verdict)
        unit.verdict = verdict

    def _ask_about(self, unit: Unit, verdict: Ask) -> Approval:
        policy = self.member.policy
        if verdict.client and self.context.exchange.can_ask and unit.events is not None:
            return Suspension(policy, unit.piece, self.context, verdict, unit.events)
        return Approval(policy, unit.piece, self.context, verdict)

    def settle(self, question: Question, reply: object) -> Unit | None:
        """The unit whose question was answered; None for a question that is no longer open."""
        unit = self._pending.pop(question, None)
        if unit is None:
            return None
        if isinstance(reply, SuspendedCall):
            self._suspended(unit, reply)
            return unit
        if isinstance(reply, ExchangeEnded):  # no failure of the policy: the piece is withheld whatever ``on_error`` says
            unit.verdict = Refuse(reason="the request ended before the verdict")
            self.note(unit.piece, unit.verdict, self.now() - unit.since)
            return unit
        verdict = self._verdict_of_reply(reply)
        if isinstance(verdict, Ask):
            self.accept(unit, verdict)
            return unit
        unit.verdict = verdict
        self.note(unit.piece, verdict, self.now() - unit.since)
        return unit

    def note(self, piece: Piece, verdict: Verdict, held_seconds: float = 0.0) -> None:
        if self.member.recorded:
            self._recorder.record(
                self.member.policy,
                piece,
                verdict,
                held_seconds=held_seconds,
                choice=self.context.choice,
                dry_run=self.member.shadow,
            )

    def _verdict_of_reply(self, reply: Reply) -> Verdict:
        if isinstance(reply, BaseException):
            return self._failure(reply)
        if isinstance(reply, Decision):
            return decided(reply)
        if type(reply) in SEVERITY:
            verdict: Verdict = reply
            return verdict
        return self._failure(TypeError(f"decide gave {excerpt(reply)}, which is not a verdict"))

    def _suspended(self, unit: Unit, call: SuspendedCall) -> None:
        """Withholds the call in this answer and sends the client the question for its user."""
        request = call.request
        unit.verdict = Refuse()
        unit.notice = Extra(
            APPROVAL,
            {
                "id": request.id,
                "call_id": request.call_id,
                "message": request.message,
                "name": request.tool,
                "arguments": request.text,
            },
        )
        self.note(unit.piece, Ask(message=request.message, reason="the user of the client is asked"), self.now() - unit.since)

    def _failed_at_once(self, piece: Piece, error: Exception) -> Verdict:
        verdict = self._failure(error)
        if isinstance(verdict, Forward):  # a plain forward is not recorded, a failure is
            self.note(piece, verdict)
        return verdict

    def _failure(self, error: BaseException) -> Verdict:
        policy = self.member.policy
        return failure_verdict(policy.on_error, policy.name, error)


class Judgement(Question):
    """Awaits the verdict of a policy on a piece."""

    subject = "judge"

    def __init__(self, policy: Policy, piece: Piece, context: JudgeContext) -> None:
        self.policy = policy
        self.label = policy.name
        self.piece = piece
        self.context = context
        self.seconds = policy.deadline_seconds

    async def resolve(self, engine: Engine) -> Verdict:
        return await self.policy.decide(self.piece, self.context, engine)


class Approval(Question):
    """Awaits the decision of a person, through the engine's registry of approvals."""

    subject = "approval"

    def __init__(self, policy: Policy, piece: Piece, context: JudgeContext, verdict: Ask) -> None:
        self.policy = policy
        self.label = policy.name
        self.piece = piece
        self.context = context
        self.verdict = verdict
        self.seconds = policy.deadline_seconds

    async def resolve(self, engine: Any) -> Decision | SuspendedCall:  # Any: the services of the engine, a layer above
        """``engine.approvals`` is an ``Approvals``; without one the question cannot be answered, which counts as a failure of
        the policy."""
        approvals: Approvals = engine.approvals
        return await approvals.ask(self._request())

    def _request(self) -> ApprovalRequest:
        exchange, piece = self.context.exchange, self.piece
        return ApprovalRequest(
            request_id=exchange.request_id,
            policy=self.policy.name,
            message=self.verdict.message,
            kind=piece.kind,
            tool=piece.name,
            call_id=piece.call_id,
            text=piece.text,
            model=exchange.model,
            key=exchange.key,
            seconds=self.policy.seconds,
        )


class Suspension(Approval):
    """Leaves a call to the client's user: the registry keeps it until the client's next request."""

    def __init__(self, policy: Policy, piece: Piece, context: JudgeContext, verdict: Ask, events: Sequence[BareEvent]) -> None:
        super().__init__(policy, piece, context, verdict)
        self._events = events

    async def resolve(self, engine: Any) -> SuspendedCall:  # Any: as above
        approvals: Approvals = engine.approvals
        call = approvals.suspend(self._request(), self._events)
        await approvals.share(call)  # before the client learns the id: its next request may reach another process
        return call


class ConcurrentQuestions(Question):
    """Awaits several questions at once. The reply is a list: for each question its reply, or the exception that resolving it
    raised."""

    subject = "judge"

    def __init__(self, questions: Sequence[Judgement | Approval]) -> None:
        self.questions = tuple(questions)
        self.label = ", ".join(dict.fromkeys(question.label for question in questions))
        self.seconds = max(question.seconds or 0.0 for question in questions) + 1.0  # each question has its own, earlier deadline

    async def resolve(self, engine: Engine) -> list[Reply]:
        async def one(question: Judgement | Approval) -> Reply:
            return await asyncio.wait_for(question.resolve(engine), question.seconds)

        return await asyncio.gather(*(one(question) for question in self.questions), return_exceptions=True)


def failure_verdict(on_error: str, name: str, error: BaseException) -> Forward | Refuse:
    """The verdict of a policy that failed. The client learns that something was withheld, but not the reason."""
    cause = "did not answer in time" if isinstance(error, TimeoutError) else "failed"
    reason = f"the policy {cause}: {type(error).__name__}: {error}"
    if on_error == "forward":
        return Forward(reason=reason)
    return Refuse(message=f"[withheld: the policy {name} {cause}]", reason=reason)


def decided(decision: Decision) -> Verdict:
    """Converts the decision of a person to a verdict."""
    by = f"decided by {decision.by}" if decision.by else "decided by a person"
    if not decision.approved:
        return Refuse(message=decision.message or "[refused by a person]", reason=by)
    if decision.text is not None:
        return Rewrite(text=decision.text, reason=by)
    return Forward(reason=by)


def scanner_for(patterns: PatternSet, kind: Kind, call_kind: str = "function") -> Scanner | JsonScanner:
    """Arguments of a call are JSON, unless the tool takes free text."""
    return JsonScanner(patterns) if kind == "tool_call" and call_kind != "custom" else Scanner(patterns)


def match_piece(piece: Piece, found: PatternMatch) -> Piece:
    """The piece that a policy sees of a match."""
    return structs.replace(piece, unit="pattern", text=found.text, pattern=found.name, label=found.label, data=None)


def overflow_verdict(overflow: Overflow) -> Refuse:
    """Fails closed: text that may still become a match is held, together with everything after it."""
    return Refuse(
        message="[withheld: a possible match of a pattern did not end]",
        reason=f"a possible match grew past the hold limit of {overflow.chars} characters",
    )


def judge_matches(judge: Judge, patterns: PatternSet, piece: Piece, note: Note) -> Verdict | Defer:
    """One verdict for the piece: the most severe one, or the text with all matches rewritten."""
    scanner = scanner_for(patterns, piece.kind, piece.call_kind)
    written: list[str] = []
    changed = False
    worst: Verdict = FORWARD
    for segment in [*scanner.feed(piece.text), *scanner.close()]:
        if isinstance(segment, str):
            written.append(segment)
            continue
        if isinstance(segment, Overflow):
            verdict: Verdict | Defer = overflow_verdict(segment)
            seen = piece
        else:
            seen = match_piece(piece, segment)
            verdict = judge(seen)
        if isinstance(verdict, Defer):
            return DEFER
        if not isinstance(verdict, Forward):
            note(seen, verdict)
        if isinstance(segment, PatternMatch):
            new = replacement(verdict)
            written.append(segment.raw if new is None else segment.written(new))
            changed = changed or new is not None
        if severity(verdict) > severity(worst):
            worst = verdict
    if isinstance(worst, (Forward, Rewrite, Replace)):
        return Rewrite(text="".join(written), reason=worst.reason) if changed else FORWARD
    return worst


def replacement(verdict: Verdict | None) -> str | None:
    """The text that a verdict puts in place of a match; None if the match stays."""
    return verdict.text if isinstance(verdict, (Rewrite, Replace)) else None


def rewritten_strings(judge: Judge, patterns: PatternSet, value: object, piece: Piece, note: Note) -> JsonValue:
    """The value, plain data, with the matches in all its strings rewritten; None if a match in it must not be released."""
    if isinstance(value, str):
        verdict = judge_matches(judge, patterns, structs.replace(piece, text=value), note)
        if isinstance(verdict, Forward):
            return value
        return verdict.text if isinstance(verdict, Rewrite) else None
    if isinstance(value, dict):
        inner = {name: rewritten_strings(judge, patterns, of_name, piece, note) for name, of_name in value.items()}
        return value if all(inner[name] is of_name for name, of_name in value.items()) else inner
    if isinstance(value, (list, tuple)):
        items = [rewritten_strings(judge, patterns, item, piece, note) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value
