"""The interface of a stage: what transforms one exchange between the upstream's reader and the client's writer.

A stage is synchronous. A stage that must wait (for a judge, a tool, a person) puts a ``Question`` among its output. The engine
resolves questions concurrently, continues to feed events, and gives each reply to ``answer``. The stage alone decides
the order in which events leave, so it can be tested without an event loop:

    out = stage.feed(events)             # events leave at once; questions are resolved by the engine
    out += stage.answer(question, reply) # a reply, or the exception that resolving it raised
    out += stage.close()                 # after the last event of the stream

An instance serves one model turn of one exchange. When a stage puts a ``NextRequest`` among its output, the engine asks an
upstream again; the stages before it are built again for the new turn, and its own instance is fed with the new events, which
start with their own ``StreamStart``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct, field

from ..errors import StreamglotError
from ..events import Event, as_list
from ..json_types import JsonObject
from ..messages import Request, ToolResultPart


class ExchangeContext(Struct):
    """Facts about an exchange, for stages and observers. ``endpoint`` is the client's dialect, ``key`` the name of the caller's
    key, ``trace`` the W3C trace context, ``tools`` the globs of the gateway's tools that the exchange may use. ``can_ask``: the
    client can ask its user about a call, and brings the decision with its next request. ``activity``: how the client wants to see
    runs of tools ("", "extensions" or "reasoning"). ``annotations`` are facts that a stage reports (verdicts, tool runs), by
    subject: observers store them with the turn. ``state`` is what stages keep over all model turns of the exchange, by subject:
    it is never stored. ``on_fact`` receives each fact as it is reported. ``upstream`` and ``upstream_model`` answer the current
    model turn."""

    request_id: str = ""
    endpoint: str = ""
    key: str = ""
    model: str = ""
    trace: Mapping[str, str] = field(default_factory=dict)
    tools: Sequence[str] = ()
    can_ask: bool = False
    activity: str = ""
    annotations: dict[str, list[JsonObject]] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)  # Any: each stage keeps its own type under its subject
    upstream: str = ""
    upstream_model: str = ""
    on_fact: Callable[[str, JsonObject], None] | None = None

    def annotate(self, subject: str, fact: JsonObject) -> None:
        """Keeps a fact until the end of the exchange, and reports it."""
        self.annotations.setdefault(subject, []).append(fact)
        self.report(subject, fact)

    def report(self, subject: str, fact: JsonObject) -> None:
        """Tells the observers a fact that is too large to be kept until the end."""
        if self.on_fact is not None:
            self.on_fact(subject, fact)


class Question:
    """A question of a stage that the engine answers. A subclass above the pure layers adds an asynchronous method
    ``resolve(self, engine)``.

    ``seconds`` is the deadline; when it passes, the reply is a ``TimeoutError``. The next model turn does not wait for a question in
    the ``background``. ``subject`` (judge, approval, tool) and
    ``label`` are how the timeline of the turn shows the wait; a question without a subject is not shown."""

    seconds: float | None = None
    background: bool = False
    subject: str = ""
    label: str = ""


class ExchangeEnded(StreamglotError):
    """The reply to questions that are open when the exchange is stopped or interrupted. Nobody waits for the answer."""

    @classmethod
    def by(cls, error: StreamglotError | None) -> ExchangeEnded:
        """The reply after this interruption; None is a stop."""
        return cls("the exchange was stopped", code="cancelled") if error is None else cls(error.message, code=error.code)


class NextRequest(Question):
    """Asks an upstream again with ``request``. The reply is a new model turn, fed to the stage as events. If no upstream can be
    asked, the stage is fed with one ``StreamError`` instead."""

    def __init__(self, request: Request) -> None:
        self.request = request


class CheckResult(Question):
    """Has the stages before the asking stage check the result of a tool, before the client, the model or the store sees it. The
    reply is the result as they return it, or the exception that one of them raised."""

    def __init__(self, result: ToolResultPart) -> None:
        self.result = result


Output: TypeAlias = Event | Question
Reply: TypeAlias = Any  # Any: each kind of question has its own type of reply, which its docstring names
T = TypeVar("T")
QuestionGenerator: TypeAlias = Generator[Question, Reply, T]
"""A hook that must wait: it yields questions, is sent their replies, and returns the checked value."""


class Stage:
    """The base of all stages: forwards everything. Override what you need."""

    def request(self, request: Request) -> Request | QuestionGenerator[Request]:
        """Checks or changes the request before an upstream is chosen. A hook that must wait is a generator: it yields
        questions and receives their replies. Raise a ``StreamglotError`` to refuse the request."""
        return request

    def tool_result(self, result: ToolResultPart) -> ToolResultPart | QuestionGenerator[ToolResultPart]:
        """Checks or changes the result of a tool that a later stage ran. A hook that must wait is a generator, as in ``request``.
        Raise a ``StreamglotError`` to end the exchange."""
        return result

    def feed(self, events: list[Event]) -> list[Output]:
        """The events of one read, never empty. The stages that streamglot offers take any iterable of events, or one event."""
        return list(as_list(events))

    def answer(self, question: Question, reply: object) -> list[Output]:  # noqa: ARG002  # for subclasses
        """The reply to a question of this stage: a value, or the exception that resolving it raised."""
        raise AssertionError(f"{type(self).__name__} asked {type(question).__name__} and does not handle its reply")

    def close(self) -> list[Output]:
        """The end of the events; called once, after ``StreamEnd`` or ``StreamError`` was fed."""
        return []


StageFactory: TypeAlias = Callable[[ExchangeContext], Stage | None]
"""Builds the stage for one model turn, or None where the stage has nothing to do in this exchange."""
