"""One exchange: from a parsed request to a stream of events, without HTTP. Gateway, client and command line all use it.

    request hooks -> UpstreamPool.ask (routes, retries, fallbacks) -> reader, in-band parser -> stages -> events

The caller reads lists of events, one for each read of the upstream; its ``await`` applies the backpressure. Until the first event
is read, a failure is raised as a ``StreamglotError``. After it, a failure is the last event. In every case ``finish`` tells the
observers once how the exchange ended.

``Ending`` is the one place that ends an exchange early. Others tell it what happened: somebody stopped the request, an error
interrupts it, its client is gone.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, Protocol

from ..errors import FOREIGN_ERRORS, StreamglotError, UpstreamTimeout
from ..events import Event, StreamEnd, StreamError, StreamStart, Usage
from ..json_types import JsonObject, JsonValue
from ..messages import Request, Response, TokenCounts
from ..stages import Collect
from ..stages.stage import ExchangeContext, ExchangeEnded, Question, Reply, StageFactory
from .answer import ENDS, EventSource
from .ask import AskForTurn, Passthrough
from .conversation import ConversationState
from .kept_conversations import KeptAnswer
from .observer import ExchangeResult, Observer
from .stage_runner import StageRunner
from .stats import ExchangeRecord, estimate, estimated_usage

COLLECT_AT_ONCE: Final = 10
"""Events. Reads with more than this are collected at once, because buffering them would save little."""
COLLECT_LATER: Final = 100
"""Events. Small reads are buffered up to this many, because collecting them together costs less than one by one."""
_wants_response: Final = attrgetter("wants_response")


class Upstreams(Protocol):
    """The part of the upstream pool that an exchange needs."""

    @property
    def ask(self) -> AskForTurn: ...

    @property
    def log(self) -> Callable[[Mapping[str, JsonValue]], None]: ...

    def clock(self) -> float: ...
    def services(self, context: ExchangeContext) -> Any: ...  # Any: each question knows what it needs of the services


class Ending:
    """How an exchange ends before its upstream does. The first ``stop`` or ``interrupt`` counts. ``leave`` also counts after them,
    because nobody is there for their end. All may be called from any task of the loop.

    What waits is cancelled: a read of the exchange, and with ``own`` whatever a task waits for that works for this exchange alone,
    such as a slot before it or a write after it. Who catches the cancellation asks ``caught`` whether it came from here.
    """

    __slots__ = ("_owned", "_task", "decided", "error", "gone", "reading", "stopped")

    def __init__(self) -> None:
        self.decided = self.stopped = self.gone = self.reading = self._owned = False
        self.error: StreamglotError | None = None
        self._task: asyncio.Task[object] | None = None

    def attach(self, task: asyncio.Task[object] | None) -> None:
        """Makes this task the reader of the exchange."""
        self._task = task

    def own(self, task: asyncio.Task[object] | None) -> None:
        """Makes this task the reader, and one that works for the exchange alone."""
        self._task, self._owned = task, True

    def stop(self) -> None:
        """Ends the exchange with the reason "cancelled"."""
        if not self.decided:
            self.stopped = True
            self._decide()

    def interrupt(self, error: StreamglotError) -> None:
        """Ends the exchange with this error as its last event."""
        if not self.decided:
            self.error = error
            self._decide()

    def leave(self) -> None:
        """Ends the exchange for a client that is gone: nothing is read or written any more."""
        if not self.gone:
            self.gone = True
            self._decide()

    def caught(self) -> bool:
        """Whether this cancelled the task. If so, takes the cancellation back."""
        if self._task is None or not self.decided:
            return False
        self._task.uncancel()
        return True

    def _decide(self) -> None:
        self.decided = True
        if self._task is not None and (self.reading or self._owned):
            self._task.cancel()


class Exchange:
    """``ask`` stands in front of the pool's own. ``record`` has the figures, ``turn`` is the current model turn. The same task
    starts and reads an exchange. ``ending`` ends it early; its owner gives one that it had before the exchange began."""

    turn: EventSource | None = None
    finished = _over = _complete = False
    _runner: StageRunner | None = None
    _response: Response | None = None
    _error: StreamError | None = None
    _requested: Request | None = None
    _unreported = 0
    _reads_seen = -1
    _silent_since = 0.0

    def __init__(
        self,
        request: Request,
        pool: Upstreams,
        *,
        record: ExchangeRecord,
        ask: AskForTurn | None = None,
        stages: Sequence[StageFactory] = (),
        observers: Sequence[Observer] = (),
        context: ExchangeContext | None = None,
        conversation: ConversationState | None = None,
        passthrough: Passthrough | None = None,
        collects: bool = False,
        ending: Ending | None = None,
    ) -> None:
        self.request, self.record = request, record
        self.context = context or ExchangeContext(record.request_id, record.dialect, record.key, record.model)
        self._pool = pool
        self._ask = ask or pool.ask
        self._factories = stages
        self._observers = list(observers)
        self._conversation = conversation
        self._passthrough = passthrough or Passthrough()
        self.ending = ending or Ending()
        self._next: Callable[[], Awaitable[list[Event] | None]] = _nothing_left
        self._watchers: list[Callable[[list[Event]], None]] = []
        self._collect = Collect() if collects or any(map(_wants_response, observers)) else None
        self._uncollected: list[Event] = []

    # --- request to events

    async def start(self) -> None:
        """Runs the request hooks and waits for the first upstream that answers. Raises a failure."""
        ending = self.ending
        ending.attach(asyncio.current_task())
        self.context.on_fact = self._annotated
        ending.reading = True
        try:
            if ending.error is not None:
                raise ending.error
            if ending.decided:
                return
            if self._factories:
                runner = StageRunner(self._factories, self.context, self._open, self)
                if runner:
                    self._runner = runner
                    self.request = await runner.request(self.request)
            turn = await self._open(self.request)
        except asyncio.CancelledError:
            if ending.gone or not ending.caught():
                raise
            if ending.error is not None:
                raise ending.error from None
            return
        except StreamglotError as error:
            self._over = True
            self._failed(error.as_event())
            raise
        finally:
            ending.reading = False
        if self.record.remember is not None:
            self._observers.append(KeptAnswer(self.record.remember))
            self._collect = self._collect or Collect()
        if self._runner is not None:
            self._runner.begin(turn)
            self._next = self._runner.read
        else:
            self._next = turn.read
        for observer in self._observers.copy():
            if type(observer).started is not Observer.started:
                self._tell(observer, observer.started, self.context)
        self._watchers = [observer.events for observer in self._observers if type(observer).events is not Observer.events]

    async def _open(self, request: Request) -> EventSource:
        """Requests one model turn."""
        if self.turn is not None and self._runner is not None and not self._runner.turn_over and self.record.usage is None:
            self._unreported += estimate(self._requested or request)  # a stage abandoned that turn before its usage was reported
        self._requested = request
        turn = self.turn = await self._ask(request, self.record, self._conversation, self._passthrough)
        self.record.upstream, self.record.dropped = turn.name, [*self.record.unopened, *turn.dropped]
        self.context.upstream, self.context.upstream_model = turn.name, turn.model
        return turn

    async def read(self) -> list[Event] | None:
        """The events of the next read; None when there are no more."""
        if self._over:
            return None
        ending = self.ending
        ending.reading = True
        try:
            events: list[Event] | None = self._last_events() if ending.decided else await self._next()
        except asyncio.CancelledError:
            if ending.gone or not ending.caught():
                raise
            events = self._last_events()
        finally:
            ending.reading = False
        if events is None:
            self._over = True
            return None
        self.seen(events)
        return events

    def seen(self, events: list[Event]) -> None:
        """Counts these events, collects them and passes them to the observers."""
        now = self._pool.clock()
        if not self.record.first_event:
            self.record.first_event = now
        self.record.seen(events, now)
        if self._collect is not None:
            self._uncollected += events
            if len(events) > COLLECT_AT_ONCE or len(self._uncollected) > COLLECT_LATER:
                self._collect_now()
        for watch in self._watchers:
            try:
                watch(events)
            except FOREIGN_ERRORS as error:
                self._watchers = [other for other in self._watchers if other is not watch]
                self._log_fault(error)
        if events and type(events[-1]) in ENDS:
            self._over = True
            self._complete = type(events[-1]) is StreamEnd and not self.ending.stopped

    def _annotated(self, subject: str, fact: JsonObject) -> None:
        for observer in list(self._observers):
            self._tell(observer, partial(observer.annotated, subject), fact)

    def _last_events(self) -> list[Event]:
        """The events that close what is open, after the stages."""
        error, turn = self.ending.error, self.turn
        last: StreamEnd | StreamError = StreamEnd("cancelled") if error is None else error.as_event()
        if turn is None:
            return [StreamStart(), last]
        events = turn.stop() if error is None else turn.broken(error)
        return events if self._runner is None else self._runner.finish(events, ExchangeEnded.by(error), last)

    def __aiter__(self) -> AsyncIterator[list[Event]]:
        return self._lists()

    async def _lists(self) -> AsyncIterator[list[Event]]:
        try:
            await self.start()
            while (events := await self.read()) is not None:
                yield events
            await self.drain()
        finally:
            self.close()

    async def collect(self, *, extensions: bool = False) -> Response:
        """Reads the exchange to its end and returns the whole answer."""
        if self._collect is None or extensions:
            self._collect = Collect(extensions=extensions)
        while await self.read() is not None:
            pass
        return self.response()

    def response(self) -> Response:
        """The answer so far, for an exchange that collects it."""
        if self._response is None:
            assert self._collect is not None
            self._collect_now()
            self._response = self._collect.close()[0]
            self._collect = None
        return self._response

    # --- called from outside

    @property
    def waiting(self) -> bool:
        """Whether the exchange waits for a judge, a tool or a person, and not for the upstream."""
        return self._runner is not None and self._runner.waiting

    def attach(self) -> None:
        """Makes the current task the reader. Call it when another task than the one that started the exchange reads it."""
        self.ending.attach(asyncio.current_task())

    def stop(self) -> None:
        """Ends the exchange with the reason "cancelled"."""
        if not self._over:
            self.ending.stop()

    def interrupt(self, error: StreamglotError) -> None:
        """Ends the exchange with this error as its last event."""
        if not self._over:
            self.ending.interrupt(error)

    def overdue(self, now: float) -> StreamglotError | None:
        """The error of an exchange that passed a time limit of its upstream. The owner calls this a few times a second. Silence
        counts from when the caller was first seen waiting for this read, so that a slow caller does not look like a silent
        upstream."""
        upstream = self.turn.upstream if self.turn is not None else None
        if upstream is None or self._over or self.ending.decided:
            return None
        limits = upstream.timeouts
        if not self.ending.reading or self.waiting or self._reads_seen != self.record.reads:
            self._reads_seen, self._silent_since = self.record.reads, now
        if now - self._silent_since > limits.idle:
            return UpstreamTimeout(f"it was silent for {limits.idle:g} s (timeouts.idle)")
        if now - self.record.began > limits.total:
            return UpstreamTimeout(f"the answer took more than {limits.total:g} s (timeouts.total)")
        return None

    async def resolve(self, question: Question) -> Reply:
        """Resolves a question of a stage."""
        resolve: Callable[[object], Awaitable[Reply]] | None = getattr(question, "resolve", None)
        assert resolve is not None, f"{type(question).__name__} has no resolve(engine)"
        since = self._pool.clock()
        try:
            return await resolve(self._pool.services(self.context))
        finally:
            if question.subject:
                self.record.waited(question.subject, question.label, since, self._pool.clock())

    # --- the end

    def _failed(self, error: StreamError) -> None:
        """Records the error that the client was given in place of an answer or within one."""
        self.record.failed(error)
        self._error = error

    def finish(self, last: StreamEnd | StreamError | None = None) -> None:
        """Tells the observers once how the exchange ended. ``last`` is given where the client got another last event than that of
        the stream: its reader read only a part, or it got an error."""
        if self.finished:
            return
        self.finished = self._over = True
        if isinstance(last, StreamError):
            self._failed(last)
        elif last is not None:
            self.record.seen([last], self._pool.clock())
        response = self.response() if self._collect is not None or self._response is not None else None
        try:
            self._estimate_usage(response)
        except FOREIGN_ERRORS as error:  # a turn that has begun always ends
            self._log_fault(error)
        model = self.turn.model if self.turn is not None else ""
        seconds = self._pool.clock() - self.record.began
        result = ExchangeResult(self.context, self.record, self.request, response, self._error, model, seconds)
        for observer in self._observers:
            try:
                observer.finished(result)
            except FOREIGN_ERRORS as error:
                self._log_fault(error)

    async def drain(self) -> None:
        """Lets the upstream finish its response, so that the connection can be used again. One that was ended early is not finished."""
        if self.turn is not None and not self.ending.decided:
            await self.turn.drain()

    def release(self) -> None:
        """Releases the upstream and cancels what the stages wait for."""
        if self._runner is not None:
            self._runner.close()
        if self.turn is not None:
            self.turn.close()
        # References to our bound methods would keep the exchange alive until the garbage collector runs.
        self._next = _nothing_left
        self.context.on_fact = None

    def close(self) -> None:
        """Releases the upstream. An exchange that was not read to its end finishes as abandoned by its client."""
        if not self._over:
            self.record.ending = "client_gone"
        self.finish()
        self.release()

    def _estimate_usage(self, response: Response | None) -> None:
        """Estimates the usage that the upstream did not report: a client that disconnects early has used it nevertheless."""
        record = self.record
        usage = record.usage
        complete = self._complete and usage is not None
        if self._unreported and usage is not None:
            usage = usage.plus(Usage(self._unreported, 0))
            record.estimated = TokenCounts(usage.input_tokens, usage.output_tokens, usage.cached_tokens)
        if complete and usage is not None and None not in (usage.input_tokens, usage.output_tokens):
            return
        sent = self.turn is not None or (record.ending == "client_gone" and record.attempts > 0)
        if sent and not record.cached and any(observer.wants_usage for observer in self._observers):
            record.estimated = estimated_usage(self.request, response, record.events, usage, whole=complete)
            if usage is None and record.estimated is not None:
                record.estimated.input_tokens = (record.estimated.input_tokens or 0) + self._unreported

    def _collect_now(self) -> None:
        if self._collect is not None and self._uncollected:
            self._collect.feed_all(self._uncollected)
            self._uncollected.clear()

    def _tell(self, observer: Observer, hook: Callable[[Any], None], argument: object) -> None:  # Any: the type of the hook
        try:
            hook(argument)
        except FOREIGN_ERRORS as error:
            if observer in self._observers:
                self._observers.remove(observer)
            self._log_fault(error)

    def _log_fault(self, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error))
        self._pool.log({"event": "observer_failed", "request_id": self.record.request_id, "trace": trace})


async def _nothing_left() -> list[Event] | None:
    """Reads nothing, for an exchange that has not begun or was released."""
    return None
