"""Runs policies without an engine: for tests, trials, and users of the library who have events and no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from ..errors import Unsupported
from ..events import Event, StreamEnd, StreamError, as_list
from ..messages import Request
from ..stages.stage import ExchangeContext, NextRequest, Output, Question, Reply
from .policy import Policy
from .running.stage import PolicyStage, policy_stage

Resolve: TypeAlias = Callable[[Question], Reply]


def no_engine(question: Question) -> Reply:
    """Replies to every question that there is no engine to answer it, so that the policy's ``on_error`` applies."""
    what = "ask an upstream again" if isinstance(question, NextRequest) else "wait for a verdict"
    return Unsupported(f"there is no engine here that could {what}: use the Client or the gateway")


class PolicyBox:
    """Policies as a box: events in, the events after the policies out. ``over``: the stream has ended, and nothing follows."""

    def __init__(
        self,
        policies: Iterable[Policy],
        *,
        request: Request | None = None,
        context: ExchangeContext | None = None,
        resolve: Resolve = no_engine,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        context = context or ExchangeContext(model=request.model if request is not None else "")
        stage = policy_stage(policies, clock=clock)(context)
        self._stage = stage if isinstance(stage, PolicyStage) else None
        self._resolve = resolve
        self.over = False
        if request is not None and self._stage is not None:
            self._stage.check_request(request, resolve)

    def feed(self, events: Iterable[Event] | Event) -> list[Event]:
        if self.over:
            return []
        given = as_list(events)
        if self._stage is not None:
            given = settled(self._stage, self._stage.feed(given), self._resolve) if given else []
        self.over = bool(given) and isinstance(given[-1], (StreamEnd, StreamError))
        return given

    def close(self) -> list[Event]:
        return []


def run_policies(
    reads: Iterable[list[Event]],
    policies: Iterable[Policy],
    *,
    request: Request | None = None,
    context: ExchangeContext | None = None,
    resolve: Resolve = no_engine,
    clock: Callable[[], float] = lambda: 0.0,
) -> Iterator[list[Event]]:
    """The events after the policies, read by read. ``resolve`` answers questions at once. Nothing follows the end of the
    stream."""
    box = PolicyBox(policies, request=request, context=context, resolve=resolve, clock=clock)
    for events in reads:
        released = box.feed(events)
        if released:
            yield released
        if box.over:
            return


def apply_policies(
    events: Iterable[Event],
    policies: Iterable[Policy],
    *,
    request: Request | None = None,
    context: ExchangeContext | None = None,
    resolve: Resolve = no_engine,
) -> list[Event]:
    """The events of a stream after policies, without an engine.

    Takes all ``events`` of a stream, and the ``policies``. ``request`` is the request that they answer: policies on requests judge it
    first. Verdicts are in ``context.annotations["policies"]`` of a ``context`` that was given. ``resolve`` answers the questions of policies
    that must wait.

    Gives a list of events. Raises ``PolicyRefused`` if a policy refuses the request, ``ConfigError`` for policies that are wrong, and
    ``TypeError`` for what is not an event. ``read(…, policies=…)`` does the same live.
    """
    reads = run_policies([list(events)], policies, request=request, context=context, resolve=resolve)
    return [event for read in reads for event in read]


def apply_to_request(
    request: Request, policies: Iterable[Policy], *, context: ExchangeContext | None = None, resolve: Resolve = no_engine
) -> Request:
    """The request after these policies. Raises PolicyRefused if one of them refuses it."""
    stage = policy_stage(policies, clock=lambda: 0.0)(context or ExchangeContext(model=request.model))
    return stage.check_request(request, resolve) if isinstance(stage, PolicyStage) else request


def settled(stage: PolicyStage, outputs: list[Output], resolve: Resolve) -> list[Event]:
    """The events among these outputs, with all questions answered."""
    waiting = list(outputs)
    released: list[Event] = []
    while waiting:
        output = waiting.pop(0)
        if not isinstance(output, Question):
            released.append(output)
            continue
        try:
            reply = resolve(output)
        except Exception as error:
            reply = error
        waiting = stage.answer(output, reply) + waiting
    return released
