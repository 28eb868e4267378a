"""Builds turns as a gateway passes them to the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from streamglot.messages import Part
from streamglot.store import Finished, Session, SessionHints, Started, Store, Turn
from vocabulary import *

P = ParamSpec("P")
T = TypeVar("T")


def asynchronous(test: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    """Runs an asynchronous test in its own event loop."""

    @wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> T:
        async def within() -> T:
            async with asyncio.timeout(300):
                return await test(*args, **named)

        return asyncio.run(within())

    return run


def user(text: str) -> Message:
    return Message("user", [TextPart(text)])


def assistant(*parts: Part | str) -> Message:
    return Message("assistant", [TextPart(part) if isinstance(part, str) else part for part in parts])


def result(call_id: str, text: str) -> Message:
    return Message("tool", [ToolResultPart(call_id, [TextPart(text)])])


def call(call_id: str, name: str = "read", arguments: str = '{"path": "a"}', echo: Echo | None = None) -> ToolCallPart:
    return ToolCallPart(call_id, name, arguments, echo=echo)


def thought(text: str, signature: str = "", provider: str = "one") -> ReasoningPart:
    return ReasoningPart(text, echo=Echo(provider, {"signature": signature}) if signature else None)


def ask(*messages: Message, model: str = "small", **more: Any) -> Request:
    return Request(model=model, messages=list(messages), stream=True, **more)


def answer(*parts: Part | str, ident: str = "", error: StreamError | None = None) -> Response:
    answered = assistant(*parts).parts
    called = any(isinstance(part, ToolCallPart) for part in answered)
    choice = ResponseChoice(0, answered, None if error else "tool_calls" if called else "end")
    return Response(ident, "small", 1_700_000_000, [choice], TokenCounts(25, 15), error)


async def begin(store: Store, request: Request, caller: str = "", name: str = "", **more: Any) -> Turn:
    session = await store.find_session(SessionHints(caller=caller, name=name), request)
    return start(store, session, request, **more)


def start(store: Store, session: Session, request: Request, **more: Any) -> Turn:
    more = {"request_id": "req", "dialect": "openai_chat", "model": request.model, **more}
    return store.start(session, Started(caller=session.caller, request=request, **more))


async def take(store: Store, request: Request, response: Response, caller: str = "", name: str = "", **more: Any) -> Turn:
    """Stores a complete turn."""
    turn = await begin(store, request, caller, name)
    ending = more.pop("ending", "error" if response.error else response.choices[0].stop_reason)
    turn.finish(
        Finished(ending=ending, response=response, upstream="one", upstream_dialect="anthropic", upstream_model="m", **more)
    )
    return turn
