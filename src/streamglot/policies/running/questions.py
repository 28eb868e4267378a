"""The questions that policies put to the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ...events import BareEvent
from ...stages.stage import Question, Reply
from ..approvals import ApprovalRequest, Approvals, Decision, SuspendedCall
from ..pieces import Piece
from ..policy import Engine, JudgeContext, Policy
from ..verdicts import Ask, Verdict


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
