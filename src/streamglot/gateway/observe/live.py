"""The figures of the overview: what the gateway does now and did in the last hour, in memory.

``Live`` holds finished exchanges and wakes watchers. A watcher does not get each change. It is woken, waits a moment, and reads
the current state. There are therefore no queues, and a slow reader costs only its connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec import Struct

from ...engine.observer import ExchangeResult, Observer
from ...engine.stats import ExchangeRecord, UpstreamWait
from ...errors import RequestError
from ...framing import sse
from ...json_types import JsonObject
from ...messages import TokenCounts
from ...tasks import within
from ...upstream.prices import price
from ..http.call import HALF_CLOSED_SECONDS

HOUR: Final = 3600.0
MAX_FINISHED: Final = 5_000
"""Finished exchanges in memory, about 500 bytes each: an hour of more than one request a second. A busier gateway shows its last
5,000; its metrics have all."""
MAX_WATCHERS: Final = {"overview": 32, "approvals": 1_000}
"""Concurrent watchers of each kind. An overview gets some kilobytes twice a second while streams run. A chat only gets the
approvals that concern it, when they change."""
MAX_OPEN: Final = 200
"""Open streams in one state: more than a person reads."""
MAX_ERRORS: Final = 20
"""Errors in one state: the latest ones."""
MAX_GROUPS: Final = 50
"""Models, upstreams or keys in one table: those with the most requests."""
MESSAGE_CHARS: Final = 500
"""Characters of an error message in the overview: about three lines of a page."""
MINUTES: Final = 60


class FinishedExchange(Struct):
    """One exchange that ended.

    ``at`` is seconds since 1970. ``cost`` is computed on first use, because the price list is slow to load.
    """

    at: float
    request_id: str
    turn_id: str
    dialect: str
    model: str
    upstream: str
    key: str
    seconds: float
    first_event: float | None
    input_tokens: int
    output_tokens: int
    ending: str
    error: str
    message: str
    cost: float | None = None


class _Entry(Struct):
    """``usage`` and ``upstream_model`` are None once the exchange is priced."""

    shown: FinishedExchange
    usage: TokenCounts | None
    upstream_model: str

    def priced(self) -> FinishedExchange:
        if self.usage is not None:
            self.shown.cost = price(self.usage, self.upstream_model, self.shown.upstream)
            self.usage = None
        return self.shown


class Live:
    """``time`` returns seconds since 1970."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self.since = time()
        self._finished: deque[_Entry] = deque(maxlen=MAX_FINISHED)
        self._watchers: dict[str, set[asyncio.Event]] = {kind: set() for kind in MAX_WATCHERS}
        self._states: dict[str | None, JsonObject] = {}
        self._states_of = 0
        self._added = 0

    # --- watchers

    def check_room(self, kind: str) -> None:
        """Raises a RequestError if there is no room for another watcher of this kind."""
        limit = MAX_WATCHERS[kind]
        if len(self._watchers[kind]) >= limit:
            message = f"{limit} pages already watch the {kind}, which is the limit; close one of them"
            raise RequestError(message, code="too_many_watchers", status=503)

    @contextmanager
    def watched(self, kind: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever something has changed."""
        event = asyncio.Event()
        event.set()
        self._watchers[kind].add(event)
        try:
            yield event
        finally:
            self._watchers[kind].discard(event)

    def watchers(self, kind: str) -> int:
        return len(self._watchers[kind])

    def changed(self) -> None:
        for events in self._watchers.values():
            for event in events:
                event.set()

    # --- exchanges

    def add(self, result: ExchangeResult) -> None:
        record = result.record
        usage = record.estimated or _counts(record)
        first = record.first_event - record.began if record.first_event else None
        shown = FinishedExchange(
            self._time(),
            record.request_id,
            record.turn,
            record.dialect,
            record.model,
            record.upstream,
            record.key,
            result.seconds,
            first,
            usage.input_tokens or 0,
            usage.output_tokens or 0,
            record.ending or "error",
            record.error_kind or record.error,
            record.message[:MESSAGE_CHARS],
        )
        self._added += 1
        self._finished.append(_Entry(shown, None if record.cached else usage, result.upstream_model or record.model))
        self.changed()

    def state(self, key: str | None) -> JsonObject:
        """The last hour as this key may see it; None is the operator, who sees all.

        It is computed again when an exchange has ended, and every minute.
        """
        now = self._time()
        version = hash((self._added, int(now // 60)))
        if version != self._states_of:
            self._states_of = version
            self._states.clear()
        if key not in self._states:
            self._states[key] = self._state(key, now)
        return self._states[key]

    def _state(self, key: str | None, now: float) -> JsonObject:
        entries = (entry for entry in self._finished if entry.shown.at > now - HOUR and key in (None, entry.shown.key))
        seen = [entry.priced() for entry in entries]
        errors = [one for one in seen if one.error]
        return {
            "totals": _summary("", seen),
            "minutes": _minutes(seen, now),
            "by_model": _groups(seen, lambda one: one.model),
            "by_upstream": _groups(seen, lambda one: one.upstream),
            "by_key": _groups(seen, lambda one: one.key),
            "errors": [{"code": code, "count": count} for code, count in Counter(one.error for one in errors).most_common()],
            "last_errors": errors[: -MAX_ERRORS - 1 : -1],
        }


async def live_feed(
    live: Live,
    kind: str,
    state: Callable[[], object],
    stopping: Callable[[], bool],
    *,
    quiet: float,
    half_closed: Callable[[], bool] = lambda: False,
    pause: float = 0.0,
) -> AsyncIterator[bytes]:
    """The state as server-sent events of this kind: at once, and whenever it has changed, until the gateway stops.

    ``state`` raises a RequestError when the watcher may not see it any more: its key was revoked, or keys are required now and it
    has none. ``quiet``: after this many seconds without an event a comment is sent, and sooner if ``half_closed`` says that the watcher
    may be gone. ``pause``: seconds between two states.
    """
    clock, sent = asyncio.get_running_loop().time, b""
    due = clock() + quiet
    with live.watched(kind) as changed:
        while not stopping():
            left = min(due - clock(), HALF_CLOSED_SECONDS)
            if left <= 0 or not await within(changed, left):
                if clock() >= due or half_closed():
                    due = clock() + quiet
                    yield sse.comment("ping")
                continue
            changed.clear()
            try:
                now = msgspec.json.encode(state())
            except RequestError:
                return
            if now != sent:
                sent, due = now, clock() + quiet
                yield b"event: %b\ndata: %b\n\n" % (kind.encode(), now)
            if pause:
                await asyncio.sleep(pause)


class LiveObserver(Observer):
    """Tells the pages that watch when an exchange starts and ends."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def started(self, _context: object) -> None:
        self._live.changed()

    def finished(self, result: ExchangeResult) -> None:
        self._live.add(result)


def open_exchange(record: ExchangeRecord, now: float) -> JsonObject:
    """A running exchange as a row of the overview."""
    usage = _counts(record)
    return {
        "request_id": record.request_id,
        "turn_id": record.turn,
        "dialect": record.dialect,
        "model": record.model,
        "upstream": record.upstream,
        "key": record.key,
        "attempts": record.attempts,
        "wait": shown_wait(record.wait) if record.wait is not None else None,
        "seconds": round(now - record.began, 3),
        "first_event": round(record.first_event - record.began, 3) if record.first_event else None,
        "silent": round(now - record.last_event, 3) if record.last_event else None,
        "events": record.events,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
    }


def shown_wait(wait: UpstreamWait) -> JsonObject:
    """A wait as pages show it. It does not change while it lasts: a page counts the seconds."""
    seconds = round(wait.seconds, 3)
    return {
        "upstream": wait.upstream,
        "seconds": seconds,
        "attempt": wait.attempt,
        "attempts": wait.attempts,
        "asked": wait.by_upstream,
    }


def _counts(record: ExchangeRecord) -> TokenCounts:
    usage = record.usage
    return TokenCounts() if usage is None else TokenCounts(usage.input_tokens, usage.output_tokens, usage.cached_tokens)


def _groups(seen: Iterable[FinishedExchange], name: Callable[[FinishedExchange], str]) -> list[JsonObject]:
    groups: dict[str, list[FinishedExchange]] = {}
    for one in seen:
        groups.setdefault(name(one), []).append(one)
    largest = sorted(groups.items(), key=lambda group: -len(group[1]))[:MAX_GROUPS]
    return [_summary(group, ones) for group, ones in largest]


def _summary(name: str, ones: list[FinishedExchange]) -> JsonObject:
    firsts = sorted(one.first_event for one in ones if one.first_event is not None)
    costs = [one.cost for one in ones if one.cost is not None]
    return {
        "name": name,
        "requests": len(ones),
        "errors": sum(1 for one in ones if one.error),
        "input_tokens": sum(one.input_tokens for one in ones),
        "output_tokens": sum(one.output_tokens for one in ones),
        "cost": sum(costs) if costs else None,
        "p50": _percentile(firsts, 0.5),
        "p95": _percentile(firsts, 0.95),
    }


def _percentile(ordered: list[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def _minutes(seen: Iterable[FinishedExchange], now: float) -> list[dict[str, int]]:
    """The requests and errors of each of the last minutes, the oldest first."""
    rows = [{"requests": 0, "errors": 0} for _ in range(MINUTES)]
    for one in seen:
        row = rows[max(0, MINUTES - 1 - int((now - one.at) // 60))]
        row["requests"] += 1
        row["errors"] += bool(one.error)
    return rows
