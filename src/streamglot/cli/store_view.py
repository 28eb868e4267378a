"""Opens the store for reading as the operator, who sees all turns."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

from ..config import DISABLED, LoadedConfig, load
from ..errors import ConfigError, RequestError
from ..store import Database, Filter, Queries, StoredKeys, StoreUnavailable, default_url
from ..store.lookup import Lookup
from ..store.processes import Process

TURN: Final = "turn_"
SESSION: Final = "ses_"
SHOWN_ID_CHARS: Final = 14
"""Characters of an id that a table shows after its prefix: they hold the time to about a microsecond."""
T = TypeVar("T")


class StoreView:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.queries = Queries(database)
        self.keys = StoredKeys(database)
        self.lookup = Lookup(database)

    async def turn_id(self, text: str) -> str:
        """Finds a turn by its id, the beginning of it, or the id of its response. An empty text finds the last turn."""
        if not text:
            newest = await self.queries.turns(Filter(limit=1))
            if not newest:
                raise RequestError("no turn is stored yet")
            return newest[0].id
        found = await self.lookup.turns_like(_whole(TURN, text))
        if not found:
            turn = await self.queries.turn(text)
            found = [turn.id] if turn is not None else []
        return _only(found, text, "turn", "streamglot logs list")

    async def session_id(self, text: str) -> str:
        found = await self.lookup.sessions_like(_whole(SESSION, text))
        return _only(found, text, "session", "streamglot sessions list")


def short(id: str) -> str:
    return id.partition("_")[2][:SHOWN_ID_CHARS]


def reading(work: Callable[[StoreView], Awaitable[T]], loaded: LoadedConfig | None = None) -> T:
    """Opens the store, runs ``work``, and closes it."""

    async def within() -> T:
        async with opened(loaded or load()) as view:
            return await work(view)

    return asyncio.run(within())


@asynccontextmanager
async def opened(loaded: LoadedConfig) -> AsyncIterator[StoreView]:
    url = loaded.config.store.url
    if url == DISABLED:
        raise ConfigError(f'nothing is stored, because store.url is "{DISABLED}": set it to a database, or remove the setting')
    database = await Database.open(url or default_url(os.environ))
    try:
        with suppress(StoreUnavailable):  # marking the turns of dead processes is optional for a reader
            await Process(database).recover()
        yield StoreView(database)
    finally:
        await database.close()


def _whole(prefix: str, text: str) -> str:
    return text if text.startswith(prefix) else f"{prefix}{text}"


def _only(found: list[str], text: str, what: str, where: str) -> str:
    if not found:
        raise RequestError(f"there is no {what} {text!r}; `{where}` lists them")
    if len(found) > 1 and text not in found:
        raise RequestError(f"several {what}s have ids that begin with {text!r}: give more of the id")
    return found[0]
