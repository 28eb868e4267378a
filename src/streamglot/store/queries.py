"""Finds, lists and shows turns and sessions. A caller sees its own; ``caller=None`` is the operator, who sees all."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, FromClause, false, func, or_, select, text, union_all

from ..dialects import DIALECTS, dialect
from ..errors import RequestError, excerpt
from ..events import StreamError
from ..json_types import JsonObject, JsonValue
from ..messages import Message, Request, Response, TokenCounts
from . import schema
from .database import Database
from .query_results import Filter, RawFrame, RawFrames, SessionSummary, TurnDetail, TurnSummary
from .search import Indexing, Search
from .sql_types import DatabaseRow, Query, SqlValue, at_most
from .titles import given_titles
from .turn import BROKEN, TURN, first_id
from .whole_bodies import whole_bodies

MAX_ROWS: Final = 1_000
"""Rows per page."""
ALL_ROWS: Final = 2**31 - 1
"""No limit of rows: a row has the frames of one commit."""
LOOKED_AT: Final = 20
"""Rows that are looked at together, of those that only one is wanted of."""
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
        self.search = Search(database, self.indexing)
        self._database = database

    # --- turns

    async def turns(self, which: Filter | None = None) -> list[TurnSummary]:
        """The turns that match, the newest first. With search words, the order is that in which their answers were stored."""
        which = which or Filter()
        limit = min(which.limit, MAX_ROWS)
        if which.before:
            await self._place(which.before, self._begun(which), "turn")
        if which.session_id and which.caller is not None and not await self._owned(which.session_id, which.caller):
            return []
        if which.search:
            rest = msgspec.structs.replace(which, search="", before="", limit=1)
            if (which.model or which.upstream or which.ending) and not await self.turns(rest):
                return []  # otherwise all texts with these words would be read for nothing
            return await self._first_of(self.search.pages(which, _cursor(which.before)[0]), which)
        if which.ending == RUNNING:
            return await self._first_of(self._running(_cursor(which.before)[0]), which)
        chosen = _chosen(which, limit).subquery("chosen")
        question = _turn_columns().join(chosen, chosen.c.id == schema.turns.c.id).order_by(chosen.c.id.desc())
        return [TurnSummary(**_summary(row)) for row in await self._database.fetch(question)]

    async def _first_of(self, pages: AsyncIterator[Sequence[str]], which: Filter) -> list[TurnSummary]:
        """The turns with these ids that match the rest of the filter, in the order of the ids. It asks for the next page only if the
        others leave too few."""
        found: list[TurnSummary] = []
        async for ids in pages:
            rows = await self._database.fetch(_turn_columns().where(schema.turns.c.id.in_(ids), *_conditions(which)))
            chosen = {row.id: row for row in rows}
            found += [TurnSummary(**_summary(chosen[id])) for id in ids if id in chosen]
            if len(found) >= which.limit:
                break
        return found[: min(which.limit, MAX_ROWS)]

    async def _running(self, before: str) -> AsyncIterator[Sequence[str]]:
        """The turns without an ending, the newest first."""
        id = schema.running.c.turn_id
        question = at_most(select(id).order_by(id.desc()), MAX_ROWS)
        rows = await self._database.fetch(question.where(id < before) if before else question)
        while rows:
            yield [row.turn_id for row in rows]
            rows = await self._database.fetch(question.where(id < rows[-1].turn_id)) if len(rows) == MAX_ROWS else ()

    def _begun(self, which: Filter) -> Query:
        turns = schema.turns
        question = select(turns.c.started).where(turns.c.id == which.before)
        return question if which.caller is None else question.where(turns.c.caller == which.caller)

    async def _owned(self, session_id: str, caller: str) -> bool:
        sessions = schema.sessions
        question = select(sessions.c.id).where(sessions.c.id == session_id, sessions.c.caller == caller)
        return bool(await self._database.fetch(question))

    async def turn(self, turn_id: str, caller: str | None = None) -> TurnDetail | None:
        """A turn by its id, or by the id of the response that the client received."""
        turns, endings = schema.turns, schema.endings
        question = _turn_columns(turns.c.settings, turns.c.wish, turns.c.node, endings)
        if caller is not None:
            question = question.where(turns.c.caller == caller)
        rows = await self._database.fetch(question.where(turns.c.id == turn_id))
        rows = rows or await self._database.fetch(question.where(has_response_id(turn_id, caller)))
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
            able = (known.name for known in DIALECTS.usable() if known.has_response)
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
        # not EXISTS, for which PostgreSQL may read the whole table once
        has_answer = at_most(select(answers.c.choice).where(answers.c.turn_id == turns.c.id), 1).scalar_subquery().label("answer")
        question = select(turns.c.id, turns.c.probe, turns.c.caller, endings.c.ending, has_answer)
        question = question.outerjoin(endings, endings.c.turn_id == turns.c.id).where(turns.c.session_id == session_id)
        question = at_most(question.order_by(turns.c.id.desc()), LOOKED_AT)
        rows = await self._database.fetch(question)
        while rows:
            for row in rows:
                if not row.probe and caller in (None, row.caller) and (row.answer is not None or row.ending not in BROKEN):
                    return row.id, row.ending is not None
            rows = await self._database.fetch(question.where(turns.c.id < rows[-1].id)) if len(rows) == LOOKED_AT else ()
        return "", True

    # --- sessions

    async def sessions(
        self, caller: str | None = None, limit: int = 100, session_id: str = "", before: str = ""
    ) -> list[SessionSummary]:
        """The sessions with the most recent turn first. Probes are not counted, and a session of probes only is not listed.
        ``before`` is the last session of the previous page: its ``cursor_of``, or its id, which stands for its current place."""
        sessions = schema.sessions
        updated = sessions.c.updated
        question = select(sessions).where(updated > 0).order_by(updated.desc(), sessions.c.id.desc())
        if caller is not None:
            question = question.where(sessions.c.caller == caller)
        if session_id:
            question = question.where(sessions.c.id == session_id)
        if before:
            last = select(updated).where(sessions.c.id == before, updated > 0)
            if caller is not None:
                last = last.where(sessions.c.caller == caller)
            question = question.where(*_after(updated, sessions.c.id, *await self._place(before, last, "session")))
        rows = await self._database.fetch(at_most(question, min(limit, MAX_ROWS)))
        given = await self._database.fetch(given_titles([row.id for row in rows])) if rows else ()
        titles = {row.session_id: msgspec.json.decode(row.value) for row in given}
        return [SessionSummary(**{**row._mapping, "title": titles.get(row.id, row.title)}) for row in rows]

    async def session(self, session_id: str, caller: str | None = None) -> SessionSummary | None:
        found = await self.sessions(caller, 1, session_id)
        return found[0] if found else None

    async def last_session(self, caller: str | None = None, directory: str | None = None) -> str | None:
        """The session of the newest turn, optionally of one directory."""
        sessions = schema.sessions
        question = select(sessions.c.id).where(sessions.c.updated > 0)
        if caller is not None:
            question = question.where(sessions.c.caller == caller)
        if directory is not None:
            question = question.where(sessions.c.directory == directory)
        rows = await self._database.fetch(at_most(question.order_by(sessions.c.updated.desc(), sessions.c.id.desc()), 1))
        return rows[0].id if rows else None

    async def _place(self, before: str, when: Query, what: str) -> tuple[float, str]:
        """Where a page begins: from a cursor, or from the row of an id."""
        id, time = _cursor(before)
        try:
            at = float(time) if time else (await self._database.fetch(when))[0][0]
        except (ValueError, IndexError):
            at = None
        if at is None or not math.isfinite(at):
            raise RequestError(
                f"before must be the last_id of a page, or the id of a {what} that you may see, not {excerpt(before)}"
            )
        return at, id

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


def _cursor(before: str) -> tuple[str, str]:
    """The id and the time in a cursor. The time is empty if there is only an id."""
    id, _, time = before.partition(CURSOR_SEPARATOR)
    return id, time


def _after(time: ColumnElement[float], id: ColumnElement[str], at: float, last: str) -> tuple[ColumnElement[bool], ...]:
    """The rows behind this one. The first condition says where the index is entered; the second one is for rows of the same time."""
    return time <= at, or_(time < at, id < last)


def _chosen(which: Filter, limit: int) -> Query:
    """The ids of the turns that match, from the table whose index begins with what is compared. The owner of a session was checked
    before, so that the turns of another caller's session are not read one after another."""
    turns, endings = schema.turns, schema.endings
    ended = [endings.c[name] == value for name, value in (("upstream", which.upstream), ("ending", which.ending)) if value]
    table, id = (endings, endings.c.turn_id) if ended and not which.session_id else (turns, turns.c.id)
    question = select(id.label("id")).where(*ended)
    if which.session_id:
        question = question.where(table.c.session_id == which.session_id)
    elif which.caller is not None:
        question = question.where(table.c.caller == which.caller)
    if which.model:
        question = question.where(turns.c.model == which.model)
    if table is endings and which.model:
        question = question.join(turns, turns.c.id == id)
    elif table is turns and ended:
        question = question.join(endings, endings.c.turn_id == id)
    if which.before:
        question = question.where(id < _cursor(which.before)[0])
    return at_most(question.where(*_within(id, which)).order_by(id.desc()), limit)


def _conditions(which: Filter) -> list[ColumnElement[bool]]:
    """The conditions except the search words and the page, for turns that were found already. The columns are concatenated with an empty
    text, so that the database does not look for the turns by the index of a column instead."""
    turns, endings = schema.turns, schema.endings
    values = [
        (turns.c.caller, which.caller),
        (turns.c.session_id, which.session_id or None),
        (turns.c.model, which.model or None),
    ]
    values += [(endings.c.upstream, which.upstream or None), (endings.c.ending, which.ending or None)]
    found = [column + "" == value for column, value in values if value is not None]
    if which.ending == RUNNING:
        found.append(endings.c.turn_id.is_(None))
    return found + _within(turns.c.id, which)


def _within(id: ColumnElement[str], which: Filter) -> list[ColumnElement[bool]]:
    """The conditions for the time, as those for the id of a turn."""
    found = [id >= first_id(TURN, which.since)] if which.since else []
    return [*found, id < first_id(TURN, which.until)] if which.until else found


def has_response_id(response_id: str, caller: str | None) -> ColumnElement[bool]:
    """The newest turn whose response has this id. The id is stored at the start or at the end of a turn. An upstream may give the
    same id to all of its responses."""
    if not response_id:
        return false()
    newest: list[Query] = []
    for table, id in ((schema.turns, schema.turns.c.id), (schema.endings, schema.endings.c.turn_id)):
        found = select(id.label("id")).where(table.c.response_id == response_id, schema.IDENTIFIED)
        if caller is not None:
            found = found.where(table.c.caller == caller)
        found = at_most(found.order_by(table.c.caller.desc(), id.desc()), LOOKED_AT)
        newest.append(select(found.subquery().c.id))
    return schema.turns.c.id == select(func.max(union_all(*newest).subquery().c.id)).scalar_subquery()


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
