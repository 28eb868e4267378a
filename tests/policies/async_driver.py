"""A small engine for tests: resolves the questions of a stage in an event loop, concurrently, and feeds the replies back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from streamglot.events import Event
from streamglot.messages import Request, Response, ResponseChoice, TextPart
from streamglot.policies import Approvals, Policy, policy_stage
from streamglot.stages.stage import ExchangeContext, NextRequest, Output, Question, Stage
from waiting import soon


class FakeEngine:
    """The services that policies may use. ``replies`` are the answers of the judging model, one for each request."""

    store = None

    def __init__(self, *replies: str | Exception | Response) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []
        self.time = 0.0
        numbers = count(1)
        self.approvals = Approvals(lambda: f"approval_{next(numbers)}")

    def clock(self) -> float:
        return self.time

    async def complete(self, request: Request) -> Response:
        self.requests.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, Response):
            return reply
        return Response(choices=[ResponseChoice(0, [TextPart(reply)])])


class Driver:
    """``out`` has the events that were released, in order. ``turns`` are the answers to further requests; ``asked`` are these
    requests."""

    def __init__(
        self,
        *policies: Policy,
        engine: Any = None,
        context: ExchangeContext | None = None,
        turns: list[list[Event]] | None = None,
    ) -> None:
        self.context = context or ExchangeContext(request_id="r", model="m", key="k", endpoint="e")
        stage = policy_stage(policies, clock=lambda: 0.0)(self.context)
        assert stage is not None
        self.stage: Stage = stage
        self.engine = engine or FakeEngine()
        self.out: list[Event] = []
        self.asked: list[Request] = []
        self.turns = turns or []
        self.tasks: set[asyncio.Task[None]] = set()

    def feed(self, events: list[Event]) -> None:
        self._take(self.stage.feed(events))

    def _take(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, NextRequest):
                self.asked.append(output.request)
                if self.turns:
                    self.feed(self.turns.pop(0))
                else:
                    self._take(self.stage.answer(output, ConnectionError("no upstream")))
            elif isinstance(output, Question):
                task = asyncio.create_task(self._answer(output))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
            else:
                self.out.append(output)

    async def _answer(self, question: Any) -> None:
        self._take(self.stage.answer(question, await self._resolved(question)))

    async def _resolved(self, question: Any) -> Any:
        try:
            return await asyncio.wait_for(question.resolve(self.engine), question.seconds)
        except Exception as error:
            return error

    async def request(self, request: Request) -> Request:
        steps = self.stage.request(request)
        if isinstance(steps, Request):
            return steps
        try:
            question = next(steps)
            while True:
                question = steps.send(await self._resolved(question))
        except StopIteration as finished:
            changed: Request = finished.value
            return changed

    async def settled(self) -> list[Event]:
        """Waits until no question is open."""
        while self.tasks:
            await asyncio.wait(set(self.tasks))
        return self.out

    async def until(self, condition: Callable[[], bool]) -> None:
        await soon(condition)
