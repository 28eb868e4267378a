"""Rate limits of upstreams that all workers count together in Valkey.

A call needs a permit, and Valkey gives the permits of one account to all workers. While Valkey does not answer, every worker goes
on with its share of the limits, as without Valkey.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from ..errors import ConfigError
from ..tasks import WriteLine, within
from ..upstream.rate_limits import Limit
from .durable.pace import LONGEST_PAUSE, UpstreamPace
from .limit_script import AHEAD_MS, PREFIX, SCRIPT

CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 5.0
"""Seconds without an answer after which Valkey counts as unreachable. Only batches wait that long, not live requests."""
HEARTBEAT_SECONDS: Final = 1.0
"""Seconds between two messages of a worker with calls in flight. Without messages its calls no longer count."""
IDLE_SECONDS: Final = 60.0
"""Seconds between two messages of a worker without calls, which has nothing to report."""
RETRY_SECONDS: Final = 1.0
"""Seconds between two attempts to reach Valkey. Meanwhile the limits are divided."""
FREE_SECONDS: Final = 0.2
"""Seconds in which calls to an account without known limits need no permits. The first answer that names a limit ends them."""
DISCONNECT_SECONDS: Final = 0.5
"""Seconds that closing the connections may take."""
MESSAGE_CHARS: Final = 300
"""Characters of an error's message in a log line."""
UNITS: Final = ("requests", "tokens")


class SharedPace(UpstreamPace):
    """The pace of one upstream by permits. ``changed`` is called when there is something to tell Valkey."""

    def __init__(self, maximum: int, account: str, changed: Callable[[], None]) -> None:
        super().__init__(maximum)
        self.account = account
        self.counted = True
        self._changed = changed
        self._permits = 0
        self._unused_since: float | None = None
        self._wanted = 0
        self._free_until = 0.0
        self._ask_at = 0.0
        self._rests_until = 0.0
        self._paused_until = 0.0
        self._reports: dict[str, tuple[Limit, float]] = {}
        self._told = 0

    # --- for the worker

    def delay(self, now: float, ready: int = 1) -> float:
        if not self.counted:
            return super().delay(now, ready)
        room = max(1, int(self.allowed)) - self.running
        if room <= 0:
            return float("inf")
        if self._permits or now < self._free_until:
            return 0.0
        if now < self._ask_at:
            return self._ask_at - now
        self._wanted = max(1, min(ready, room))
        self._changed()
        return float("inf")  # the worker is woken by the answer

    def rests(self, now: float) -> bool:
        return self._rests_until > now if self.counted else super().rests(now)

    def started(self, now: float) -> None:
        super().started(now)
        self._permits = max(0, self._permits - 1)
        self._unused_since = None

    def throttled(self, now: float, retry_after: float | None) -> None:
        super().throttled(now, retry_after)
        self._paused_until = now + min(LONGEST_PAUSE, retry_after if retry_after is not None else self.pause)
        self._free_until = 0.0
        self._changed()

    def apply(self, now: float, limits: Mapping[str, Limit]) -> None:
        super().apply(now, limits)
        for unit, limit in limits.items():
            known = self._reports.get(unit)
            if known is None or limit.left <= known[0].left:
                self._reports[unit] = limit, now
        if limits:
            self._free_until = 0.0
            self._changed()

    # --- for Valkey

    @property
    def has_news(self) -> bool:
        """Whether the last message is out of date, or must be repeated because calls are in flight."""
        return bool(self._wanted or self._reports or self._paused_until or self._flying or self._told)

    @property
    def active(self) -> bool:
        return bool(self._flying or self._told)

    @property
    def _flying(self) -> int:
        return self.running + self._permits

    def message(self, now: float) -> list[float]:
        """The arguments of the script, without the worker. Permits that were not used for a while are dropped."""
        if self._permits:
            if self._unused_since is None:
                self._unused_since = now
            elif now - self._unused_since > HEARTBEAT_SECONDS:
                self._permits = 0
        pause = max(0.0, self._paused_until - now)
        arguments = [self._flying, self._wanted, self.maximum, max(1.0, self.call_tokens), round(pause * 1000)]
        for unit in UNITS:
            if unit in self._reports:
                limit, seen = self._reports[unit]
                ends_in = max(0.0, min(LONGEST_PAUSE, limit.reset) - (now - seen))
                arguments += [limit.left, round(ends_in * 1000), limit.limit or -1]
            else:
                arguments += [-1, 0, -1]
        self._wanted, self._paused_until, self._told = 0, 0.0, self._flying
        self._reports.clear()
        return [*arguments, AHEAD_MS]

    def answered(self, now: float, granted: int, wait: float, rests: bool, free: bool) -> bool:
        """Records the script's answer. Returns whether the worker can continue, or must set its timer again."""
        self._permits += granted
        self._told += granted + free  # the calls of a free worker are counted until its next message
        self._ask_at = now + wait
        self._rests_until = now + wait if rests else 0.0
        self._free_until = now + FREE_SECONDS if free else 0.0
        return bool(granted or free or wait)

    def divide(self) -> None:
        """Goes on with a share of the limits, because Valkey does not answer."""
        self.counted = False
        self._permits, self._wanted, self._told = 0, 0, 0
        self._free_until = self._ask_at = self._rests_until = 0.0


class SharedLimits:
    """The paces of one worker, and the task that exchanges messages with Valkey.

    ``account`` returns what identifies the account of an upstream: workers with the same account share its limits.
    """

    def __init__(
        self,
        url: str,
        worker: str,
        *,
        account: Callable[[str], str],
        say: WriteLine = lambda line: None,
    ) -> None:
        try:
            from valkey.asyncio import Valkey
            from valkey.exceptions import ValkeyError

            from ..store.valkey_retry import connect_retry
        except ImportError:
            raise ConfigError("valkey.url needs the package valkey: pip install 'streamglot[valkey]'") from None
        self.wake: Callable[[], None] = lambda: None
        self._faults: tuple[type[Exception], ...] = (ValkeyError, OSError, TimeoutError)
        # Any: the package has no types for asyncio
        self._client: Any = Valkey.from_url(
            url, socket_connect_timeout=CONNECT_SECONDS, socket_timeout=ANSWER_SECONDS, retry=connect_retry()
        )
        self._script = self._client.register_script(SCRIPT)
        self._worker = worker
        self._account = account
        self._say = say
        self._paces: dict[str, SharedPace] = {}
        self._changed = asyncio.Event()
        self._counting = True
        self._stopping = False

    def pace(self, upstream: str, maximum: int) -> SharedPace:
        pace = self._paces[upstream] = SharedPace(maximum, self._account(upstream), self._changed.set)
        pace.counted = self._counting
        return pace

    async def run(self) -> None:
        """Exchanges messages: at once if a worker wants to start calls, periodically while calls are in flight."""
        while not self._stopping:
            active = any(pace.active for pace in self._paces.values())
            await within(self._changed, HEARTBEAT_SECONDS if active or not self._counting else IDLE_SECONDS)
            self._changed.clear()
            try:
                await self.exchange()
            except self._faults as error:
                self._failed(error)
                if not self._stopping:
                    await asyncio.sleep(RETRY_SECONDS)

    def stop(self) -> None:
        """Ends ``run``. Cancelling it does not suffice: before Python 3.12 the client may lose a cancellation."""
        self._stopping = True
        self._changed.set()

    async def exchange(self) -> None:
        """Sends one message for each upstream whose state has changed. If Valkey does not answer, raises one of the client's
        errors."""
        if not self._counting:
            await self._client.ping()
            self._succeeded()
        go_on = False
        for pace in list(self._paces.values()):
            if pace.has_news:
                message = [self._worker, *pace.message(time.monotonic())]
                granted, wait, rests, free = await self._script(keys=_keys(pace.account), args=message)
                go_on |= pace.answered(time.monotonic(), granted, wait / 1000, bool(rests), bool(free))
        if go_on:
            self.wake()

    async def close(self) -> None:
        """Removes the calls of this worker from the count, and closes the connections. All calls must have ended."""
        with suppress(*self._faults):
            async with asyncio.timeout(DISCONNECT_SECONDS):
                if self._counting:
                    for pace in self._paces.values():
                        await self._client.hdel(_keys(pace.account)[1], self._worker)
                await self._client.aclose()

    def _failed(self, error: Exception) -> None:
        if self._counting:
            self._counting = False
            message = "Valkey does not answer; rate limits are divided by the number of workers"
            self._say({"event": "rate_limits_divided", "message": f"{message}: {error}"[:MESSAGE_CHARS]})
            for pace in self._paces.values():
                pace.divide()
            self.wake()

    def _succeeded(self) -> None:
        self._counting = True
        self._say({"event": "rate_limits_counted", "message": "Valkey answers; it counts the calls of all workers"})
        for pace in self._paces.values():
            pace.counted = True


def _keys(account: str) -> list[str]:
    """The keys of an account. The braces keep them on one node of a cluster, as a script needs."""
    key = f"{PREFIX}{{{account}}}"
    return [key, f"{key}:flights"]
