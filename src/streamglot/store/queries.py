"""Finds, lists and shows turns and sessions. A caller sees its own; ``caller=None`` is the operator, who sees all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, FromClause, and_, false, func, or_, select, text

from ..dialects import DIALECTS, dialect
from ..errors import RequestError, excerpt
from ..events import StreamError
from ..json_types import JsonObject, JsonValue
from ..messages import Message, Request, Response, TokenCounts
from . import schema
from .database import Database
from .query_results import Filter, RawFrame, RawFrames, SessionSummary, TurnDetail, TurnSummary
from .search import Indexing, matches
from .sql_types import DatabaseRow, Query, SqlValue
from .titles import given_titles
from .turn import BROKEN
from .whole_bodies import whole_bodies

MAX_ROWS: Final = 1_000
"""Rows per page."""
ALL_ROWS: Final = 2**31 - 1
"""No limit of rows: a row has the frames of one commit."""
RUNNING: Final = ""
"""The ending of a turn that still runs."""
CURSOR_SEPARATOR: Final = "@"
"""Separates the id and the time in the cursor that ``cursor_of`` returns."""
_messages = msgspec.json.Decoder(Message)
_requests = msgspec.json.Decoder(Request)
_responses = msgspec.json.Decoder(Response)
_usages = msgspec.json.Decoder(TokenCounts)
_errors = msgspec.json.Decoder(StreamError)


class Queries:
    def __init__(self, database: Database) -> None:
        self.indexing = Indexing(database)
        self._database = database

    # --- turns

    async def turns(self, which: Filter | None = None) -> list[TurnSummary]:
        """The turns that match, the newest first."""
        which = which or Filter()
        turns, endings = schema.turns, schema.endings
        question = self._filtered(_turn_columns(), which)
        if which.search:
            await self.indexing.catch_up()
        if which.before:
            begun = select(turns.c.started).where(turns.c.id == which.before)
            if which.caller is not None:
                begun = begun.where(turns.c.caller == which.caller)
            question = question.where(_after(turns.c.started, turns.c.id, *await self._place(which.before, begun, "turn")))
        question = question.order_by(turns.c.started.desc(), turns.c.id.desc()).limit(min(which.limit, MAX_ROWS))
        for name, value in (("upstream", which.upstream), ("ending", which.ending or "")):
            if value:
                question = question.where(endings.c[name] == value)
        if which.ending == RUNNING:
            question = question.where(endings.c.turn_id.is_(None))
        return [TurnSummary(**_summary(row)) for row in await self._database.fetch(question)]

    def _filtered(self, question: Query, which: Filter) -> Query:
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
        """A turn by its id, or by the id of the response that the client received."""
        turns, endings = schema.turns, schema.endings
        question = _turn_columns(turns.c.settings, turns.c.wish, turns.c.node, endings).order_by(turns.c.started.desc()).limit(1)
        if caller is not None:
            question = question.where(turns.c.caller == caller)
        rows = await self._database.fetch(question.where(turns.c.id == turn_id))
        rows = rows or await self._database.fetch(question.where(has_response_id(turn_id)))
        if not rows:
            return None
        row = rows[0]
        try:
            request = await self._request(row.settings, row.node)
            upstream_request = await self._request(row.upstream_settings, row.upstream_node)
            response = await self._response(row)
        except KeyError:  # the turn is pruned meanwhile
            return None
        return TurnDetail(
            **_summary(row),
            request=request,
            client_options=_json(row.wish, {}),
            upstream_request=upstream_request,
            response=response,
            timings=_json(row.timings, {}),
            verdicts=_json(row.verdicts, []),
            more=_json(row.more, {}),
            steps=await self._steps(row.id),
        )

    async def complete(self, turn_id: str, caller: str | None = None, name: str = "") -> JsonObject | None:
        """The complete response object of a turn, as a request without streaming would return it: in the dialect ``name``, else
        in the client's own dialect if it has such an object."""
        turn = await self.turn(turn_id, caller)
        if turn is None or (turn.response is None and turn.ending == RUNNING):
            return None
        if not name:
            able = (known.name for known in DIALECTS.values() if known.has_response)
            own = turn.dialects["client"]
            name = own if own in DIALECTS and DIALECTS[own].has_response else next(able)
        response = turn.client_response or Response(error=turn.error)
        response.id = turn.response_id or response.id or turn.id
        response.model, response.created = response.model or turn.model, response.created or int(turn.started)
        return dialect(name).build_response(response)

    async def raw(self, turn_id: str, caller: str | None = None) -> list[RawFrame]:
        return (await self.raw_after(turn_id, caller, 0)).found

    async def raw_after(self, turn_id: str, caller: str | None, number: int, rows: int = ALL_ROWS) -> RawFrames:
        """The frames from this number on: of a turn that is still recorded, or a part of many."""
        frames, turns = schema.frames, schema.turns
        question = select(frames.c.number, frames.c.body).join(turns, turns.c.id == frames.c.turn_id)
        question = question.where(frames.c.turn_id == turn_id, frames.c.number >= number)
        if caller is not None:
            question = question.where(turns.c.caller == caller)
        read = await self._database.fetch(question.order_by(frames.c.number).limit(rows))
        found: list[RawFrame] = []
        for row in read:
            some = msgspec.msgpack.decode(row.body, type=list[RawFrame])
            found += some
            number = max(number, row.number + len(some))
        return RawFrames(found, number, len(read) == rows)

    async def history(self, turn_id: str, caller: str | None = None) -> list[Message]:
        """All messages up to and including this turn, without the instructions that applied to this turn only."""
        turn = await self.turn(turn_id, caller)
        if turn is None or turn.request is None:
            return []
        answer = turn.response.choices[0].parts if turn.response is not None and turn.response.choices else []
        instructed = turn.client_options.get("instructions") or turn.more.get(
            "instructions"
        )  # older versions stored it in ``more``
        asked = turn.request.messages[1:] if instructed else turn.request.messages
        return [*asked, *([Message("assistant", answer)] if answer else [])]

    async def last_turn(self, session_id: str, caller: str | None = None) -> tuple[str, bool]:
        """The turn that the next request of a session continues, and whether it has ended. A turn that ended without an answer
        does not count, because its client will repeat the request."""
        turns, endings, answers = schema.turns, schema.endings, schema.answers
        has_answer = select(answers.c.turn_id).where(answers.c.turn_id == turns.c.id).exists()
        answered = or_(has_answer, endings.c.ending.not_in(BROKEN))
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
        """The sessions with the most recent turn first. Probes are not counted, and a session of probes only is not listed.
        ``before`` is the last session of the previous page: its ``cursor_of``, or its id, which stands for its current place."""
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
            .limit(min(limit, MAX_ROWS))
        )
        if caller is not None:
            question = question.where(sessions.c.caller == caller)
        if session_id:
            question = question.where(sessions.c.id == session_id)
        if before:
            last = select(updated).where(turns.c.session_id == before, ~turns.c.probe)
            if caller is not None:
                last = last.where(turns.c.caller == caller)
            question = question.having(_after(updated, sessions.c.id, *await self._place(before, last, "session")))
        rows = await self._database.fetch(question)
        titles = await self._titles([row.id for row in rows])
        return [SessionSummary(**row._mapping, title=titles.get(row.id, "")) for row in rows]

    async def session(self, session_id: str, caller: str | None = None) -> SessionSummary | None:
        found = await self.sessions(caller, 1, session_id)
        return found[0] if found else None

    async def last_session(self, caller: str | None = None, directory: str | None = None) -> str | None:
        """The session of the newest turn, optionally of one directory."""
        sessions, turns = schema.sessions, schema.turns
        question = select(sessions.c.id).join(turns, turns.c.session_id == sessions.c.id).where(~turns.c.probe)
        if caller is not None:
            question = question.where(sessions.c.caller == caller)
        if directory is not None:
            question = question.where(sessions.c.directory == directory)
        rows = await self._database.fetch(question.order_by(turns.c.started.desc()).limit(1))
        return rows[0].id if rows else None

    async def _place(self, before: str, when: Query, what: str) -> tuple[float, str]:
        """Where a page begins: from a cursor, or from the row of an id."""
        id, _, time = before.partition(CURSOR_SEPARATOR)
        try:
            at = float(time) if time else (await self._database.fetch(when))[0][0]
        except (ValueError, IndexError):
            at = None
        if at is None or not math.isfinite(at):
            raise RequestError(
                f"before must be the last_id of a page, or the id of a {what} that you may see, not {excerpt(before)}"
            )
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
        given = await self._database.fetch(given_titles(list(sessions)))
        return {row.session_id: row.title for row in rows} | {row.session_id: msgspec.json.decode(row.value) for row in given}

    # --- contents

    async def _request(self, settings: bytes | None, node: bytes | None) -> Request | None:
        """A request with its messages. Raises KeyError if a part of it is pruned meanwhile."""
        if settings is None:
            return None
        contents = schema.contents
        rows = await self._database.fetch(select(contents).where(contents.c.hash == settings))
        bodies = await whole_bodies(self._database, {row.hash: row.body.decode() for row in rows})
        request = _requests.decode(bodies[settings])
        if node is not None:
            rows = await self._database.fetch(_HISTORY, {"node": node})
            bodies = await whole_bodies(self._database, {row.hash: row.body for row in rows})
            request.messages = [_messages.decode(bodies[row.hash]) for row in rows]
        return request

    async def _steps(self, turn_id: str) -> list[JsonObject]:
        steps = schema.steps
        rows = await self._database.fetch(select(steps.c.body).where(steps.c.turn_id == turn_id).order_by(steps.c.number))
        return [msgspec.json.decode(row.body) for row in rows]

    async def _response(self, row: DatabaseRow) -> Response | None:
        if row.response is None:
            return None
        response = _responses.decode(row.response)
        if row.usage is not None:
            response.usage = _usages.decode(row.usage)
        response.error = _errors.decode(row.error) if row.error else None
        answers, messages = schema.answers, schema.messages
        question = select(answers.c.choice, messages).join(messages, messages.c.hash == answers.c.message)
        rows = await self._database.fetch(question.where(answers.c.turn_id == row.id))
        bodies = await whole_bodies(self._database, {answer.hash: answer.body for answer in rows})
        found = {answer.choice: bodies[answer.hash] for answer in rows}
        for choice in response.choices:
            if choice.index in found:
                choice.parts = _messages.decode(found[choice.index]).parts
        return response


_HISTORY: Final = text(
    "WITH RECURSIVE history(hash, parent, message, depth) AS ("
    "SELECT hash, parent, message, depth FROM nodes WHERE hash = :node "
    "UNION ALL SELECT nodes.hash, nodes.parent, nodes.message, nodes.depth FROM nodes JOIN history ON nodes.hash = history.parent"
    ") SELECT messages.hash AS hash, messages.body AS body FROM history JOIN messages ON messages.hash = history.message ORDER BY history.depth"
)


def cursor_of(found: TurnSummary | SessionSummary) -> str:
    """A cursor for the page after this row. It stays valid when the row is deleted or moves."""
    return f"{found.id}{CURSOR_SEPARATOR}{found.updated if isinstance(found, SessionSummary) else found.started!r}"


def _after(time: ColumnElement[float], id: ColumnElement[str], at: float, last: str) -> ColumnElement[bool]:
    return or_(time < at, and_(time == at, id < last))


def has_response_id(response_id: str) -> ColumnElement[bool]:
    """The turns whose response has this id. The id is stored at the start or at the end of a turn."""
    if not response_id:
        return false()
    turns, endings = schema.turns, schema.endings
    started = select(turns.c.id).where(turns.c.response_id == response_id)
    return turns.c.id.in_(started.union_all(select(endings.c.turn_id).where(endings.c.response_id == response_id)))


def _turn_columns(*more: FromClause | ColumnElement[SqlValue]) -> Query:
    turns, endings = schema.turns, schema.endings
    plain = ("id", "session_id", "caller", "request_id", "started", "dialect", "model", "stream", "title", "probe")
    columns = [*(turns.c[name] for name in plain), turns.c.response_id.label("given_id")]
    ended = ("ended", "ending", "error", "response_id", "upstream", "upstream_dialect", "upstream_model", "usage", "cost")
    if all(item is not endings for item in more):
        columns += [endings.c[name] for name in ended]
    return select(*columns, *more).outerjoin_from(turns, endings, endings.c.turn_id == turns.c.id)


def _summary(row: DatabaseRow) -> JsonObject:
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


def _json(body: str | None, default: JsonValue) -> JsonValue:
    return msgspec.json.decode(body) if body else default
