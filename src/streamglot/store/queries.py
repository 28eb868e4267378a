"""What was: turns and sessions, found, listed and shown. A caller sees its own; ``caller=None`` is the operator, who sees all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, Row, Select, and_, false, func, or_, select, text

from ..dialects import DIALECTS, dialect
from ..errors import RequestError, excerpt
from ..events import StreamError
from ..messages import Message, Request, Response, TokenCounts
from . import schema
from .database import Database
from .search import Indexing, matches
from .turn import BROKEN

MOST: Final = 1_000
"""Rows of one answer: who wants more asks again, from the last one on."""
RUNNING: Final = ""
"""The ending of a turn that has none yet."""
AT: Final = "@"
"""Between the id and the time of a ``place_of``."""
_messages = msgspec.json.Decoder(Message)
_requests = msgspec.json.Decoder(Request)
_responses = msgspec.json.Decoder(Response)
_usages = msgspec.json.Decoder(TokenCounts)
_errors = msgspec.json.Decoder(StreamError)


class TurnSummary(Struct, kw_only=True):
    """One line of a list."""

    id: str
    session_id: str
    caller: str
    request_id: str
    response_id: str
    model: str
    upstream: str
    upstream_model: str
    dialects: dict[str, str]
    stream: bool
    ending: str
    error: StreamError | None
    usage: TokenCounts | None
    cost: float | None
    started: float
    duration: float | None
    title: str
    probe: bool = False
    """An agent's request beside the conversation: for a title, a summary, or to try the key."""


class TurnDetail(TurnSummary, kw_only=True):
    """All that is kept of a turn, but for its raw frames. Without contents there is no request and no response."""

    request: Request | None
    wish: dict[str, Any]
    upstream_request: Request | None
    response: Response | None
    timings: dict[str, float]
    verdicts: list[dict[str, Any]]
    more: dict[str, Any]

    @property
    def told(self) -> Response | None:
        """The response as its client was told it: an estimate of what it used is ours alone."""
        if self.response is not None and self.more.get("estimated"):
            return msgspec.structs.replace(self.response, usage=TokenCounts())
        return self.response


class SessionSummary(Struct, kw_only=True):
    id: str
    caller: str
    name: str
    directory: str
    title: str
    turns: int
    started: float
    updated: float
    input_tokens: int
    output_tokens: int
    cost: float | None


class Filter(Struct, kw_only=True):
    """Which turns. ``search`` are words to find; ``before`` is the last turn of the page before this one: its id, or its
    ``place_of``, which holds when it is gone meanwhile."""

    caller: str | None = None
    session_id: str = ""
    model: str = ""
    upstream: str = ""
    ending: str | None = None
    since: float = 0.0
    until: float = 0.0
    search: str = ""
    before: str = ""
    limit: int = 100


class RawFrame(Struct, array_like=True):
    """Bytes of one read or write, ``at`` seconds after the turn began."""

    at: float
    direction: str
    data: bytes


class Queries:
    def __init__(self, database: Database) -> None:
        self.indexing = Indexing(database)
        self._database = database

    # --- turns

    async def turns(self, which: Filter | None = None) -> list[TurnSummary]:
        """The newest first."""
        which = which or Filter()
        turns, endings = schema.turns, schema.endings
        question = self._narrowed(_turn_columns(), which)
        if which.search:
            await self.indexing.catch_up()
        if which.before:
            begun = select(turns.c.started).where(turns.c.id == which.before)
            if which.caller is not None:
                begun = begun.where(turns.c.caller == which.caller)
            question = question.where(_behind(turns.c.started, turns.c.id, *await self._place(which.before, begun, "turn")))
        question = question.order_by(turns.c.started.desc(), turns.c.id.desc()).limit(min(which.limit, MOST))
        for name, value in (("upstream", which.upstream), ("ending", which.ending or "")):
            if value:
                question = question.where(endings.c[name] == value)
        if which.ending == RUNNING:
            question = question.where(endings.c.turn_id.is_(None))
        return [TurnSummary(**_summary(row)) for row in await self._database.fetch(question)]

    def _narrowed(self, question: Select[Any], which: Filter) -> Select[Any]:
        turns = schema.turns
        if which.caller is not None:
            question = question.where(turns.c.caller == which.caller)
        for name, value in (("session_id", which.session_id), ("model", which.model)):
            if value:
                question = question.where(turns.c[name] == value)
        if which.since:
            question = question.where(turns.c.started >= which.since)
        if which.until:
            question = question.where(turns.c.started < which.until)
        if which.search:
            question = question.where(turns.c.id.in_(matches(which.search, self._database.is_sqlite)))
        return question

    async def turn(self, turn_id: str, caller: str | None = None) -> TurnDetail | None:
        """A turn by its own id, or by the id of the response that the client is given."""
        turns, endings = schema.turns, schema.endings
        question = _turn_columns(turns.c.request, turns.c.wish, turns.c.node, endings).order_by(turns.c.started.desc()).limit(1)
        if caller is not None:
            question = question.where(turns.c.caller == caller)
        rows = await self._database.fetch(question.where(turns.c.id == turn_id))
        rows = rows or await self._database.fetch(question.where(known_as(turn_id)))
        if not rows:
            return None
        row = rows[0]
        return TurnDetail(
            **_summary(row),
            request=await self._request(row.request, row.node),
            wish=_json(row.wish, {}),
            upstream_request=await self._request(row.upstream_request, row.upstream_node),
            response=await self._response(row),
            timings=_json(row.timings, {}),
            verdicts=_json(row.verdicts, []),
            more=_json(row.more, {}),
        )

    async def complete(self, turn_id: str, caller: str | None = None, name: str = "") -> dict[str, Any] | None:
        """The complete response object of a turn, as it would have been without streaming: in the dialect of this name, or
        in the client's own where that has such an object."""
        turn = await self.turn(turn_id, caller)
        if turn is None or (turn.response is None and turn.ending == RUNNING):
            return None
        if not name:
            able = (known.name for known in DIALECTS.values() if known.response)
            own = turn.dialects["client"]
            name = own if own in DIALECTS and DIALECTS[own].response else next(able)
        response = turn.told or Response(error=turn.error)
        response.id = turn.response_id or response.id or turn.id
        response.model, response.created = response.model or turn.model, response.created or int(turn.started)
        return dialect(name).build_response(response)

    async def raw(self, turn_id: str, caller: str | None = None) -> list[RawFrame]:
        frames, turns = schema.frames, schema.turns
        question = select(frames.c.body).join(turns, turns.c.id == frames.c.turn_id).where(frames.c.turn_id == turn_id)
        if caller is not None:
            question = question.where(turns.c.caller == caller)
        rows = await self._database.fetch(question.order_by(frames.c.number))
        return [frame for row in rows for frame in msgspec.msgpack.decode(row.body, type=list[RawFrame])]

    async def history(self, turn_id: str, caller: str | None = None) -> list[Message]:
        """All that was said up to and with this turn, but for instructions that held for it alone."""
        turn = await self.turn(turn_id, caller)
        if turn is None or turn.request is None:
            return []
        said = turn.response.choices[0].parts if turn.response is not None and turn.response.choices else []
        instructed = turn.wish.get("instructions") or turn.more.get("instructions")  # where an older version said it
        asked = turn.request.messages[1:] if instructed else turn.request.messages
        return [*asked, *([Message("assistant", said)] if said else [])]

    async def last_turn(self, session_id: str, caller: str | None = None) -> tuple[str, bool]:
        """The turn that a session would be gone on from, and whether it has ended. One that ended without an answer is none: who
        asked will ask again."""
        turns, endings, answers = schema.turns, schema.endings, schema.answers
        heard = select(answers.c.turn_id).where(answers.c.turn_id == turns.c.id).exists()
        answered = or_(heard, endings.c.ending.not_in(BROKEN))
        question = select(turns.c.id, endings.c.ending).outerjoin(endings, endings.c.turn_id == turns.c.id)
        question = question.where(turns.c.session_id == session_id, ~turns.c.probe, or_(endings.c.ending.is_(None), answered))
        if caller is not None:
            question = question.where(turns.c.caller == caller)
        rows = await self._database.fetch(question.order_by(turns.c.started.desc()).limit(1))
        return (rows[0].id, rows[0].ending is not None) if rows else ("", True)

    # --- sessions

    async def sessions(
        self, caller: str | None = None, limit: int = 100, session_id: str = "", before: str = ""
    ) -> list[SessionSummary]:
        """The newest first, by their last turn. Probes are not counted, and a session of nothing else is not shown.
        ``before`` is the last session of the page before this one: its ``place_of``, or its id, which is where it stands now."""
        sessions, turns, endings = schema.sessions, schema.turns, schema.endings
        updated = func.max(turns.c.started)
        question = (
            select(
                sessions,
                func.count(turns.c.id).label("turns"),
                updated.label("updated"),
                func.coalesce(func.sum(endings.c.input_tokens), 0).label("input_tokens"),
                func.coalesce(func.sum(endings.c.output_tokens), 0).label("output_tokens"),
                func.sum(endings.c.cost).label("cost"),
            )
            .join(turns, turns.c.session_id == sessions.c.id)
            .outerjoin(endings, endings.c.turn_id == turns.c.id)
            .where(~turns.c.probe)
            .group_by(*sessions.c)
            .order_by(updated.desc(), sessions.c.id.desc())
            .limit(min(limit, MOST))
        )
        if caller is not None:
            question = question.where(sessions.c.caller == caller)
        if session_id:
            question = question.where(sessions.c.id == session_id)
        if before:
            last = select(updated).where(turns.c.session_id == before, ~turns.c.probe)
            if caller is not None:
                last = last.where(turns.c.caller == caller)
            question = question.having(_behind(updated, sessions.c.id, *await self._place(before, last, "session")))
        rows = await self._database.fetch(question)
        titles = await self._titles([row.id for row in rows])
        return [SessionSummary(**row._mapping, title=titles.get(row.id, "")) for row in rows]

    async def session(self, session_id: str, caller: str | None = None) -> SessionSummary | None:
        found = await self.sessions(caller, 1, session_id)
        return found[0] if found else None

    async def last_session(self, caller: str | None = None, directory: str | None = None) -> str | None:
        """The session to go on with: the one of the last turn, of this directory when one is given."""
        sessions, turns = schema.sessions, schema.turns
        question = select(sessions.c.id).join(turns, turns.c.session_id == sessions.c.id).where(~turns.c.probe)
        if caller is not None:
            question = question.where(sessions.c.caller == caller)
        if directory is not None:
            question = question.where(sessions.c.directory == directory)
        rows = await self._database.fetch(question.order_by(turns.c.started.desc()).limit(1))
        return rows[0].id if rows else None

    async def _place(self, before: str, when: Select[Any], what: str) -> tuple[float, str]:
        """Where a page begins: as its reader was told, or as we find it."""
        id, _, told = before.partition(AT)
        try:
            at = float(told) if told else (await self._database.fetch(when))[0][0]
        except (ValueError, IndexError):
            at = None
        if at is None or not math.isfinite(at):
            raise RequestError(f"before is the last_id of a page, or the id of a {what} that you may see, not {excerpt(before)}")
        return at, id

    async def _titles(self, sessions: Sequence[str]) -> dict[str, str]:
        turns = schema.turns
        first = (
            select(turns.c.session_id, func.min(turns.c.id).label("id"))
            .where(turns.c.session_id.in_(sessions), ~turns.c.probe, turns.c.title != "")
            .group_by(turns.c.session_id)
            .subquery()
        )
        rows = await self._database.fetch(select(turns.c.session_id, turns.c.title).join(first, first.c.id == turns.c.id))
        return {row.session_id: row.title for row in rows}

    # --- contents

    async def _request(self, body: str | None, node: bytes | None) -> Request | None:
        if body is None:
            return None
        request = _requests.decode(body)
        if node is not None:
            rows = await self._database.fetch(_HISTORY, {"node": node})
            request.messages = [_messages.decode(row.body) for row in rows]
        return request

    async def _response(self, row: Row[Any]) -> Response | None:
        if row.response is None:
            return None
        response = _responses.decode(row.response)
        answers, messages = schema.answers, schema.messages
        question = select(answers.c.choice, messages.c.body).join(messages, messages.c.hash == answers.c.message)
        found = {said.choice: said.body for said in await self._database.fetch(question.where(answers.c.turn_id == row.id))}
        for choice in response.choices:
            if choice.index in found:
                choice.parts = _messages.decode(found[choice.index]).parts
        return response


_HISTORY: Final = text(
    "WITH RECURSIVE history(hash, parent, message, depth) AS ("
    "SELECT hash, parent, message, depth FROM nodes WHERE hash = :node "
    "UNION ALL SELECT nodes.hash, nodes.parent, nodes.message, nodes.depth FROM nodes JOIN history ON nodes.hash = history.parent"
    ") SELECT messages.body AS body FROM history JOIN messages ON messages.hash = history.message ORDER BY history.depth"
)


def place_of(found: TurnSummary | SessionSummary) -> str:
    """Where it stands in its list, to go on behind it whatever becomes of it."""
    return f"{found.id}{AT}{found.updated if isinstance(found, SessionSummary) else found.started!r}"


def _behind(time: ColumnElement[float], id: ColumnElement[str], at: float, last: str) -> ColumnElement[bool]:
    return or_(time < at, and_(time == at, id < last))


def known_as(response_id: str) -> ColumnElement[bool]:
    """The turns whose response has this id: said when they started, or when they ended."""
    if not response_id:
        return false()
    turns, endings = schema.turns, schema.endings
    started = select(turns.c.id).where(turns.c.response_id == response_id)
    return turns.c.id.in_(started.union_all(select(endings.c.turn_id).where(endings.c.response_id == response_id)))


def _turn_columns(*more: Any) -> Select[Any]:
    turns, endings = schema.turns, schema.endings
    plain = ("id", "session_id", "caller", "request_id", "started", "dialect", "model", "stream", "title", "probe")
    columns = [*(turns.c[name] for name in plain), turns.c.response_id.label("given_id")]
    ended = ("ended", "ending", "error", "response_id", "upstream", "upstream_dialect", "upstream_model", "usage", "cost")
    if all(item is not endings for item in more):
        columns += [endings.c[name] for name in ended]
    return select(*columns, *more).outerjoin_from(turns, endings, endings.c.turn_id == turns.c.id)


def _summary(row: Row[Any]) -> dict[str, Any]:
    return {
        "id": row.id,
        "session_id": row.session_id,
        "caller": row.caller,
        "request_id": row.request_id,
        "response_id": row.response_id or row.given_id,
        "model": row.model,
        "upstream": row.upstream or "",
        "upstream_model": row.upstream_model or "",
        "dialects": {"client": row.dialect, "upstream": row.upstream_dialect or ""},
        "stream": row.stream,
        "ending": row.ending or RUNNING,
        "error": _errors.decode(row.error) if row.error else None,
        "usage": _usages.decode(row.usage) if row.usage else None,
        "cost": row.cost,
        "started": row.started,
        "duration": None if row.ended is None else max(0.0, row.ended - row.started),
        "title": row.title,
        "probe": row.probe,
    }


def _json(body: str | None, default: Any) -> Any:
    return msgspec.json.decode(body) if body else default
