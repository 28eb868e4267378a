"""What watches an exchange and cannot delay or change a stream: observers (the turn recorder, metrics, logs), and the tracer.

A tracer makes a trace of each attempt at an upstream and of each tool call. Where a pool has one, every attempt carries the
trace context that it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from ..events import Event, StreamError
from ..json_types import JsonObject
from ..messages import Request, Response
from ..stages.stage import ExchangeContext
from ..upstream.routing.routes import Candidate
from .stats import ExchangeRecord

if TYPE_CHECKING:
    from ..tools.questions import RunTool


class ExchangeResult(Struct):
    """How an exchange ended.

    ``request`` is the client's request after the request hooks of the stages. ``response`` is the collected answer, whole or
    partial; it is None unless an observer sets ``wants_response``. ``error`` is the error that the client was given, in the
    stream or as an HTTP status. ``stored`` is called once the usage is in the store.
    """

    context: ExchangeContext
    record: ExchangeRecord
    request: Request
    response: Response | None = None
    error: StreamError | None = None
    upstream_model: str = ""
    seconds: float = 0.0
    stored: Callable[[], None] | None = None


class Observer:
    """The base of all observers: override what you need.

    Every method must return at once. If a method raises, the exception is logged and the observer gets no further calls for this
    exchange.
    """

    wants_response = False
    """Whether the engine collects the answer for ``finished``."""

    wants_usage = False
    """Whether the engine estimates the usage that an upstream did not report."""

    def started(self, context: ExchangeContext) -> None:
        """Called when an upstream has begun to answer."""

    def events(self, events: list[Event]) -> None:
        """Called with the events of one read, as they leave the last stage."""

    def annotated(self, subject: str, fact: JsonObject) -> None:
        """Called when a stage reports a fact, such as a tool run. This may happen before ``started``."""

    def finished(self, result: ExchangeResult) -> None:
        """Called when the exchange is over, in the step in which the client gets its last byte."""


class AttemptTrace(Protocol):
    """One attempt. ``headers`` are the trace context that the request to the upstream carries."""

    headers: Mapping[str, str]

    def seen(self, events: list[Event]) -> None:
        """The events of one read of the upstream. An end among them ends the attempt."""

    def failed(self, error: BaseException) -> None:
        """The attempt ended before its first event."""

    def close(self) -> None:
        """The engine reads no more. An attempt that has not ended counts as abandoned."""


class EngineTracer(Protocol):
    """Traces what the engine does, as a part of the request that the current task serves. No method raises."""

    def attempt(self, candidate: Candidate, request: Request, *, session: str = "") -> AttemptTrace:
        """An upstream is about to be asked. ``session`` is the id of the stored conversation, if there is one."""

    def tool(self, question: RunTool) -> AbstractContextManager[Mapping[str, str]]:
        """Runs one tool call inside. Yields the trace context for the server that is asked."""
