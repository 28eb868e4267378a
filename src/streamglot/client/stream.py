"""One answer as events: ``async for`` in an asynchronous program, ``for`` in any other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ..errors import ConfigError, UpstreamTimeout
from ..events import (
    BareEvent,
    Choice,
    Event,
    ReasoningEnd,
    ReasoningStart,
    StreamEnd,
    StreamError,
    StreamStart,
    TextEnd,
    TextStart,
    ToolCallEnd,
    ToolCallStart,
)
from ..gateway.opening import Past
from ..gateway.source import ENDS, Source
from ..messages import Request

if TYPE_CHECKING:
    from .desk import Desk

Run = Callable[[Coroutine[Any, Any, Any]], Any]
_ENDINGS: Final[dict[type, BareEvent]] = {
    TextStart: TextEnd(complete=False),
    ReasoningStart: ReasoningEnd(complete=False),
    ToolCallStart: ToolCallEnd(complete=False),
}


class Stream:
    """The request goes out with the first step. An error before the answer has begun is raised; after that it is the last
    event. ``run`` is how a plain loop gets a step done; ``upstream``, its ``model`` and ``dropped`` are known once the answer
    has begun. ``record`` notes who was asked, and when what came; ``past`` is what upstreams are to be told of earlier answers."""

    def __init__(self, desk: Desk, request: Request, run: Run | None) -> None:
        self.request = request
        self.upstream = self.model = ""
        self.dropped: list[str] = []
        self.record = desk.record(request)
        self.past: Past | None = None
        self._desk = desk
        self._run = run
        self._source: Source | None = None
        self._began = False
        self._over = False
        self._ready: deque[Event] = deque()
        self._open: dict[int, type] = {}
        self._started = False

    # --- both ways

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._ready:
            events = await self.read()
            if events is None:
                raise StopAsyncIteration
            self._ready.extend(events)
        return self._seen(self._ready.popleft())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        while not self._ready:
            events = self._plain(self.read())
            if events is None:
                raise StopIteration
            self._ready.extend(events)
        return self._seen(self._ready.popleft())

    def _plain(self, step: Coroutine[Any, Any, Any]) -> Any:
        if self._run is None:
            step.close()
            raise ConfigError("this client was opened with `async with`: its streams are read with `async for`")
        return self._run(step)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends it, from the plain side: the upstream hears of it at once."""

        async def hang_up() -> None:
            self.hang_up()

        self._plain(hang_up())

    # --- steps

    async def read(self) -> list[Event] | None:
        """The events of one network read; None when there are no more."""
        if self._over:
            return None
        try:
            if not self._began:
                self._began = True
                self._source = await self._desk.ask(self.request, self.record, self.past)
                self.upstream, self.model, self.dropped = self._source.name, self._source.model, self._source.dropped
                self.record.first_event = self._desk.clock()
                events: list[Event] | None = self._source.first
            else:
                assert self._source is not None
                events = await self._next(self._source)
        except BaseException:
            self.hang_up()
            raise
        if events is None:
            self.hang_up()
            return None
        self.record.seen(events, self._desk.clock())
        if events and type(events[-1]) in ENDS:
            assert self._source is not None
            self._over = True
            await self._source.drain()
            self.hang_up()
        return events

    async def _next(self, source: Source) -> list[Event] | None:
        """The next read, within the upstream's own patience."""
        seconds = source.upstream.timeouts.idle if source.upstream is not None else 0.0
        task = asyncio.current_task()

        def overdue() -> None:
            source.interrupt(UpstreamTimeout(f"it was silent for {seconds:g} s (timeouts.idle)"))
            if task is not None:
                task.cancel()

        watch = asyncio.get_running_loop().call_later(seconds, overdue)
        try:
            return await source.read()
        finally:
            watch.cancel()

    def hang_up(self) -> None:
        """Lets go of the upstream. In the loop of the client only."""
        self._over = True
        if self._source is not None:
            self._source.close()

    # --- an end that the upstream did not say

    def _seen(self, event: Event) -> Event:
        index, bare = (event.index, event.event) if isinstance(event, Choice) else (0, event)
        if type(bare) in _ENDINGS:
            self._open[index] = type(bare)
        elif isinstance(bare, (TextEnd, ReasoningEnd, ToolCallEnd)):
            self._open.pop(index, None)
        self._started = True
        return event

    def ending(self, last: StreamEnd | StreamError) -> list[Event]:
        """The events that end what has been given so far, properly: open blocks are closed, then the last word."""
        events: list[Event] = [] if self._started else [StreamStart(model=self.request.model)]
        for index, kind in sorted(self._open.items(), reverse=True):
            events.append(Choice(index, _ENDINGS[kind]) if index else _ENDINGS[kind])
        self._open.clear()
        self._started = self._over = True
        self._ready.clear()
        self.record.seen([last], self._desk.clock())
        return [*events, last]
