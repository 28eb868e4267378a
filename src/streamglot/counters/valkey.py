"""What the workers of several machines count together in Valkey: the rate limits of upstreams.

A call needs a permit, and Valkey gives the permits of one account to all workers. While Valkey does not answer, every worker goes
on with its share of the limits, as without Valkey.

A worker sends how many calls it has in flight, what the upstream reported since the last time, and how many calls it wants to
start. The script, which Valkey runs as a whole, answers how many may start, and when to ask again.

- ``left`` is what remains of a limit: a grant lowers it, and a report of the upstream lowers it if other traffic used more.
- A window ends at the earliest end that was reported for it: a report is already old when it arrives, so every reported end is
  too late.
- After its end the limit is full, except for the calls in flight, which may be counted in either window.
- Until a limit is known, ``left`` is what was reported, without the calls in flight: it is not known which are counted.
- Grants are spread over the window. A refusal of the upstream pauses all workers.

Times are milliseconds of the server's clock, so the clocks of workers do not matter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from ..errors import ConfigError
from ..tasks import WriteLine, within

CONNECT_SECONDS: Final = 2.0
ANSWER_SECONDS: Final = 5.0
"""Seconds. A server that does not answer for longer counts as unreachable."""
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
PREFIX: Final = "streamglot:limits:"
KEEP_SECONDS: Final = 600
"""Seconds after which an account that nobody uses is forgotten."""
LOST_MS: Final = 15_000
"""Milliseconds without a message after which the calls of a worker no longer count: it has died."""
AHEAD_MS: Final = 50
"""Milliseconds. Grants that are due within this time are made together, so that a fast account needs few messages."""
RECHECK_MS: Final = 250
"""Milliseconds until a worker asks again if only the end of other calls makes room."""


SCRIPT: Final = f"""
local state, flights = KEYS[1], KEYS[2]
local worker, flying, wanted, capacity = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local size, pause, ahead = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[13])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local total = flying
local known = redis.call('HGETALL', flights)
for i = 1, #known, 2 do
  local count, seen = string.match(known[i + 1], '^(%d+):(%d+)$')
  if now - tonumber(seen) > {LOST_MS} then
    redis.call('HDEL', flights, known[i])
  elseif known[i] ~= worker then
    total = total + tonumber(count)
  end
end

local function number(field)
  return tonumber(redis.call('HGET', state, field) or '')
end

local function store(field, value)
  if value then redis.call('HSET', state, field, string.format('%.3f', value)) else redis.call('HDEL', state, field) end
end

local function unit(name, each, reported, ends_in, new_limit)
  local left, ends, limit = number(name .. ':left'), number(name .. ':ends'), number(name .. ':limit')
  if ends and ends <= now then
    left = limit and limit - total * each or nil
    ends = nil
  end
  if reported >= 0 then
    left = left and math.min(left, reported) or reported - total * each
    ends = math.min(ends or now + ends_in, now + ends_in)
    if new_limit > 0 then limit = new_limit end
    store(name .. ':limit', limit)
  end
  return left, ends
end

local left, ends = unit('requests', 1, tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]))
local tokens, tokens_end = unit('tokens', size, tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12]))
local paused = math.max(number('paused') or 0, pause > 0 and now + pause or 0)
local interval, next_start = number('interval') or 0, number('next') or 0
local granted, wait, rests, free = 0, 0, 0, 0

local budget = math.huge
if left then budget = math.floor(left) end
if tokens then budget = math.min(budget, math.floor(tokens / size)) end
if budget >= 1 then
  local spread = 0
  if left and ends then spread = math.max(spread, (ends - now) / left) end
  if tokens and tokens_end then spread = math.max(spread, (tokens_end - now) * size / tokens) end
  if ends or tokens_end then interval = spread end
end

if paused > now then
  wait, rests = paused - now, 1
elseif not left and not tokens then
  if wanted > 0 or flying > 0 then
    free = 1
    flying = math.max(flying, capacity)  -- until its next message the worker may start as many
  end
elseif budget < 1 then
  local until_end = 0
  if left and left < 1 and ends then until_end = math.max(until_end, ends - now) end
  if tokens and tokens < size and tokens_end then until_end = math.max(until_end, tokens_end - now) end
  wait, rests = until_end, 1
  if until_end == 0 then wait, rests = {RECHECK_MS}, 0 end
elseif next_start > now + ahead then
  wait = next_start - now - ahead
else
  next_start = math.max(now, next_start)
  granted = math.min(wanted, budget)
  if interval > 0 then granted = math.min(granted, 1 + math.floor((now + ahead - next_start) / interval)) end
  next_start = next_start + granted * interval
  if granted < wanted then wait = math.max(1, next_start - now - ahead) end
  if left then left = left - granted end
  if tokens then tokens = tokens - granted * size end
end

store('requests:left', left)
store('requests:ends', ends)
store('tokens:left', tokens)
store('tokens:ends', tokens_end)
store('paused', paused)
store('interval', interval)
store('next', next_start)
if flying + granted > 0 then
  redis.call('HSET', flights, worker, string.format('%d:%d', flying + granted, now))
else
  redis.call('HDEL', flights, worker)
end
redis.call('EXPIRE', state, {KEEP_SECONDS})
redis.call('EXPIRE', flights, {KEEP_SECONDS})
return {{granted, math.ceil(wait), rests, free}}
"""


class Permits(Protocol):
    """The permits of one worker for an account. ``counted``: Valkey answers, and the worker needs permits."""

    account: str
    counted: bool

    @property
    def has_news(self) -> bool:
        """Whether the last message is out of date, or must be repeated because calls are in flight."""

    @property
    def active(self) -> bool:
        """Whether Valkey counts calls of this worker."""

    def message(self, now: float) -> list[float]:
        """The arguments of the script, without the worker. Permits that were not used for a while are dropped."""

    def answered(self, now: float, granted: int, wait: float, rests: bool, free_seconds: float) -> bool:
        """Records the script's answer. Returns whether the worker can continue, or must set its timer again."""

    def divide(self) -> None:
        """Goes on with a share of the limits, because Valkey does not answer."""


def connect(url: str) -> tuple[Any, tuple[type[Exception], ...]]:  # Any: the package has no types for asyncio
    """A client, and the errors of a server that does not answer or refuses a command.

    It connects twice: if this process stood still, the time was over before it could see the connection. Commands are not
    repeated.
    """
    try:
        from valkey import exceptions
        from valkey.asyncio import Valkey
        from valkey.asyncio.retry import Retry
        from valkey.backoff import NoBackoff
    except ImportError:
        raise ConfigError("valkey.url needs the package valkey: pip install 'streamglot[valkey]'") from None
    # The client raises Python's own TimeoutError for a connection that takes too long.
    again: Any = (exceptions.ConnectionError, exceptions.TimeoutError, TimeoutError)  # Any: an except clause takes it
    retry = Retry(NoBackoff(), 1, supported_errors=again)
    client = Valkey.from_url(url, socket_connect_timeout=CONNECT_SECONDS, socket_timeout=ANSWER_SECONDS, retry=retry)
    return client, (exceptions.ValkeyError, OSError, TimeoutError)


class SharedLimits:
    """The permits of one worker, and the task that exchanges messages with Valkey.

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
        self.wake: Callable[[], None] = lambda: None
        self._client, self._faults = connect(url)
        self._script = self._client.register_script(SCRIPT)
        self._worker = worker
        self.account = account
        self._say = say
        self._permits: list[Permits] = []
        self._changed = asyncio.Event()
        self._counting = True
        self._stopping = False

    def join(self, permits: Permits) -> None:
        """From now on asks for these permits when ``changed`` is called."""
        permits.counted = self._counting
        self._permits.append(permits)

    def changed(self) -> None:
        """Says that there is something to tell Valkey."""
        self._changed.set()

    async def run(self) -> None:
        """Exchanges messages: at once if a worker wants to start calls, periodically while calls are in flight."""
        while not self._stopping:
            active = any(permits.active for permits in self._permits)
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
        for permits in list(self._permits):
            if permits.has_news:
                message = [self._worker, *permits.message(time.monotonic()), AHEAD_MS]
                granted, wait, rests, free = await self._script(keys=_keys(permits.account), args=message)
                free_seconds = FREE_SECONDS if free else 0.0
                go_on |= permits.answered(time.monotonic(), granted, wait / 1000, bool(rests), free_seconds)
        if go_on:
            self.wake()

    async def close(self) -> None:
        """Removes the calls of this worker from the count, and closes the connections. All calls must have ended."""
        with suppress(*self._faults):
            async with asyncio.timeout(DISCONNECT_SECONDS):
                if self._counting:
                    for permits in self._permits:
                        await self._client.hdel(_keys(permits.account)[1], self._worker)
                await self._client.aclose()

    def _failed(self, error: Exception) -> None:
        if self._counting:
            self._counting = False
            message = "Valkey does not answer; rate limits are divided by the number of workers"
            self._say({"event": "rate_limits_divided", "message": f"{message}: {error}"[:MESSAGE_CHARS]})
            for permits in self._permits:
                permits.divide()
            self.wake()

    def _succeeded(self) -> None:
        self._counting = True
        self._say({"event": "rate_limits_counted", "message": "Valkey answers; it counts the calls of all workers"})
        for permits in self._permits:
            permits.counted = True


def _keys(account: str) -> list[str]:
    """The keys of an account. The braces keep them on one node of a cluster, as a script needs."""
    key = f"{PREFIX}{{{account}}}"
    return [key, f"{key}:flights"]
