"""A model that follows a script: each turn is a list of events, and the requests are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from streamglot.config import Config
from streamglot.engine.answer import EventSource
from streamglot.engine.ask import Passthrough
from streamglot.engine.conversation import ConversationState
from streamglot.engine.exchange import Exchange
from streamglot.engine.observer import Observer
from streamglot.engine.stage_runner import build_stages
from streamglot.engine.stats import ExchangeRecord
from streamglot.errors import StreamglotError
from streamglot.grammar import check
from streamglot.policies import Approvals, Policy
from streamglot.stages.stage import ExchangeContext
from streamglot.tools import ToolRegistry, ToolsConfig
from streamglot.tools.executor import ToolExecutor
from streamglot.tools.settings import ToolLimits
from streamglot.upstream import Upstream
from vocabulary import *


def call(call_id: str, name: str, arguments: str = "{}", *, complete: bool = True) -> list[Event]:
    return [ToolCallStart(call_id, name), ToolCallDelta(arguments), ToolCallEnd(complete=complete)]


def calls(*blocks: list[Event], reason: Any = "tool_calls") -> list[Event]:
    return [StreamStart("id", "m"), *(event for block in blocks for event in block), Usage(10, 5), StreamEnd(reason)]


def text(*pieces: str) -> list[Event]:
    return [StreamStart("id2", "m"), TextStart(), *map(TextDelta, pieces), TextEnd(), Usage(20, 2), StreamEnd("end")]


class Turn:
    def __init__(self, events: list[Event], upstream: str = "scripted", model: str = "m") -> None:
        self.name, self.model = upstream, model
        self.upstream: Upstream | None = None
        self.dropped: list[str] = []
        self.closed = False
        self.before_end: Callable[[], Awaitable[None]] | None = None
        self._events: list[Event] | None = events

    async def read(self) -> list[Event] | None:
        events, self._events = self._events, None
        if events is None or self.before_end is None:
            return events
        if len(events) > 1:
            self._events = events[-1:]
            return events[:-1]
        await self.before_end()
        return events

    def broken(self, error: StreamglotError) -> list[Event]:
        return [error.as_event()]

    def stop(self) -> list[Event]:
        return [StreamEnd("cancelled")]

    async def drain(self) -> None: ...

    def close(self) -> None:
        self.closed = True


class Model:
    """``script``: the turns, or a function from the request to the events of a turn. ``before_ends`` is awaited before the end of
    each turn is read."""

    def __init__(self, script: Sequence[list[Event]] | Callable[[Request], list[Event]]) -> None:
        self._script = script
        self.requests: list[Request] = []
        self.turns: list[Turn] = []
        self.lines: list[Mapping[str, Any]] = []
        self.answers_as = ("scripted", "m")
        self.before_ends: Callable[[], Awaitable[None]] | None = None
        self.approvals = Approvals(lambda: "approval")

    def clock(self) -> float:
        return 0.0

    def services(self, context: Any) -> Any:
        return self

    def log(self, line: Mapping[str, Any]) -> None:
        self.lines.append(line)

    async def ask(
        self, request: Request, _record: ExchangeRecord, _conversation: ConversationState | None, _passthrough: Passthrough
    ) -> EventSource:
        self.requests.append(request)
        events = self._script(request) if callable(self._script) else self._script[len(self.requests) - 1]
        self.turns.append(Turn(list(events), *self.answers_as))
        self.turns[-1].before_end = self.before_ends
        return self.turns[-1]

    def results(self, number: int = -1) -> list[ToolResultPart]:
        """The results of tools in one of the requests."""
        return [part for message in self.requests[number].messages for part in message.parts if isinstance(part, ToolResultPart)]


def executor_of(*tools: object, limits: ToolLimits | None = None, config: ToolsConfig | None = None) -> ToolExecutor:
    return ToolExecutor(ToolRegistry(config, tools), limits)


def exchange_of(
    model: Model,
    executor: ToolExecutor,
    *,
    patterns: Sequence[str] = ("*",),
    tools: Sequence[ToolSpec] = (),
    messages: Sequence[Message] = (),
    observers: Sequence[Observer] = (),
    context: ExchangeContext | None = None,
    policies: Sequence[Policy] = (),
    **fields: Any,
) -> Exchange:
    history = list(messages) or [Message("user", [TextPart("hello")])]
    context = context or ExchangeContext("r1", "openai_chat", "", "m", tools=patterns)
    return Exchange(
        Request(model="m", messages=history, tools=list(tools), **fields),
        model,
        record=ExchangeRecord("r1", "openai_chat", 0.0, "m"),
        stages=build_stages(Config(), policies, tools=executor),
        observers=observers,
        context=context,
    )


async def events_of(exchange: Exchange) -> list[Event]:
    """All events, which must follow the grammar."""
    events = [event async for read in exchange for event in read]
    check(events)
    return events


def hanging_tool() -> tuple[Callable[[], Awaitable[str]], asyncio.Event, asyncio.Event]:
    """A tool named ``hangs`` that never returns, and the events of its start and of its cancellation."""
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def hangs() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    return hangs, began, cancelled


async def wait_for(event: asyncio.Event) -> None:
    async with asyncio.timeout(30):
        await event.wait()
