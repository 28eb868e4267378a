"""``streamglot sessions list`` and ``show``."""

from __future__ import annotations

import sys
from collections import Counter

import msgspec
from msgspec import structs

from ...messages import Message
from ...store import Filter, SessionSummary, TurnDetail, TurnSummary
from ...store.conversation import normal
from .. import own_turns
from ..output import table
from ..output.cost import money
from ..output.json_output import seen
from ..output.transcript import Transcript
from ..output.units import shown_time
from ..store_view import StoreView, reading, short
from .logs import show_turns, summaries


def listed(caller: str | None, here: bool, limit: int, as_json: bool) -> int:
    async def work(view: StoreView) -> list[SessionSummary]:
        if not here:
            return await view.queries.sessions(caller, limit)
        found = [await view.queries.session(id, caller) for id in await view.lookup.sessions_in(own_turns.here(), limit)]
        return [session for session in found if session is not None]

    sessions = reading(work)
    if as_json:
        for session in sessions:
            sys.stdout.buffer.write(seen(msgspec.json.encode(session) + b"\n"))
    elif not sessions:
        print("no session is stored yet", file=sys.stderr)
    else:
        names = ("last", "session", "turns", "tokens", "directory", "title")
        table.show(names, [_row(session) for session in sessions], ("turns", "tokens"))
    return 0


def show(text: str, as_json: bool) -> int:
    async def work(view: StoreView) -> tuple[SessionSummary | None, list[TurnSummary], list[TurnDetail]]:
        session_id = await view.session_id(text)
        turns = [turn async for turn in summaries(view, Filter(session_id=session_id, limit=sys.maxsize))][::-1]
        new_messages = NewMessages()
        details = (
            [] if as_json else [new_messages.only_new(detail) for turn in turns if (detail := await view.queries.turn(turn.id))]
        )
        return await view.queries.session(session_id), turns, details

    session, turns, details = reading(work)
    if as_json:
        facts = msgspec.to_builtins(session) if session is not None else {}
        sys.stdout.buffer.write(seen(msgspec.json.encode({**facts, "turns": turns}) + b"\n"))
        return 0
    if session is not None:
        directory = f" in {session.directory}" if session.directory else ""
        print(table.one_line(f"{session.id}{directory}, since {shown_time(session.started)}; cost: {money(session.cost)}"))
    show_turns(turns)
    for turn in details:
        Transcript(turn).print_messages()
    return 0


class NewMessages:
    """The messages of a session that were shown already. A request repeats the conversation before it, or begins another one.
    Clients edit what they repeat, so messages are compared by their words."""

    def __init__(self) -> None:
        self._times: Counter[tuple[str, bytes]] = Counter()

    def only_new(self, turn: TurnDetail) -> TurnDetail:
        """Returns the turn with only the new messages of its request, and with all messages after the last answer."""
        if turn.request is None:
            return turn
        asked = turn.request.messages
        answered = max((place for place, message in enumerate(asked) if message.role == "assistant"), default=-1)
        times: Counter[tuple[str, bytes]] = Counter()
        new: list[Message] = []
        for place, message in enumerate(asked):
            identity = _identity(message)
            times[identity] += 1
            if times[identity] > self._times[identity] or (place > answered and message.role in ("user", "tool")):
                new.append(message)
        for choice in turn.response.choices if turn.response is not None else ():
            times[_identity(Message("assistant", choice.parts))] += 1
        self._times |= times
        return structs.replace(turn, request=structs.replace(turn.request, messages=new))


def _identity(message: Message) -> tuple[str, bytes]:
    return message.role, normal(message.parts)


def _row(session: SessionSummary) -> list[str]:
    return [
        shown_time(session.updated, "%m-%d %H:%M:%S"),
        short(session.id),
        str(session.turns),
        f"{session.input_tokens}/{session.output_tokens}",
        session.directory,
        session.title,
    ]
