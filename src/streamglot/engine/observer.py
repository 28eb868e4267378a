"""Observers watch an exchange: the turn recorder, metrics, tracing, logs. An observer cannot delay or change a stream."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ..events import Event, StreamError
from ..json_types import JsonObject
from ..messages import Request, Response
from ..stages.stage import ExchangeContext
from .record import ExchangeRecord


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
