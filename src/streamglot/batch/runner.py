"""Runs many items concurrently: each is retried separately, and results come as they are ready or in order.

The source of items is read only as fast as items run, so a source of millions needs the memory of a few.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from ..engine.attempts import retry_after_of
from ..engine.exchange import Exchange
from ..engine.upstreams import UpstreamPool
from ..errors import ConfigError, StreamglotError
from ..events import StreamError
from ..messages import Response

Item = TypeVar("Item")
Result = TypeVar("Result")

CONCURRENT: Final = 8
"""Default number of concurrent items: enough to hide a model's latency, and few enough for the limits of a small account."""
ORDERED_WINDOW: Final = 4
"""Times ``concurrent``: results that may wait for an earlier one if results are wanted in order. One slow item must not stop the
others at once, nor fill the memory with their results."""


class RetryPolicy(Struct, frozen=True):
    """``retries``: how often a failed item is run again, if its error is retryable.

    ``first`` is the pause in seconds before the first retry. It doubles each time, up to ``longest``. A longer pause that an
    upstream asks for is limited to ``longest`` as well.
    """

    retries: int = 3
    first: float = 0.5
    longest: float = 30.0

    def pause(self, attempt: int, retry_after: float | None, chance: float) -> float:
        """The seconds before the next attempt, after this many.

        ``chance`` from 0 to 1 is the jitter that spreads retries.
        """
        own = min(self.longest, self.first * 2.0 ** (attempt - 1)) * (0.5 + chance / 2)
        return min(self.longest, max(own, retry_after or 0.0))


class Outcome(Struct, Generic[Result]):
    """The result of one attempt: a value, or an error.

    ``final``: no other attempt must be made, even if the error is retryable.
    """

    value: Result | None = None
    error: StreamError | None = None
    retry_after: float | None = None
    attempts: int = 1
    final: bool = False


async def with_retries(
    attempt: Callable[[], Awaitable[Outcome[Result]]],
    policy: RetryPolicy,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> Outcome[Result]:
    """The outcome of the last attempt, with the number of attempts."""
    attempts = 0
    while True:
        outcome = await attempt()
        attempts += 1
        outcome.attempts = attempts
        error = outcome.error
        if error is None or not error.retryable or outcome.final or attempts > policy.retries:
            return outcome
        await sleep(policy.pause(attempts, outcome.retry_after, random.random()))


class Completion(Struct):
    """The whole answer to one request. ``seconds`` counts from the request to the last event."""

    response: Response
    upstream: str = ""
    model: str = ""
    seconds: float = 0.0


async def collected(pool: UpstreamPool, exchange: Exchange) -> Outcome[Completion]:
    """Runs an exchange to its end within its upstream's time limits. Returns failures as outcomes and never raises.

    The exchange must have been made with ``collects``.
    """
    pool.watch(exchange)
    retry_after: float | None = None
    try:
        await exchange.start()
        response = await exchange.collect()
        await exchange.drain()
        error = response.error
    except StreamglotError as failure:
        response, error, retry_after = Response(error=failure.as_event()), failure.as_event(), retry_after_of(failure)
    finally:
        pool.unwatch(exchange)
        exchange.close()
    if error is not None and retry_after is None and error.detail:
        retry_after = _seconds(error.detail.get("retry_after"))
    turn = exchange.turn
    model = turn.model if turn is not None else exchange.request.model
    seconds = pool.clock() - exchange.record.began
    return Outcome(Completion(response, exchange.record.upstream, model, seconds), error, retry_after)


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 else None


def run_all(
    items: Iterable[Item] | AsyncIterable[Item],
    run: Callable[[Item], Awaitable[Result]],
    *,
    concurrent: int = CONCURRENT,
    ordered: bool = False,
) -> AsyncGenerator[Result, None]:
    """Runs every item, ``concurrent`` at a time.

    ``run`` must turn failures into results; an exception ends all items. Items that still run when the caller stops reading are
    cancelled.
    """
    if concurrent < 1:
        raise ConfigError(f"concurrent must be at least 1, not {concurrent}")
    return _run_all(items, run, concurrent, ordered)


async def _run_all(
    items: Iterable[Item] | AsyncIterable[Item], run: Callable[[Item], Awaitable[Result]], concurrent: int, ordered: bool
) -> AsyncGenerator[Result, None]:
    source = numbered(items)
    window = asyncio.Semaphore(concurrent * ORDERED_WINDOW if ordered else concurrent * 2)
    reading = asyncio.Lock()
    # Any: a result, or the failure of a worker
    done: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()

    async def work() -> None:
        while True:
            await window.acquire()
            try:
                async with reading:
                    number, item = await anext(source)
            except StopAsyncIteration:
                window.release()
                return
            done.put_nowait((number, await run(item)))

    workers = [asyncio.ensure_future(work()) for _ in range(concurrent)]
    for worker in workers:
        worker.add_done_callback(lambda ended: done.put_nowait((_END, ended)))
    waiting: dict[int, Result] = {}
    expected, working = 0, len(workers)
    try:
        while working or not done.empty():
            number, value = await done.get()
            if number == _END:
                working -= 1
                value.result()
                continue
            waiting[number if ordered else expected] = value
            while expected in waiting:
                result = waiting.pop(expected)
                expected += 1
                window.release()
                yield result
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await source.aclose()


_END: Final = -1
"""Marks the end of a worker; it is not the number of an item."""


async def numbered(items: Iterable[Item] | AsyncIterable[Item]) -> AsyncGenerator[tuple[int, Item], None]:
    """Items with their numbers, from 0."""
    number = 0
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield number, item
            number += 1
    else:
        for item in items:
            yield number, item
            number += 1
