"""Finds, lists and shows turns and sessions. A caller sees its own; ``caller=None`` is the operator, who sees all.

``Lookup`` finds them from little: the beginning of an id, a directory, or "the last one". A title that a person gave to a session
replaces the beginning of its first message.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from ..dialects import DIALECTS, dialect
from ..errors import RequestError, excerpt
from ..events import StreamError
from ..json_types import JsonObject, JsonValue
from ..messages import Message, Request, Response, TokenCounts
from .contents import whole_bodies
from .conversation import HASH_BYTES
from .database import Database
from .database.sql import Connection, DatabaseRow, SqlRow, insert_row, prefix_pattern
from .search import Filter, Indexing, RawFrame, RawFrames, Search, SessionSummary, TurnDetail, TurnSummary
from .turns import BROKEN, TURN, first_id

_EMPTY_ANSWER: Final = hashlib.blake2b(msgspec.json.encode(Message("assistant", [])), digest_size=HASH_BYTES).digest()
"""The hash of an empty answer."""
_IN_DIRECTORY: Final = "SELECT id FROM sessions WHERE directory = :directory AND updated > 0 ORDER BY updated DESC, id DESC"
_ANSWERED: Final = """
    SELECT turns.id, turns.session_id, turns.caller FROM turns
    JOIN sessions ON sessions.id = turns.session_id JOIN answers ON answers.turn_id = turns.id
    WHERE NOT turns.probe AND answers.choice = 0 AND answers.message <> :empty {more}
    ORDER BY turns.started DESC, turns.id DESC LIMIT 1
"""


class Answered(Struct):
    """A turn with an answer, which a conversation can continue."""

    turn_id: str
    session_id: str
    caller: str


OWN: Final = ""
TITLE: Final = "title"
"""The key of a given title among the session's states, beside those of its providers. No provider has an empty name."""
TITLE_CHARS: Final = 200
"""Characters of the longest title: it must fit on one line of a list."""


_GIVEN: Final = "SELECT session_id, value FROM states WHERE session_id IN :sessions AND provider = :provider AND name = :name"
"""The titles that were given to these sessions, as JSON."""
_REMOVE: Final = "DELETE FROM states WHERE session_id = :session_id AND provider = :provider AND name = :name"
_ADD: Final = insert_row("states", ("session_id", "provider", "name", "value", "at"))
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
_BEGUN: Final = "SELECT started FROM turns WHERE id = :id"
_UPDATED: Final = "SELECT updated FROM sessions WHERE id = :id AND updated > 0"
_OF_CALLER: Final = " AND caller = :caller"
_OWNED: Final = "SELECT id FROM sessions WHERE id = :id AND caller = :caller"
_PLAIN: Final = """
    turns.id, turns.session_id, turns.caller, turns.request_id, turns.started, turns.dialect, turns.model, turns.stream, turns.title,
    turns.probe, turns.response_id AS given_id, endings.ended, endings.ending, endings.error, endings.response_id, endings.upstream,
    endings.upstream_dialect, endings.upstream_model, endings.usage, endings.cost
"""
"""The columns of a ``TurnSummary``."""
_WITH_ENDINGS: Final = "FROM turns LEFT JOIN endings ON endings.turn_id = turns.id"
_WHOLE: Final = f"""
    SELECT {_PLAIN}, turns.settings, turns.client_options, turns.node, endings.response, endings.upstream_settings,
        endings.upstream_node, endings.timings, endings.verdicts, endings.more
    {_WITH_ENDINGS} WHERE
"""
_FRAMES: Final = """
    SELECT frames.number, frames.body FROM frames JOIN turns ON turns.id = frames.turn_id
    WHERE frames.turn_id = :turn_id AND frames.number >= :number
"""
_LAST: Final = f"""
    SELECT turns.id, turns.probe, turns.caller, endings.ending,
        (SELECT answers.choice FROM answers WHERE answers.turn_id = turns.id LIMIT 1) AS answer
    {_WITH_ENDINGS} WHERE turns.session_id = :session_id {{before}} ORDER BY turns.id DESC LIMIT {LOOKED_AT}
"""
"""Not EXISTS, for which PostgreSQL may read the whole table once."""
_CONTENT: Final = "SELECT hash, body FROM contents WHERE hash = :hash"
_HISTORY: Final = """
    WITH RECURSIVE history(hash, parent, message, depth) AS (
        SELECT hash, parent, message, depth FROM nodes WHERE hash = :node
        UNION ALL
        SELECT nodes.hash, nodes.parent, nodes.message, nodes.depth FROM nodes JOIN history ON nodes.hash = history.parent
    )
    SELECT messages.hash AS hash, messages.body AS body FROM history JOIN messages ON messages.hash = history.message
    ORDER BY history.depth
"""
_STEPS: Final = "SELECT body FROM steps WHERE turn_id = :turn_id ORDER BY number"
_ANSWERS: Final = """
    SELECT answers.choice, messages.hash, messages.body FROM answers JOIN messages ON messages.hash = answers.message
    WHERE answers.turn_id = :turn_id
"""
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
            await self._place(which.before, _BEGUN, which.caller, "turn")
        if which.session_id and which.caller is not None and not await self._owned(which.session_id, which.caller):
            return []
        if which.search:
            rest = msgspec.structs.replace(which, search="", before="", limit=1)
            if (which.model or which.upstream or which.ending) and not await self.turns(rest):
                return []  # otherwise all texts with these words would be read for nothing
            return await self._first_of(self.search.pages(which, _cursor(which.before)[0]), which)
        if which.ending == RUNNING:
            return await self._first_of(self._running(_cursor(which.before)[0]), which)
        chosen, values = _chosen(which, limit)
        question = f"SELECT {_PLAIN} FROM turns JOIN ({chosen}) AS chosen ON chosen.id = turns.id "
        question += "LEFT JOIN endings ON endings.turn_id = turns.id ORDER BY chosen.id DESC"
        return [TurnSummary(**_summary(row)) for row in await self._database.fetch(question, **values)]

    async def _first_of(self, pages: AsyncIterator[Sequence[str]], which: Filter) -> list[TurnSummary]:
        """The turns with these ids that match the rest of the filter, in the order of the ids. It asks for the next page only if the
        others leave too few."""
        found: list[TurnSummary] = []
        async for ids in pages:
            conditions, values = _conditions(which)
            question = f"SELECT {_PLAIN} {_WITH_ENDINGS} WHERE turns.id IN :ids {conditions}"
            rows = await self._database.fetch(question, ids=list(ids), **values)
            chosen = {row.id: row for row in rows}
            found += [TurnSummary(**_summary(chosen[id])) for id in ids if id in chosen]
            if len(found) >= which.limit:
                break
        return found[: min(which.limit, MAX_ROWS)]

    async def _running(self, before: str) -> AsyncIterator[Sequence[str]]:
        """The turns without an ending, the newest first."""
        where = "WHERE turn_id < :before" if before else ""
        rows = await self._database.fetch(
            f"SELECT turn_id FROM running {where} ORDER BY turn_id DESC LIMIT {MAX_ROWS}", before=before
        )
        while rows:
            yield [row.turn_id for row in rows]
            if len(rows) < MAX_ROWS:
                return
            older = f"SELECT turn_id FROM running WHERE turn_id < :before ORDER BY turn_id DESC LIMIT {MAX_ROWS}"
            rows = await self._database.fetch(older, before=rows[-1].turn_id)

    async def _owned(self, session_id: str, caller: str) -> bool:
        return bool(await self._database.fetch(_OWNED, id=session_id, caller=caller))

    async def turn(self, turn_id: str, caller: str | None = None) -> TurnDetail | None:
        """A turn by its id, or by the id of the response that the client received."""
        ours = " AND turns.caller = :caller" if caller is not None else ""
        rows = await self._database.fetch(f"{_WHOLE} turns.id = :id {ours}", id=turn_id, caller=caller)
        by_response = f"{_WHOLE} {has_response_id(caller)} {ours}"
        rows = rows or await self._database.fetch(by_response, response_id=turn_id, caller=caller)
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
            client_options=_json(row.client_options, {}),
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
        ours = "AND turns.caller = :caller" if caller is not None else ""
        question = f"{_FRAMES} {ours} ORDER BY frames.number LIMIT {int(rows)}"
        read = await self._database.fetch(question, turn_id=turn_id, number=number, caller=caller)
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
        instructed = turn.client_options.get("instructions")
        prompt = turn.request.messages[1:] if instructed else turn.request.messages
        return [*prompt, *([Message("assistant", answer)] if answer else [])]

    async def last_turn(self, session_id: str, caller: str | None = None) -> tuple[str, bool]:
        """The turn that the next request of a session continues, and whether it has ended. A turn that ended without an answer
        does not count, because its client will repeat the request."""
        rows = await self._database.fetch(_LAST.format(before=""), session_id=session_id)
        while rows:
            for row in rows:
                if not row.probe and caller in (None, row.caller) and (row.answer is not None or row.ending not in BROKEN):
                    return row.id, row.ending is not None
            if len(rows) < LOOKED_AT:
                break
            older = _LAST.format(before="AND turns.id < :before")
            rows = await self._database.fetch(older, session_id=session_id, before=rows[-1].id)
        return "", True

    # --- sessions

    async def sessions(
        self, caller: str | None = None, limit: int = 100, session_id: str = "", before: str = ""
    ) -> list[SessionSummary]:
        """The sessions with the most recent turn first. Probes are not counted, and a session of probes only is not listed.
        ``before`` is the last session of the previous page: its ``cursor_of``, or its id, which stands for its current place."""
        conditions, values = ["updated > 0"], SqlRow(caller=caller, session_id=session_id)
        if caller is not None:
            conditions.append("caller = :caller")
        if session_id:
            conditions.append("id = :session_id")
        if before:
            values["at"], values["last"] = await self._place(before, _UPDATED, caller, "session")
            # the first condition says where the index is entered; the second one is for rows of the same time
            conditions += ["updated <= :at", "(updated < :at OR id < :last)"]
        question = f"SELECT * FROM sessions WHERE {' AND '.join(conditions)} ORDER BY updated DESC, id DESC"
        rows = await self._database.fetch(f"{question} LIMIT {min(limit, MAX_ROWS)}", **values)
        titles = await given_titles(self._database, [row.id for row in rows])
        return [SessionSummary(**{**row._asdict(), "title": titles.get(row.id, row.title)}) for row in rows]

    async def session(self, session_id: str, caller: str | None = None) -> SessionSummary | None:
        found = await self.sessions(caller, 1, session_id)
        return found[0] if found else None

    async def last_session(self, caller: str | None = None, directory: str | None = None) -> str | None:
        """The session of the newest turn, optionally of one directory."""
        conditions = ["updated > 0"]
        if caller is not None:
            conditions.append("caller = :caller")
        if directory is not None:
            conditions.append("directory = :directory")
        question = f"SELECT id FROM sessions WHERE {' AND '.join(conditions)} ORDER BY updated DESC, id DESC LIMIT 1"
        rows = await self._database.fetch(question, caller=caller, directory=directory)
        return rows[0].id if rows else None

    async def _place(self, before: str, when: str, caller: str | None, what: str) -> tuple[float, str]:
        """Where a page begins: from a cursor, or from the row of an id."""
        id, time = _cursor(before)
        when = when if caller is None else when + _OF_CALLER
        try:
            at = float(time) if time else (await self._database.fetch(when, id=before, caller=caller))[0][0]
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
        rows = await self._database.fetch(_CONTENT, hash=settings)
        bodies = await whole_bodies(self._database, {row.hash: row.body.decode() for row in rows})
        request = _requests.decode(bodies[settings])
        if node is not None:
            rows = await self._database.fetch(_HISTORY, node=node)
            bodies = await whole_bodies(self._database, {row.hash: row.body for row in rows})
            request.messages = [_messages.decode(bodies[row.hash]) for row in rows]
        return request

    async def _steps(self, turn_id: str) -> list[JsonObject]:
        rows = await self._database.fetch(_STEPS, turn_id=turn_id)
        return [msgspec.json.decode(row.body) for row in rows]

    async def _response(self, row: DatabaseRow) -> Response | None:
        if row.response is None:
            return None
        response = _responses.decode(row.response)
        if row.usage is not None:
            response.usage = _usages.decode(row.usage)
        response.error = _errors.decode(row.error) if row.error else None
        rows = await self._database.fetch(_ANSWERS, turn_id=row.id)
        bodies = await whole_bodies(self._database, {answer.hash: answer.body for answer in rows})
        found = {answer.choice: bodies[answer.hash] for answer in rows}
        for choice in response.choices:
            if choice.index in found:
                choice.parts = _messages.decode(found[choice.index]).parts
        return response


def cursor_of(found: TurnSummary | SessionSummary) -> str:
    """A cursor for the page after this row. It stays valid when the row is deleted or moves."""
    return f"{found.id}{CURSOR_SEPARATOR}{found.updated if isinstance(found, SessionSummary) else found.started!r}"


def _cursor(before: str) -> tuple[str, str]:
    """The id and the time in a cursor. The time is empty if there is only an id."""
    id, _, time = before.partition(CURSOR_SEPARATOR)
    return id, time


def _chosen(which: Filter, limit: int) -> tuple[str, SqlRow]:
    """The ids of the turns that match, from the table whose index begins with what is compared. The owner of a session was checked
    before, so that the turns of another caller's session are not read one after another."""
    ended = [f"endings.{name} = :{name}" for name in ("upstream", "ending") if getattr(which, name)]
    by_ending = bool(ended) and not which.session_id
    table, id = ("endings", "endings.turn_id") if by_ending else ("turns", "turns.id")
    conditions, join = [*ended], ""
    if which.session_id:
        conditions.append(f"{table}.session_id = :session_id")
    elif which.caller is not None:
        conditions.append(f"{table}.caller = :caller")
    if which.model:
        conditions.append("turns.model = :model")
    if by_ending and which.model:
        join = "JOIN turns ON turns.id = endings.turn_id"
    elif not by_ending and ended:
        join = "JOIN endings ON endings.turn_id = turns.id"
    if which.before:
        conditions.append(f"{id} < :before")
    conditions += _within(id, which)
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {id} AS id FROM {table} {join} {where} ORDER BY {id} DESC LIMIT {int(limit)}", _values(which)


def _conditions(which: Filter) -> tuple[str, SqlRow]:
    """The conditions except the search words and the page, for turns that were found already. The columns are concatenated with an empty
    text, so that the database does not look for the turns by the index of a column instead."""
    names = ("turns.caller", which.caller), ("turns.session_id", which.session_id or None), ("turns.model", which.model or None)
    ended = ("endings.upstream", which.upstream or None), ("endings.ending", which.ending or None)
    found = [f"{column} || '' = :{column.partition('.')[2]}" for column, value in (*names, *ended) if value is not None]
    if which.ending == RUNNING:
        found.append("endings.turn_id IS NULL")
    return "".join(f" AND {condition}" for condition in [*found, *_within("turns.id", which)]), _values(which)


def _values(which: Filter) -> SqlRow:
    """The parameters of a filter."""
    values = {name: getattr(which, name) for name in ("caller", "session_id", "model", "upstream", "ending")}
    since, until = first_id(TURN, which.since or 0.0), first_id(TURN, which.until or 0.0)
    return values | {"before": _cursor(which.before)[0], "since": since, "until": until}


def _within(id: str, which: Filter) -> list[str]:
    """The conditions for the time, as those for the id of a turn."""
    return [*([f"{id} >= :since"] if which.since else []), *([f"{id} < :until"] if which.until else [])]


def has_response_id(caller: str | None) -> str:
    """The condition for the newest turn whose response has the id ``:response_id``. The id is stored at the start or at the end of a
    turn. An upstream may give the same id to all of its responses."""
    ours = _OF_CALLER if caller is not None else ""
    newest = (
        f"SELECT id FROM (SELECT {id} AS id FROM {table} WHERE response_id = :response_id AND response_id <> '' {ours} "
        f"ORDER BY caller DESC, {id} DESC LIMIT {LOOKED_AT}) AS of_{table}"
        for table, id in (("turns", "id"), ("endings", "turn_id"))
    )
    return f"turns.id = (SELECT max(id) FROM ({' UNION ALL '.join(newest)}) AS newest)"


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
        "stream": bool(row.stream),
        "ending": row.ending or RUNNING,
        "error": _errors.decode(row.error) if row.error else None,
        "usage": _usages.decode(row.usage) if row.usage else None,
        "cost": row.cost,
        "started": row.started,
        "duration": None if row.ended is None else max(0.0, row.ended - row.started),
        "title": row.title,
        "probe": bool(row.probe),
    }


def _json(body: str | None, default: JsonValue) -> JsonValue:
    return msgspec.json.decode(body) if body else default


class Lookup:
    """Lookups of the operator, who sees all callers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def turns_like(self, beginning: str, limit: int = 2) -> list[str]:
        return await self._like("turns", beginning, limit)

    async def sessions_like(self, beginning: str, limit: int = 2) -> list[str]:
        return await self._like("sessions", beginning, limit)

    async def _like(self, table: str, beginning: str, limit: int) -> list[str]:
        question = f"SELECT id FROM {table} WHERE id LIKE :pattern ESCAPE '/' ORDER BY id LIMIT {int(limit)}"
        return [row.id for row in await self._database.fetch(question, pattern=prefix_pattern(beginning))]

    async def sessions_in(self, directory: str, limit: int) -> list[str]:
        """The sessions of a directory, the one with the newest turn first."""
        rows = await self._database.fetch(f"{_IN_DIRECTORY} LIMIT {int(limit)}", directory=directory)
        return [row.id for row in rows]

    async def last_answered(
        self, *, session_id: str = "", directory: str | None = None, callers: Collection[str] = (), beginning: str = ""
    ) -> Answered | None:
        """The newest turn whose answer was stored: of a session, of a directory, of these ``callers``, or of callers whose names
        begin with ``beginning``."""
        conditions, values = list[str](), SqlRow(empty=_EMPTY_ANSWER)
        if session_id:
            conditions.append("turns.session_id = :session_id")
            values["session_id"] = session_id
        if directory is not None:
            conditions.append("sessions.directory = :directory")
            values["directory"] = directory
        if callers:
            alike = "OR turns.caller LIKE :pattern ESCAPE '/'" if beginning else ""
            conditions.append(f"(turns.caller IN :callers {alike})")
            values |= {"callers": list(callers), "pattern": prefix_pattern(beginning)}
        rows = await self._database.fetch(_ANSWERED.format(more="".join(f" AND {one}" for one in conditions)), **values)
        return Answered(rows[0].id, rows[0].session_id, rows[0].caller) if rows else None

    async def count_turns(self) -> int:
        return int((await self._database.fetch("SELECT count(*) AS turns FROM turns"))[0].turns)


async def given_titles(database: Database, sessions: list[str]) -> dict[str, str]:
    """The titles that were given to these sessions."""
    rows = await database.fetch(_GIVEN, sessions=sessions, provider=OWN, name=TITLE) if sessions else []
    return {row.session_id: msgspec.json.decode(row.value, type=str) for row in rows}


async def rename_session(database: Database, session_id: str, title: str) -> None:
    """Sets the title of the session. An empty title removes it."""
    title = " ".join(title.split())[:TITLE_CHARS]
    place = {"session_id": session_id, "provider": OWN, "name": TITLE}

    async def rename(connection: Connection) -> None:
        await connection.execute(_REMOVE, **place)
        if title:
            await connection.execute(_ADD, **place, value=msgspec.json.encode(title).decode(), at=time.time())

    await database.write(rename)
