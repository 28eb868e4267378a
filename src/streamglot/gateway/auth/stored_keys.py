"""The keys in the store, as this process knows them. They are read in the background, never while a request waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from ...errors import RequestError
from ...messages import TokenCounts
from ...tasks import WriteLine
from ...upstream.prices import price
from ...upstream.providers import PROVIDERS
from . import ratelimit
from .authenticator import Caller

if TYPE_CHECKING:
    from ...store import BudgetExceeded, Store, StoredKey

REFRESH_SECONDS: Final = 2.0
"""Seconds within which a new key is accepted and a revoked key is refused."""
BUDGET_SHARE: Final = 20
"""One part in this many of the time may be spent on adding up usage."""
ADD_UP_TIMES: Final = 3
"""How often usage is added up until nothing was written meanwhile, which might count twice. A busy gateway writes all the time."""
_PERIODS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


class StoredCallers:
    """The callers of the store's keys.

    ``known``: the store was read, or there is none. ``revoked``: the number of keys that are no longer valid.
    """

    def __init__(self) -> None:
        self.callers: dict[str, Caller] = {}
        self.known = False
        self.revoked = 0
        self._had_keys = False
        self._renews: dict[str, float | None] = {}
        self._count_at = 0.0

    @property
    def ever(self) -> bool:
        """Whether there ever was a key: in the store, in the configuration, or in a process that shares its numbers.

        It never becomes false again, even if the database is lost.
        """
        return self._had_keys or ratelimit.is_raised(ratelimit.KEYS_IN_USE)

    def note_keys(self) -> None:
        """Records that keys are required from now on."""
        self._had_keys = True
        ratelimit.raise_flag(ratelimit.KEYS_IN_USE)

    async def refresh(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads the keys of the store. The counts of the last minute stay."""
        keys = await store.keys.changes()
        if keys is not None:
            callers: dict[str, Caller] = {}
            for key in keys:
                if key.revoked is None:
                    caller = callers[key.hash] = self.callers.get(key.hash) or Caller(key, key.hash)
                    caller.take(key)
                    caller.refusal = partial(self._refusal, key, caller)
            if keys or store.keys.had_keys():
                self.note_keys()
            self.callers, self.revoked, self.known = callers, len(keys) - len(callers), True
        began = clock()
        if began >= self._count_at and any(caller.budget.limited for caller in self.callers.values()):
            await self._add_up(store)
            self._count_at = clock() + BUDGET_SHARE * (clock() - began)

    async def _add_up(self, store: Store) -> None:
        """Reads the usage of each budget from the database."""
        if any(caller.budget.cost is not None for caller in self.callers.values()):
            await asyncio.to_thread(_load_prices)
        for _ in range(ADD_UP_TIMES):
            marks = self._marks()
            balances = await store.keys.balances()
            if marks == self._marks():
                break
        for key, spent in balances:
            caller = self.callers.get(key.hash)
            if caller is not None and key.hash in marks:
                caller.budget.rebase(spent, marks[key.hash])
        self._renews = {over.key.hash: over.renews for over in await store.keys.budget_exceeded()} if self._any_over() else {}

    def _marks(self) -> dict[str, tuple[float, float]]:
        """How much of the usage of each key is in the database."""
        return {digest: caller.budget.mark() for digest, caller in self.callers.items()}

    def _any_over(self) -> bool:
        return any(caller.budget.limited and caller.budget.used_up() for caller in self.callers.values())

    def _refusal(self, key: StoredKey, caller: Caller) -> RequestError:
        """The error for a key whose budget is used up, from what is known now."""
        from ...store import BudgetExceeded, Spent

        tokens, cost = caller.budget.used()
        renews, latest = self._renews.get(key.hash), False
        if renews is None and key.budget_seconds is not None:
            renews, latest = time.time() + key.budget_seconds, True  # by then all present usage has left the period
        spent = Spent(turns=0, tokens=round(tokens), cost=cost)
        return refusal(BudgetExceeded(key=key, spent=spent, renews=renews), latest)

    async def watch(self, store: Store, tick: Callable[[], object], log: WriteLine) -> None:
        """Refreshes the keys until it is cancelled. If the store does not answer, nothing changes."""
        from ...store import StoreUnavailable

        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                tick()
                await self.refresh(store)
            except StoreUnavailable:
                continue
            except Exception as error:
                log({"event": "store_fault", "message": f"{type(error).__name__}: {error}"[:300]})


def refusal(over: BudgetExceeded, latest: bool = False) -> RequestError:
    """The error that names the budget that is used up and when it renews. ``latest``: the time is an upper bound."""
    key, spent = over.key, over.spent
    period = "" if key.budget_seconds is None else f" in {_period(key.budget_seconds)}"
    used: list[str] = []
    if key.budget_cost is not None and spent.cost >= key.budget_cost:
        used.append(f"{spent.cost:.2f} of the {key.budget_cost:.2f} that it may cost{period}")
    if key.budget_tokens is not None and spent.tokens >= key.budget_tokens:
        used.append(f"{spent.tokens} of the {key.budget_tokens} tokens that it may use{period}")
    next_step = "it does not renew: ask for a larger budget or another key"
    if over.renews is not None:
        moment = f"{datetime.fromtimestamp(over.renews, UTC):%Y-%m-%d %H:%M:%S} UTC"
        next_step = f"it renews at {moment}{' at the latest' if latest else ''}"
    return RequestError(
        f"the key {key.name!r} has used {' and '.join(used)}; {next_step}",
        code="budget_exceeded",
        status=429,
        detail=None if over.renews is None else {"retry_after": max(1.0, over.renews - time.time())},
    )


def _period(seconds: float) -> str:
    size, name = next(((size, name) for size, name in _PERIODS if seconds >= size and seconds % size == 0), (1, "second"))
    count = seconds / size
    return f"{count:g} {name}{'' if count == 1 else 's'}"


def _load_prices() -> None:
    """Loads the price table ahead of the first request, because loading it is slow."""
    price(TokenCounts(0, 0), "", next(provider.name for provider in PROVIDERS if provider.key_env))
