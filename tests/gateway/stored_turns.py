"""A gateway with a store, and queries of that store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gateway.conftest import upstreams_at
from gateway.running import Running, running
from gateway.upstream import HostileUpstream, Step, sse, streamed
from streamglot.store import Database, Filter, Queries, TurnDetail
from waiting import until


@contextmanager
def keeping(upstream: HostileUpstream, url: str, *, store: dict[str, Any] | None = None, **more: Any) -> Iterator[Running]:
    """``more`` are further parts of the configuration."""
    upstreams = {**upstreams_at(upstream.url), **more.pop("upstreams", {})}
    with running({"upstreams": upstreams, "store": {"url": url, **(store or {})}, **more}) as gateway:
        yield gateway


def turns(url: str) -> list[TurnDetail]:
    """All turns in a database, the oldest first."""

    async def asked() -> list[TurnDetail]:
        database = await Database.open(url)
        try:
            queries = Queries(database)
            found = [await queries.turn(one.id) for one in await queries.turns(Filter())]
        finally:
            await database.close()
        return [turn for turn in reversed(found) if turn is not None]

    return asyncio.run(asked())


def kept(url: str, what: Callable[[list[TurnDetail]], object] = lambda found: found and found[-1].ending) -> list[TurnDetail]:
    """The turns, once they are as they must be."""
    found: list[TurnDetail] = []

    def there() -> object:
        found[:] = turns(url)
        return what(found)

    until(there, lambda: f"it is not kept: {found}")
    return found


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return sse({"id": "up_1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice], **more})


USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def text_script(*words: str | Step) -> Any:
    """A chat upstream that says these words and ends."""
    steps = [chunk({"content": word}) if isinstance(word, str) else word for word in words]
    return streamed(*steps, chunk({}, "stop", usage=USAGE), sse("[DONE]"))
