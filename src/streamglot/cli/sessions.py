"""``streamglot sessions list`` and ``show``."""

from __future__ import annotations

import os
import sys

import msgspec

from ..store import Filter, SessionSummary, TurnDetail, TurnSummary
from . import table
from .amounts import shown_time
from .cost import money
from .library import Library, reading, short
from .logs import show_turns, summaries
from .machine import seen
from .transcript import Transcript


def listed(caller: str | None, here: bool, limit: int, as_json: bool) -> int:
    async def work(library: Library) -> list[SessionSummary]:
        if not here:
            return await library.queries.sessions(caller, limit)
        found = [await library.queries.session(id, caller) for id in await library.lookup.sessions_in(os.getcwd(), limit)]
        return [session for session in found if session is not None]

    sessions = reading(work)
    if as_json:
        for session in sessions:
            sys.stdout.buffer.write(seen(msgspec.json.encode(session) + b"\n"))
    elif not sessions:
        print("no session was kept yet", file=sys.stderr)
    else:
        names = ("last", "session", "turns", "tokens", "directory", "title")
        table.show(names, [_row(session) for session in sessions], ("turns", "tokens"))
    return 0


def show(text: str, as_json: bool) -> int:
    async def work(library: Library) -> tuple[SessionSummary | None, list[TurnSummary], TurnDetail | None]:
        session_id = await library.session_id(text)
        turns = [turn async for turn in summaries(library, Filter(session_id=session_id, limit=sys.maxsize))]
        last = await library.lookup.last_answered(session_id=session_id)
        detail = await library.queries.turn(last.turn_id) if last is not None else None
        return await library.queries.session(session_id), turns[::-1], detail

    session, turns, last = reading(work)
    if as_json:
        facts = msgspec.to_builtins(session) if session is not None else {}
        sys.stdout.buffer.write(seen(msgspec.json.encode({**facts, "turns": turns}) + b"\n"))
        return 0
    if session is not None:
        directory = f" in {session.directory}" if session.directory else ""
        print(table.one_line(f"{session.id}{directory}, since {shown_time(session.started)}; cost: {money(session.cost)}"))
    show_turns(turns)
    if last is not None:
        Transcript(last).print_said()
    return 0


def _row(session: SessionSummary) -> list[str]:
    return [
        shown_time(session.updated, "%m-%d %H:%M:%S"),
        short(session.id),
        str(session.turns),
        f"{session.input_tokens}/{session.output_tokens}",
        session.directory,
        session.title,
    ]
