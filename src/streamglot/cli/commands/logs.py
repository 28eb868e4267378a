"""``streamglot logs list``, ``search`` and ``show``."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from msgspec import Struct, structs

from ...errors import ConfigError, RequestError
from ...store import ENDINGS, Filter, TurnSummary, summary_line
from ...store.export import detail_line
from ...store.queries import RUNNING, cursor_of
from ..output import table
from ..output.json_output import seen
from ..output.transcript import Transcript
from ..output.units import parse_time, shown_time
from ..store_view import StoreView, reading, short

PAGE: Final = 500
STILL_RUNNING: Final = "running"
"""The name for the ending of a turn that is still running."""


class Chosen(Struct, kw_only=True):
    """The options that select turns."""

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


def listed(chosen: Chosen, as_json: bool) -> int:
    async def work(view: StoreView) -> list[TurnSummary]:
        return [turn async for turn in summaries(view, await chosen.filter(view))]

    turns = reading(work)
    if as_json:
        for turn in turns:
            sys.stdout.buffer.write(seen(summary_line(turn)))
    elif not turns:
        plain = structs.replace(chosen, limit=0) == Chosen()
        print("no turn is stored yet" if plain else "no stored turn matches", file=sys.stderr)
    else:
        show_turns(turns)
    return 0


def show_turns(turns: list[TurnSummary]) -> None:
    names = ("started", "turn", "model", "ending", "tokens", "seconds", "title")
    table.show(names, [_row(turn) for turn in turns], ("tokens", "seconds"))


def _row(turn: TurnSummary) -> list[str]:
    usage = turn.usage
    counts = (usage.input_tokens, usage.output_tokens) if usage is not None else (None, None)
    return [
        shown_time(turn.started, "%m-%d %H:%M:%S"),
        short(turn.id),
        turn.model,
        turn.ending or STILL_RUNNING,
        "" if counts == (None, None) else "/".join("?" if count is None else str(count) for count in counts),
        "" if turn.duration is None else f"{turn.duration:.1f}",
        turn.title,
    ]


async def summaries(view: StoreView, which: Filter) -> AsyncIterator[TurnSummary]:
    """Yields turns, the newest first. It reads the store page by page."""
    left = which.limit
    while left > 0:
        page = await view.queries.turns(structs.replace(which, limit=min(left, PAGE)))
        for turn in page:
            yield turn
        if len(page) < PAGE:
            return
        left -= len(page)
        which = structs.replace(which, before=cursor_of(page[-1]))


def show(text: str, as_json: bool, response: bool, dialect: str) -> int:
    async def work(view: StoreView) -> bytes | Transcript:
        turn_id = await view.turn_id(text)
        if response:
            whole = await view.queries.complete(turn_id, name=dialect)
            if whole is None:
                raise RequestError(f"the turn {turn_id} has no answer yet: it is still running")
            return msgspec.json.encode(whole) + b"\n"
        turn = await view.queries.turn(turn_id)
        assert turn is not None
        return detail_line(turn) if as_json else Transcript(turn)

    found = reading(work)
    if isinstance(found, bytes):
        sys.stdout.buffer.write(seen(found))
    else:
        found.print()
    return 0
