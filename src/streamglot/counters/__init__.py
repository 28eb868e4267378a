"""Numbers that processes share: what a key used in the last minute, holds now and has spent.

``Counters`` are the numbers of one name, in one process. ``workers.py`` has their form for all processes of one machine.
``valkey.py`` has what the workers of several machines count together.

A rule that depends on the numbers is data (``Take``, ``Room``), not code that holds a lock: ``admit`` checks the rules and changes
the numbers in one step, wherever the numbers are. A server can run it as one script, so it is the one call that may wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple, TypeAlias

REQUESTS, TOKENS = range(2)
BUCKETS: Final = 2
"""The buckets: units per minute. Unused units accumulate for at most a minute."""

OPEN, BATCHED, HELD_TOKENS, HELD_COST, LIVE_TOKENS, LIVE_COST, USED_TOKENS, USED_COST, WRITTEN_TOKENS, WRITTEN_COST = range(10)
FIELDS: Final = 10
"""The fields: open requests, running items of batches, their reservations, their usage so far, the usage of finished requests, and
how much of that is in the database. What a process holds (all before ``USED_TOKENS``) ends with it."""

MINUTE: Final = 60.0
SMALLEST: Final = 1e-9
"""Less than this is nothing: what remains of a unit after divisions."""

_ALONE: Final = nullcontext()

Numbers: TypeAlias = "memoryview[float]"
Changes: TypeAlias = Mapping[int, float]
"""Amounts by field."""


class Take(NamedTuple):
    """Takes an amount from a bucket if anything is left of it, and at least ``needs``."""

    bucket: int
    amount: float
    needs: float = 0.0


class Room(NamedTuple):
    """Requires that the sum of these fields leaves something of a limit, and at least ``needs``."""

    fields: tuple[int, ...]
    limit: float
    needs: float = 0.0


class Refused(NamedTuple):
    """The number of the rule that refuses, and the seconds until it would not: 0 if nobody knows."""

    rule: int
    wait: float


class Left(NamedTuple):
    """The limit of a bucket, what is left of it, and the seconds until all of it is."""

    limit: int
    left: int
    full_in: float


class Counters:
    """The numbers of one name. Here they belong to this object alone; a form that shares them overrides where they are.

    ``admit``, ``settle`` and ``left`` are one step for all who share the numbers. ``add`` and ``total`` are cheap enough for a
    running stream.
    """

    def __init__(self) -> None:
        self._per_minute = [0.0] * BUCKETS
        self._debts, self._own = numbers_of(2 * BUCKETS), numbers_of(FIELDS)

    def resize(self, requests: int = 0, tokens: int = 0) -> None:
        """Sets the units per minute. 0 means no limit."""
        self._per_minute = [float(requests), float(tokens)]

    def limited(self, bucket: int) -> bool:
        return self._per_minute[bucket] > 0

    async def admit(self, rules: Sequence[Take | Room], changes: Changes, now: float = 0.0) -> Refused | None:
        """Makes the changes and takes from the buckets if every rule allows it. Otherwise changes nothing, and returns the first
        rule that refuses. The numbers of one machine are changed without waiting."""
        with self._locked() if rules else _ALONE:
            for number, rule in enumerate(rules):
                left = rule.limit - sum(map(self.total, rule.fields)) if isinstance(rule, Room) else self._left(rule.bucket, now)
                if left < max(rule.needs, SMALLEST):
                    if isinstance(rule, Room):
                        return Refused(number, 0.0)
                    return Refused(number, (max(rule.needs, 1.0) - left) / self._per_minute[rule.bucket] * MINUTE)
            for rule in rules:
                if isinstance(rule, Take) and self.limited(rule.bucket):
                    self._debts[2 * rule.bucket] += rule.amount
            for field, amount in changes.items():
                self.add(field, amount)
        return None

    def settle(self, changes: Changes, tokens: float, now: float) -> None:
        """Makes the changes, and takes tokens of the minute even if they are not left. A negative number is given back."""
        with self._locked():
            if self.limited(TOKENS):
                self._left(TOKENS, now)
                self._debts[2 * TOKENS] = max(0.0, self._debts[2 * TOKENS] + tokens)
            for field, amount in changes.items():
                self.add(field, amount)

    def left(self, bucket: int, now: float) -> Left:
        with self._locked():
            left, limit = self._left(bucket, now), self._per_minute[bucket]
        return Left(int(limit), max(0, int(left)), (limit - left) / limit * MINUTE)

    def add(self, field: int, amount: float) -> None:
        """Adds to what this process counted."""
        self._own[field] += amount

    def total(self, field: int) -> float:
        """The number of all processes."""
        return self._own[field]

    def _left(self, bucket: int, now: float) -> float:
        """What is left of a bucket. The stored number is the debt, which decreases with time."""
        per_minute, at = self._per_minute[bucket], 2 * bucket
        if not per_minute:
            return float("inf")
        debt = max(0.0, self._debts[at] - (now - self._debts[at + 1]) * per_minute / MINUTE)
        self._debts[at], self._debts[at + 1] = debt, now
        return per_minute - debt

    def _locked(self) -> AbstractContextManager[None]:
        """A lock that makes reading and changing the numbers one step."""
        return _ALONE


def numbers_of(count: int) -> Numbers:
    return memoryview(bytearray(count * 8)).cast("d")
