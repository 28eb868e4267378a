"""Policies made of policies.

``in_order``   several policies as one entry, with one condition for all of them
``parallel``   several policies judge the same piece at the same time, and the most severe verdict wins
``dry_run``    records what a policy would do, and does nothing
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct, field, structs

from ...errors import FOREIGN_ERRORS, ConfigError
from ..needs import Need, Needs
from ..pieces import Kind, Piece
from ..policy import Engine, JudgeContext, Policy
from ..running.judging import failure_verdict, judge_matches
from ..running.members import Member, prepare
from ..verdicts import DEFER, FORWARD, Defer, Refuse, Replace, Rewrite, Verdict, severity


class InOrder(Policy, frozen=True):
    """``policies`` are applied one after another, like entries of the configuration. ``when`` applies to all of them."""

    policies: Sequence[Policy] = ()

    use: ClassVar[str] = "in_order"
    title: ClassVar[str] = "Runs several policies one after another under one condition."
    nested: ClassVar[tuple[str, ...]] = ("policies",)

    def members(self) -> Sequence[Policy]:
        return tuple(self.policies)


class _ParallelState(Struct):
    """The ``states`` of the members, and the verdicts so far on pieces that some members have deferred."""

    states: list[object]
    partial: dict[int, tuple[Piece, list[Verdict | Defer]]] = field(default_factory=dict)


class Parallel(Policy, frozen=True):
    """For judges that take time: all of them together take as long as the slowest one. A kind of block that more than one of
    them looks at is held whole. Two that rewrite the same piece differently contradict each other, so the piece is refused."""

    policies: Sequence[Policy] = ()

    use: ClassVar[str] = "parallel"
    title: ClassVar[str] = "Lets several policies judge at the same time; the most severe verdict wins."
    nested: ClassVar[tuple[str, ...]] = ("policies",)

    def check(self) -> None:
        if len(self.policies) < 2:
            raise ConfigError("parallel: list at least two policies")
        for policy in self.policies:
            if tuple(policy.members()) != (policy,):
                raise ConfigError(f"parallel: {policy.name} has no verdict of its own; put the group inside of it instead")
        if len({member.needs.whole for member in self.compile()}) > 1:
            raise ConfigError("parallel: some of the policies judge the whole answer and some do not; make two groups")

    @property
    def deadline_seconds(self) -> float:
        return max((policy.deadline_seconds for policy in self.policies), default=0.0) + 1.0

    def compile(self) -> tuple[Member, ...]:
        return prepare(self.policies)

    def needs(self) -> Needs:
        members = self.compile()
        answer: dict[Kind, Need] = {}
        for member in members:
            for kind, need in member.needs.answer.items():
                answer[kind] = Need("block") if kind in answer else need
        request = frozenset[Kind]().union(*(member.needs.request for member in members))
        return Needs(answer, members[0].needs.whole, request, None, any(member.needs.history for member in members))

    def new_state(self) -> _ParallelState:
        return _ParallelState([policy.new_state() for policy in self.policies])

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict | Defer:
        verdicts = [self._judged(member, piece, own) for member, own in self._members(context)]
        if any(isinstance(verdict, Defer) for verdict in verdicts):
            context.state.partial[id(piece)] = piece, verdicts
            return DEFER
        return _most_severe([verdict for verdict in verdicts if not isinstance(verdict, Defer)])

    async def decide(self, piece: Piece, context: JudgeContext, engine: Engine) -> Verdict:
        _, verdicts = context.state.partial.pop(id(piece))

        async def settled(verdict: Verdict | Defer, member: Member, own: JudgeContext) -> Verdict:
            if not isinstance(verdict, Defer):
                return verdict
            policy = member.policy
            try:
                return _named(policy, await asyncio.wait_for(policy.decide(piece, own, engine), policy.deadline_seconds))
            except FOREIGN_ERRORS as error:
                return failure_verdict(policy.on_error, policy.name, error)

        pairs = self._members(context)
        return _most_severe(await asyncio.gather(*(settled(given, *pair) for given, pair in zip(verdicts, pairs, strict=True))))

    def _members(self, context: JudgeContext) -> list[tuple[Member, JudgeContext]]:
        """The members, each with its own state."""
        members: tuple[Member, ...] = context.compiled
        return [
            (member, structs.replace(context, state=state, compiled=member.compiled))
            for member, state in zip(members, context.state.states, strict=True)
        ]

    @staticmethod
    def _judged(member: Member, piece: Piece, context: JudgeContext) -> Verdict | Defer:
        needs, policy = member.needs, member.policy
        kinds = needs.answer.keys() if piece.direction == "answer" else needs.request
        seen = piece.kind in kinds or (needs.whole and piece.kind == "answer")
        if not seen or not member.applies(context.exchange, piece.direction) or not member.sees(piece):
            return FORWARD
        patterns = needs.request_patterns
        if piece.direction == "answer" and not needs.whole:
            patterns = needs.answer[piece.kind].patterns
        try:
            if patterns is not None and piece.unit != "pattern":
                verdict = judge_matches(lambda match: policy.judge(match, context), patterns, piece, lambda match, given: None)
            else:
                verdict = policy.judge(piece, context)
        except FOREIGN_ERRORS as error:
            return failure_verdict(policy.on_error, policy.name, error)
        return verdict if isinstance(verdict, Defer) else _named(policy, verdict)


def _named(policy: Policy, verdict: Verdict) -> Verdict:
    """The verdict with the name of the policy that gave it."""
    return structs.replace(verdict, reason=f"{policy.name}: {verdict.reason}".removesuffix(": "))


def _most_severe(verdicts: Sequence[Verdict]) -> Verdict:
    worst = max(verdicts, key=severity)  # the first of several
    if isinstance(worst, (Rewrite, Replace)):
        worst_verdicts = [structs.replace(verdict, reason="", cost=None) for verdict in verdicts if type(verdict) is type(worst)]
        if any(other != worst_verdicts[0] for other in worst_verdicts):
            return Refuse(
                message="[withheld: policies contradict each other]",
                reason="policies that judge in parallel rewrote the same piece differently; put them in order",
            )
    return worst


class DryRun(Policy, frozen=True):
    """Wraps any ``policy``. It sees and judges everything; nothing is held, changed or refused. Its records say ``dry_run``."""

    policy: Policy | None = None

    use: ClassVar[str] = "dry_run"
    title: ClassVar[str] = "Records what another policy would do, and changes nothing."
    nested: ClassVar[tuple[str, ...]] = ("policy",)

    @property
    def shadow(self) -> bool:
        return True

    def members(self) -> Sequence[Policy]:
        if self.policy is None:
            raise ConfigError('dry_run: there is no policy to run; add policy = { use = "…" }')
        return (self.policy,)
