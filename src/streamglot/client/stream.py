"""One answer as events: ``async for`` in an asynchronous program, ``for`` in any other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar

from ..engine.answer import ENDS
from ..engine.exchange import Exchange
from ..engine.stats import ExchangeRecord
from ..engine.upstreams import UpstreamPool
from ..errors import ConfigError, StreamglotError
from ..events import Event, StreamEnd, StreamError, StreamStart
from ..grammar import OpenBlocks
from ..messages import Request, Response
from ..stages import Collect, Snapshot

T = TypeVar("T")
Run: TypeAlias = Callable[[Coroutine[object, object, Any]], Any]  # Any: the result is that of the coroutine


class Stream:
    """What ``Client.stream`` gives: the events of one answer, by ``async for`` or ``for``. The request is sent with the first iteration. An
    error before the first event is raised, such as ``UpstreamRefused``; later it is the last event, a ``StreamError``.

    ``response()`` is the whole answer at the end, ``snapshot()`` the answer so far. ``upstream``, ``model`` and ``dropped`` are known
    once the answer has begun. ``close()`` in a plain program, or ``aclose()``, ends the stream early. Only a ``Client`` makes one, from
    its ``pool``, the ``exchange``, and ``run``, which runs a step for a plain loop.
    """

    def __init__(self, pool: UpstreamPool, exchange: Exchange, run: Run | None) -> None:
        self.upstream = self.model = ""
        self.dropped: list[str] = []
        self._pool = pool
        self._exchange = exchange
        self._run = run
        self._began = False
        self._over = False
        self._ready: deque[Event] = deque()
        self._open = OpenBlocks()
        self._started = False
        self._collect = Collect()
        self._response: Response | None = None

    @property
    def plain(self) -> bool:
        """Whether the client was opened by a plain ``with``, so that the stream is read by ``for``."""
        return self._run is not None

    def snapshot(self) -> Snapshot:
        """The answer so far, with the events of the last network read."""
        return self._collect.snapshot()

    def response(self) -> Response:
        """The whole ``Response``, once the stream has ended or was closed. Before that it raises ``StreamglotError``."""
        if not self._over:
            raise StreamglotError(
                "the stream has not ended: read it to its end first; snapshot() gives the answer so far", code="incomplete_output"
            )
        if self._response is None:
            self._response = self._collect.close()[0]
        return self._response

    @property
    def request(self) -> Request:
        """The request as it was made."""
        return self._exchange.request

    @property
    def record(self) -> ExchangeRecord:
        """The figures of the exchange: the upstream, the attempts and the times."""
        return self._exchange.record

    @property
    def caught_up(self) -> bool:
        """Whether the caller has taken all events so far and waits for more."""
        return self._exchange.ending.reading and not self._ready

    # --- iteration, plain and asynchronous

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

    def read_plain(self) -> list[Event] | None:
        """``read`` for a plain loop."""
        return self._plain(self.read())

    def _plain(self, step: Coroutine[object, object, T]) -> T:
        if self._run is None:
            step.close()
            raise ConfigError("this client was opened with `async with`: read its streams with `async for`")
        result: T = self._run(step)
        return result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    async def aclose(self) -> None:
        """Ends the stream from an asynchronous program. The upstream's connection is closed at once."""
        self.hang_up()

    def close(self) -> None:
        """Ends the stream from a plain program. The upstream's connection is closed at once."""

        async def hang_up() -> None:
            self.hang_up()

        self._plain(hang_up())

    # --- steps

    async def read(self) -> list[Event] | None:
        """The events of one network read; None when there are no more."""
        if self._over:
            return None
        exchange = self._exchange
        try:
            if not self._began:
                self._began = True
                self._pool.watch(exchange)
                await exchange.start()
                if exchange.turn is not None:
                    self.upstream, self.model, self.dropped = exchange.turn.name, exchange.turn.model, exchange.turn.dropped
            exchange.attach()  # a plain loop runs every step in a separate task
            events = await exchange.read()
        except asyncio.CancelledError:
            self._over = True
            exchange.release()  # the reader reports how it ended: by ``ending``, or by closing the stream
            raise
        except BaseException:
            self.hang_up()
            raise
        if events is None or (events and type(events[-1]) in ENDS):
            self._over = True
            exchange.finish()
            await exchange.drain()
            self.hang_up()
        if events:
            self._collect.feed(events)
        return events

    async def whole(self) -> Response:
        """Reads the stream to its end. Returns the answer."""
        try:
            while await self.read() is not None:
                pass
        finally:
            self.hang_up()
        return self.response()

    def hang_up(self) -> None:
        """Releases the upstream. Call it only in the client's event loop."""
        self._over = True
        self._pool.unwatch(self._exchange)
        self._exchange.close()

    # --- an end that the upstream did not report

    def _seen(self, event: Event) -> Event:
        self._open.feed((event,))
        self._started = True
        return event

    def ending(self, last: StreamEnd | StreamError) -> list[Event]:
        """Ends the stream with the reader's event. Returns the events that close the open blocks."""
        events: list[Event] = [] if self._started else [StreamStart(model=self.request.model)]
        events += self._open.close()
        self._started = self._over = True
        self._ready.clear()
        self._exchange.finish(last)
        return [*events, last]


class PlainStream(Stream):
    """A ``Stream`` of a client that was opened by a plain ``with``: it is read by ``for``."""

    @property
    def plain(self) -> Literal[True]:
        return True
