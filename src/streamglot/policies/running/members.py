"""Policies made ready to run: composition flattened, needs declared, conditions gathered. Done once; shared by all streams."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from ...errors import ConfigError
from ...messages import Request
from ...stages.stage import ExchangeContext
from ..needs import Needs
from ..pieces import Direction, Piece
from ..policy import JudgeContext, Policy, When


class Member(Struct, frozen=True):
    """One policy of the list that is run. ``shadow``: it sees everything and changes nothing. ``recorded``: its verdicts are
    recorded."""

    policy: Policy
    needs: Needs
    conditions: tuple[When, ...] = ()
    shadow: bool = False
    recorded: bool = True
    compiled: Any = None  # Any: whatever ``compile`` of the policy returns

    def context(self, exchange: ExchangeContext, request: Request | None, choice: int = 0) -> JudgeContext:
        """What the policy knows at the start of an answer."""
        return JudgeContext(exchange, request, choice, self.policy.new_state(), self.compiled)

    def applies(self, context: ExchangeContext, direction: Direction) -> bool:
        return all(when.allows_exchange(context) and when.allows_direction(direction) for when in self.conditions)

    def sees(self, piece: Piece) -> bool:
        return not self.conditions or all(when.allows_piece(piece) for when in self.conditions)

    @property
    def sees_answers(self) -> bool:
        return self.needs.whole or bool(self.needs.answer) or type(self.policy).ended is not Policy.ended

    @property
    def sees_requests(self) -> bool:
        return bool(self.needs.request) or type(self.policy).request is not Policy.request


def prepare(policies: Iterable[Policy]) -> tuple[Member, ...]:
    """The members of these policies, in order. ConfigError for options that cannot be used."""
    return tuple(member for policy in policies for member in _members(policy, (), shadow=False, recorded=True))


def _members(policy: Policy, outer: tuple[When, ...], *, shadow: bool, recorded: bool) -> Iterable[Member]:
    if not isinstance(policy, Policy):
        raise ConfigError(f"{policy!r} is not a policy: derive it from streamglot.policies.Policy")
    conditions = outer if policy.when is None else (*outer, policy.when)
    shadow, recorded = shadow or policy.shadow, recorded and policy.recorded
    inner = policy.members()
    if len(inner) == 1 and inner[0] is policy:
        policy.check()
        needs = policy.needs()
        if needs.whole and needs.answer:
            raise ConfigError(f"{policy.name} asks for the whole answer and for single blocks; the whole answer has both")
        yield Member(policy, needs, conditions, shadow, recorded, policy.compile())
        return
    for each in inner:
        yield from _members(each, conditions, shadow=shadow, recorded=recorded)
