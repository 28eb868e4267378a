"""The store as the operator sees it: all turns of all callers, opened for reading, and the options that select turns."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

import click
from msgspec import Struct, structs

from ..config import DISABLED, LoadedConfig, load
from ..errors import ConfigError, RequestError
from ..store import ENDINGS, Database, Filter, Queries, StoredKeys, StoreUnavailable, TurnSummary, default_url
from ..store.processes import Process
from ..store.queries import RUNNING, Lookup, cursor_of
from . import completion
from .options import CALLER, completed, text, together
from .output.units import parse_time

TURN: Final = "turn_"
SESSION: Final = "ses_"
SHOWN_ID_CHARS: Final = 14
"""Characters of an id that a table shows after its prefix: they hold the time to about a microsecond."""
PAGE: Final = 500
STILL_RUNNING: Final = "running"
"""The name for the ending of a turn that is still running."""
T = TypeVar("T")
FILTER = together(
    click.option(
        "--session",
        type=text,
        default="",
        help="Only turns of this session.",
        shell_complete=completed(completion.sessions),
    ),
    click.option("-m", "--model", type=text, default="", help="Only turns of this model, as the client named it."),
    click.option("--upstream", type=text, default="", help="Only turns that this upstream answered."),
    click.option(
        "--ending",
        type=text,
        default="",
        help="Only turns with this ending: end, length, error, client_gone …",
        shell_complete=completed(completion.endings),
    ),
    CALLER,
    click.option("--since", type=text, default="", help="Only from this time on: a time ago (2d, 12h) or a date."),
    click.option("--until", type=text, default="", help="Only before this time: a time ago or a date."),
)
TURN_ARGUMENT = click.argument("turn", type=text, default="", shell_complete=completed(completion.turns))


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


class Selection(Struct, kw_only=True):
    """The options that select turns: those of ``FILTER``, words to search for, and a limit."""

    session: str = ""
    model: str = ""
    upstream: str = ""
    ending: str = ""
    caller: str | None = None
    since: str = ""
    until: str = ""
    words: str = ""
    limit: int = 0

    async def filter(self, view: StoreView) -> Filter:
        if self.ending and self.ending not in (*ENDINGS, STILL_RUNNING):
            raise ConfigError(f"the ending {self.ending!r} is not known; choose one of: {', '.join((*ENDINGS, STILL_RUNNING))}")
        now = time.time()
        return Filter(
            caller=self.caller,
            session_id=await view.session_id(self.session) if self.session else "",
            model=self.model,
            upstream=self.upstream,
            ending=RUNNING if self.ending == STILL_RUNNING else self.ending or None,
            since=parse_time(self.since, now) if self.since else 0.0,
            until=parse_time(self.until, now) if self.until else 0.0,
            search=self.words,
            limit=self.limit or sys.maxsize,
        )


async def summaries(view: StoreView, which: Filter) -> AsyncIterator[TurnSummary]:
    """Turns, the newest first. It reads the store page by page."""
    left = which.limit
    while left > 0:
        page = await view.queries.turns(structs.replace(which, limit=min(left, PAGE)))
        for turn in page:
            yield turn
        if len(page) < PAGE:
            return
        left -= len(page)
        which = structs.replace(which, before=cursor_of(page[-1]))
