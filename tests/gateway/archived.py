"""Turns in the database of a gateway, written as another worker would."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from gateway.running import Running
from store.turns import answer
from streamglot.messages import Request, Response
from streamglot.store import Finished, SessionHints, Started, Store, StoreSettings, Turn
from waiting import WAIT_SECONDS

T = TypeVar("T")


def database(folder: Path) -> str:
    return f"sqlite:///{folder}/kept.db"


def with_store(url: str, work: Callable[[Store], Awaitable[T]], **settings: Any) -> T:
    """Does this with a store of its own, and writes everything."""

    async def within() -> T:
        store = await Store.open(StoreSettings(url=url, **settings))
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(within())


def inside(gateway: Running, work: Coroutine[Any, Any, T]) -> T:
    """Does this in the loop of the gateway, with its own store."""
    return asyncio.run_coroutine_threadsafe(work, gateway.server.loop).result(WAIT_SECONDS)


def store_of(gateway: Running) -> Store:
    store = gateway.gateway.recording.store
    assert store is not None
    return store


async def keep(
    store: Store, request: Request, response: Response | None = None, *, caller: str = "", name: str = "", **more: Any
) -> Turn:
    """A whole turn. Fields that ``Started`` does not have belong to its end. Without an ``ending``, the ending is that of the
    response."""
    session = await store.find_session(SessionHints(caller=caller, name=name), request)
    start = {field: more.pop(field) for field in Started.__struct_fields__ if field in more}
    turn = store.start(session, Started(**{"caller": caller, "model": request.model, "request": request, **start}))
    for direction, at, data in more.pop("frames", ()):
        turn.frame(direction, at, data)
    answered = response or answer("yes")
    ending = more.pop("ending", "error" if answered.error else answered.choices[0].stop_reason)
    turn.finish(Finished(ending=ending, response=answered, upstream="one", upstream_dialect="anthropic", **more))
    return turn
