"""Has the pieces of one choice judged by one policy: at once, or through a question; failures become verdicts too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ...errors import FOREIGN_ERRORS, excerpt, foreign_exception
from ...events import Extra, StreamEnd, StreamError
from ...stages.stage import ExchangeEnded, Question, Reply
from ..approvals import Decision, SuspendedCall
from ..pieces import Piece
from ..policy import JudgeContext
from ..verdicts import SEVERITY, Ask, Defer, Forward, Refuse, Rewrite, Verdict
from .members import Member
from .questions import Approval, Judgement, Suspension
from .records import Recorder
from .release import Unit

MAX_PENDING: Final = 128
"""Verdicts of one policy that may be awaited at once for one choice: more calls than a model makes in one turn."""
APPROVAL: Final = "approval"
"""The dialect of an Extra that asks the client's user about a call; writers of dialects that can ask write it in their own
form."""
APPROVED_CALLS: Final = "approved_calls"
"""The subject in the exchange's state with the ids of calls that the client's user has approved."""


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
