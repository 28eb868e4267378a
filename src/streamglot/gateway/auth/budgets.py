"""Budgets of keys: what a key may still use, what its running requests have reserved, and what is settled when they end.

A budget is compared with three numbers: the usage in the database, the usage of finished requests that is not in the database
yet, and the usage of running requests so far. A new request is admitted while these numbers and the reservations leave a part of
the budget. A running request is stopped when the budget is used up. All processes of a gateway share the numbers
(``counters``). Gateways on other machines see each other's usage once it is in the database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from ...counters import (
    HELD_COST,
    HELD_TOKENS,
    LIVE_COST,
    LIVE_TOKENS,
    USED_COST,
    USED_TOKENS,
    WRITTEN_COST,
    WRITTEN_TOKENS,
    Counters,
    Room,
)
from ...engine.stats import BYTES_PER_TOKEN
from ...events import Choice, Event, ReasoningDelta, TextDelta, ToolCallDelta, Usage
from ...json_types import JsonObject
from ...messages import TokenCounts
from ...upstream.prices import price
from ...upstream.routing.routes import Candidate

OUTPUT_TOKENS: Final = 256
"""Tokens that are reserved for an answer, or fewer if the client sets a lower limit: about the length of a usual answer.

A longer stream raises its reservation while it runs. Reserving the longest answer instead would make clients that always allow
32,000 tokens lock each other out.
"""
STEP_TOKENS: Final = 16
"""Tokens after which a running stream updates the shared numbers: few enough for small budgets, and rare enough to cost
little."""

Price: TypeAlias = Callable[[int, int], float]
"""The price in dollars of this many tokens of input and output."""


class StoredUsage(Protocol):
    """The usage in the database."""

    tokens: int
    cost: float


class Budget:
    """The budget of a key. ``None`` means no limit."""

    def __init__(self, counters: Counters) -> None:
        self.tokens: int | None = None
        self.cost: float | None = None
        self._counters = counters
        self._base = self._mark = (0.0, 0.0)

    @property
    def limited(self) -> bool:
        return self.tokens is not None or self.cost is not None

    def mark(self) -> tuple[float, float]:
        """How much of this gateway's usage is in the database. Call it before reading the database's sum."""
        return self._totals(WRITTEN_TOKENS, WRITTEN_COST)

    def rebase(self, spent: StoredUsage, mark: tuple[float, float]) -> None:
        """Sets the database's sum, which includes at least the usage in ``mark``."""
        self._base, self._mark = (spent.tokens, spent.cost), mark

    def settled(self) -> tuple[float, float]:
        """The tokens and the cost of all requests that have ended."""
        tokens, cost = self._totals(USED_TOKENS, USED_COST)
        return tokens + self._base[0] - self._mark[0], cost + self._base[1] - self._mark[1]

    def used(self) -> tuple[float, float]:
        """The tokens and the cost of all requests that have ended and of those that run, so far."""
        (tokens, cost), (live, live_cost) = self.settled(), self._totals(LIVE_TOKENS, LIVE_COST)
        return tokens + live, cost + live_cost

    def used_up(self) -> bool:
        tokens, cost = self.used()
        return (self.tokens is not None and tokens >= self.tokens) or (self.cost is not None and cost >= self.cost)

    def rooms_beside_usage(self, tokens: float = 0.0, cost: float = 0.0) -> list[Room]:
        """The rules that a part of the budget is not used, and at least this much."""
        return self._rooms((USED_TOKENS, LIVE_TOKENS), (USED_COST, LIVE_COST), (tokens, cost))

    def rooms_beside_reservations(self) -> list[Room]:
        """The rules that running requests have not reserved the rest of the budget."""
        return self._rooms((USED_TOKENS, HELD_TOKENS), (USED_COST, HELD_COST), (0.0, 0.0))

    def _rooms(self, tokens: tuple[int, int], cost: tuple[int, int], needs: tuple[float, float]) -> list[Room]:
        kinds = zip((tokens, cost), (self.tokens, self.cost), self._base, self._mark, needs, strict=True)
        return [Room(fields, limit - base + mark, need) for fields, limit, base, mark, need in kinds if limit is not None]

    def _totals(self, tokens: int, cost: int) -> tuple[float, float]:
        return self._counters.total(tokens), self._counters.total(cost)


class Reservation:
    """The tokens and the cost that one request of a key reserves until it is settled. ``price`` is None if the budget is not in
    money."""

    __slots__ = (
        *("_budget", "_bytes", "_cost", "_counters", "_held", "_held_cost", "_input", "_live"),
        *("_output", "_price", "_reported", "_settled", "_tokens"),
    )

    def __init__(
        self, counters: Counters, budget: Budget, tokens: tuple[int, int], held: tuple[float, float], price: Price | None
    ) -> None:
        """``held`` are the tokens and the cost that the key's counters hold for it."""
        self._counters, self._budget = counters, budget
        self._input, self._output = tokens
        self._held, self._held_cost = held
        self._price = price
        self._bytes = self._reported = 0
        self._live = self._cost = 0.0
        self._tokens = float(sum(tokens))
        self._settled = False

    @property
    def counts(self) -> bool:
        """Whether the events of the stream must be counted."""
        return self._budget.limited

    def used_up(self) -> bool:
        return self._budget.limited and self._budget.used_up()

    def expect(self, input_tokens: int) -> None:
        """Raises the reservation when the input is larger than estimated, because history was put in front of it."""
        if input_tokens > self._input:
            self._input = input_tokens
            self._hold(input_tokens + self._output, self._price(input_tokens, self._output) if self._price is not None else 0.0)

    def count(self, events: list[Event]) -> int | None:
        """Adds the usage of these events.

        Returns the number of events up to and including the one that used up the budget; None if the budget lasts.
        """
        for number, event in enumerate(events, 1):
            self._count(event.event if type(event) is Choice else event)
            output = max(self._reported, round(self._bytes / BYTES_PER_TOKEN))
            if self._input + output - self._live >= STEP_TOKENS and self._add_up(output):
                return number
        return None

    def _add_up(self, output: int) -> bool:
        """Updates the shared numbers. Returns whether the budget is used up."""
        self._counters.add(LIVE_TOKENS, self._input + output - self._live)
        self._live = self._input + output
        if self._price is not None:
            cost = self._price(self._input, output)
            self._counters.add(LIVE_COST, cost - self._cost)
            self._cost = cost
        self._hold(self._live, self._cost)
        return self._budget.used_up()

    def _count(self, event: Any) -> None:  # Any: an event; its type is compared before a field is read
        kind = type(event)
        if kind is TextDelta or kind is ReasoningDelta:
            self._bytes += _size(event.text)
        elif kind is ToolCallDelta:
            self._bytes += _size(event.args)
        elif kind is Usage:
            self._input = _count_of(event.input_tokens) or self._input
            self._reported = _count_of(event.output_tokens) or self._reported

    def _hold(self, tokens: float, cost: float) -> None:
        """Reserves at least this much."""
        if tokens > self._held:
            self._counters.add(HELD_TOKENS, tokens - self._held)
            self._held = tokens
        if cost > self._held_cost:
            self._counters.add(HELD_COST, cost - self._held_cost)
            self._held_cost = cost

    def settle(
        self, usage: TokenCounts | Usage | None, now: float, calls: Sequence[JsonObject] = ()
    ) -> Callable[[], None] | None:
        """Releases the reservation and counts the actual usage, once. ``calls`` are those of other models for this request (judges,
        summaries): their tokens count towards the limit of a minute, and their cost towards the budget.

        Returns a function that the recorder calls when the usage is in the database.
        """
        if self._settled:
            return None
        self._settled = True
        given, taken = (_count_of(usage.input_tokens), _count_of(usage.output_tokens)) if usage is not None else (0, 0)
        tokens = given + taken
        of_calls = sum(_count_of(call.get("input_tokens")) + _count_of(call.get("output_tokens")) for call in calls)
        counters, beyond = self._counters, tokens + of_calls - self._tokens
        if not self._budget.limited:
            counters.settle({}, beyond, now)
            return None
        cost = self._price(given, taken) if self._price is not None and tokens else 0.0
        if self._price is not None:
            cost += sum(call.get("cost") or 0.0 for call in calls)
        released = {HELD_TOKENS: -self._held, HELD_COST: -self._held_cost, LIVE_TOKENS: -self._live, LIVE_COST: -self._cost}
        counters.settle({**released, USED_TOKENS: tokens, USED_COST: cost}, beyond, now)

        def written() -> None:
            counters.add(WRITTEN_TOKENS, tokens)
            counters.add(WRITTEN_COST, cost)

        return written


def price_of(candidate: Candidate) -> Price:
    """The price function of this candidate. It returns 0 if the price is not known."""

    def cost(input_tokens: int, output_tokens: int) -> float:
        return price(TokenCounts(input_tokens, output_tokens), candidate.model, candidate.upstream.name) or 0.0

    return cost


def _count_of(tokens: int | None) -> int:
    """The count, at least 0, so that an upstream's report cannot enlarge a budget."""
    return max(0, tokens or 0)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
