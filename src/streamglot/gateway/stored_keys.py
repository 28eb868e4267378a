"""Keys that live in the store, as this process knows them: asked for in the background, never on the path of a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..errors import RequestError
from .keys import Caller

if TYPE_CHECKING:
    from ..store import Overdrawn, Store

REFRESH_SECONDS: Final = 2.0
"""So soon a new key opens the door, and one that was revoked does no more."""
BUDGET_SHARE: Final = 20
"""Adding up what was spent may take one part in so many of the time."""
_PERIODS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


class StoredCallers:
    """``known``: the store was asked, or there is none to ask. ``ever``: it has keys, if only revoked ones."""

    def __init__(self) -> None:
        self.callers: dict[str, Caller] = {}
        self.known = False
        self.ever = False
        self._count_at = 0.0

    async def refresh(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        """What the store says now. What a key has done in the last minute stays done."""
        keys = await store.keys.news()
        if keys is not None:
            callers: dict[str, Caller] = {}
            for key in keys:
                if key.revoked is None:
                    caller = callers[key.hash] = self.callers.get(key.hash) or Caller(key, key.hash)
                    caller.take(key)
            self.callers, self.ever, self.known = callers, bool(keys), True
        began = clock()
        if self.callers and began >= self._count_at:
            over = {found.key.hash: found for found in await store.keys.overdrawn()}
            for digest, caller in self.callers.items():
                caller.refusal = partial(refusal, over[digest]) if digest in over else None
            self._count_at = clock() + BUDGET_SHARE * (clock() - began)

    async def watch(self, store: Store, tick: Callable[[], object], say: Callable[[Mapping[str, Any]], None]) -> None:
        """Until it is cancelled. A store that does not answer leaves everything as it was."""
        from ..store import StoreUnavailable

        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            tick()
            try:
                await self.refresh(store)
            except StoreUnavailable:
                continue
            except Exception as error:
                say({"event": "store_fault", "message": f"{type(error).__name__}: {error}"[:300]})


def refusal(over: Overdrawn) -> RequestError:
    """Which budget is used up, and when it renews."""
    key, spent = over.key, over.spent
    period = "" if key.budget_seconds is None else f" in {_period(key.budget_seconds)}"
    used: list[str] = []
    if key.budget_cost is not None and spent.cost >= key.budget_cost:
        used.append(f"{spent.cost:.2f} of the {key.budget_cost:.2f} that it may cost{period}")
    if key.budget_tokens is not None and spent.tokens >= key.budget_tokens:
        used.append(f"{spent.tokens} of the {key.budget_tokens} tokens that it may use{period}")
    next_step = "that does not renew: ask for a larger budget or another key"
    if over.renews is not None:
        next_step = f"it can go on at {datetime.fromtimestamp(over.renews, UTC):%Y-%m-%d %H:%M:%S} UTC"
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
