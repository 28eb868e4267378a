"""Sessions and responses: the conversation that a request belongs to, and the responses that it may continue.

``Sessions`` finds the session by what the request names, else by the conversation that it repeats:

    1. an explicit id (a header or a field), a conversation, a thread: a name that the client chose
    2. the response that it continues
    3. the hash of the conversation so far

A name belongs to its caller: if two callers choose the same name, they have two sessions. A request that names nothing and
repeats nothing starts a new session.

``Responses`` are those that a client may retrieve or continue by their id. A client can withdraw one; after that it is gone for
the client, but the turn stays in the log.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from ..json_types import JsonValue
from ..messages import Message, Request
from ..tasks import WriteLine, patient_timeout
from .contents import whole_bodies
from .conversation import ANSWER_BYTES, Conversation, alike, hash_conversation, normal
from .database import Database, StoreUnavailable
from .database.sql import DatabaseRow, insert_row
from .queries import Queries, has_response_id
from .recent import EDITED_DEPTH, Match, Recent, Seen
from .search import TurnDetail
from .turns import ID_CHARS, Session, clean, messages_weight, mint_id
from .writer import CLOSE_SECONDS, COMMIT_SECONDS, Writer

OTHER_PROCESS_SECONDS: Final = COMMIT_SECONDS + 0.1
"""Seconds to wait for a turn of another process. After the commit interval it must be in the database."""
POLL_SECONDS: Final = 0.05
RETRIEVABLE: Final = (
    "(turns.retrievable AND (SELECT withdrawals.at FROM withdrawals WHERE withdrawals.turn_id = turns.id) IS NULL)"
)
"""Not with EXISTS, for which PostgreSQL may read all withdrawals once."""
_WITHDRAW: Final = insert_row("withdrawals", ("turn_id", "at"), "ON CONFLICT DO NOTHING")
PREFIX: Final = "ses_"
HEADERS: Final = (
    "x-streamglot-session",
    "x-session-id",
    "session-id",
    "session_id",
    "x-session-affinity",
    "thread-id",
)
"""Headers that name a session, ours first; the others are those of coding agents."""
AGENTS_HEADER: Final = "-session-id"
"""How a header ends that an agent names after itself."""
CHAT: Final = "chat"
"""The kind of the session names of the web page's chats."""
FIND_SECONDS: Final = 1.0
"""How long a request waits for its history, in seconds."""
MISSED_LOG_SECONDS: Final = 10.0
"""Seconds between two lines in the log about lookups that got no answer. Each has their number so far."""
_MISSED: Final = (
    f"the database did not answer within {FIND_SECONDS:g} s: the request went on without its stored conversation, so its turn is not "
    "linked to the one before, and state of its provider is not restored; look at the load of the database"
)
THREAD_HASH_BYTES: Final = 2**18
"""A conversation of more bytes is hashed in a thread, not in the event loop."""
MAX_ANSWERS: Final = 500
"""Answers of a session that are searched for state to restore. Providers need that of the last turns only."""
CANDIDATES: Final = 20
"""Turns with the same hash, or with the same response id, that are looked at: the newest. A program that always asks the same and
receives the same has any number of them."""
_IN_USER: Final = re.compile(r"session(?:_id)?[_\":\s]+([0-9a-f]{8}-[0-9a-f-]{27})")
_PREVIOUS: Final = f"""
    SELECT turns.id, turns.session_id FROM turns JOIN (
        SELECT turn_id FROM endings WHERE response_id = :response_id AND response_id <> '' AND caller = :caller
        ORDER BY turn_id DESC LIMIT {CANDIDATES}
    ) AS newest ON newest.turn_id = turns.id WHERE {RETRIEVABLE} ORDER BY newest.turn_id DESC LIMIT 1
"""
_WITHDRAWN: Final = "SELECT at FROM withdrawals WHERE turn_id = :turn_id"
_SIGNED: Final = f"""
    SELECT signed.turn_id AS id, messages.hash, messages.body FROM (
        SELECT turn_id, message FROM answers WHERE echo_session = :session_id ORDER BY turn_id DESC LIMIT {MAX_ANSWERS}
    ) AS signed JOIN messages ON messages.hash = signed.message
"""
_NAME: Final = "SELECT name FROM sessions WHERE id = :id AND caller = :caller"
_ANSWER: Final = """
    SELECT messages.hash, messages.body FROM messages JOIN answers ON answers.message = messages.hash
    WHERE answers.turn_id = :turn_id AND answers.choice = 0
"""
_EXACT: Final = f"""
    SELECT found.id, found.session_id, found.depth FROM (
        SELECT * FROM ({{ends}}) AS ends ORDER BY ends.depth LIMIT {CANDIDATES}
    ) AS found JOIN turns ON turns.id = found.id JOIN sessions ON sessions.id = found.session_id
    WHERE turns.caller = :caller ORDER BY found.depth, sessions.updated > turns.started, found.id DESC LIMIT 1
"""
"""The best of these turns, each with how much newer the conversation is than its answer."""
_decoder = msgspec.json.Decoder(Message)


class SessionHints(Struct, kw_only=True):
    """The fields of a request that determine its session. ``directory`` is the client's working directory, if it sends one."""

    caller: str = ""
    name: str = ""
    response_id: str = ""
    directory: str = ""


def session_hints(
    caller: str, request: Request, body: Mapping[str, JsonValue], headers: Mapping[str, str], chat_field: str = ""
) -> SessionHints:
    """Reads the session name from a request, in every form that clients use."""
    found = next((headers[name] for name in HEADERS if headers.get(name)), "")
    found = found or next((value for name, value in headers.items() if name.endswith(AGENTS_HEADER)), "")
    if not found:
        held = body.get("conversation")
        held = held.get("id") if isinstance(held, dict) else held
        inside = _IN_USER.search(str((request.metadata or {}).get("user_id") or request.user or ""))
        marked = [("conversation", held), ("thread", body.get("threadId")), (CHAT, body.get(chat_field))]
        marked.append(("session", inside[1] if inside else None))
        explicit = body.get("session_id")
        found = explicit if isinstance(explicit, str) else ""
        found = found or next((f"{kind}:{name}" for kind, name in marked if isinstance(name, str) and name), "")
    previous = request.previous_response_id or ""
    return SessionHints(
        caller=caller,
        name=clean(found[:ID_CHARS]),
        response_id=previous[: ID_CHARS + 1],  # one more than the limit, so that a longer id matches nothing
        directory=headers.get("x-streamglot-directory", ""),
    )


class Sessions:
    def __init__(
        self, database: Database, recent: Recent, others: Callable[[], bool] = lambda: False, log: WriteLine | None = None
    ) -> None:
        """``others`` returns whether other processes write to the database; their turns appear with a delay."""
        self._database = database
        self._recent = recent
        self._others = others
        self._log = log or (lambda line: None)
        self._log_at = 0.0
        self.missed = 0

    async def find(self, hints: SessionHints, request: Request) -> Session:
        """The session. If the database does not answer in time, the request continues without
        its history (counted in ``missed``). Only a response that the request names must be found, see ``previous``."""
        session = Session(id="", caller=hints.caller, name=hints.name, directory=hints.directory, started=time.time())
        if not hints.response_id:
            session.conversation = await _conversation(hints.caller, request)
            if not hints.name and not session.conversation.prefixes:  # the conversation begins, so there is nothing to find
                session.id = mint_id(PREFIX, session.started)
                return session
        try:
            async with patient_timeout(FIND_SECONDS):
                await self._find(hints, session)
        except (StoreUnavailable, TimeoutError):
            self._note_missed()
            self._remember(hints, session)
        return session

    async def _find(self, hints: SessionHints, session: Session) -> None:
        caller = hints.caller
        if hints.name:
            session.id = named(caller, hints.name)
            known = await self._name(caller, hints.name) if hints.name.startswith(PREFIX) else None
            if known is not None:
                session.id, session.name, session.new = hints.name, known, False
            elif await self._name(caller, session.id) is not None:
                session.new = False
        turn: tuple[str, str] | None = None
        if hints.response_id:
            turn = await self.previous(caller, hints.response_id)
        elif session.conversation is not None and session.conversation.prefixes:
            turn = await self._continued(session, session.conversation)
        if turn is not None:
            session.previous = turn[0]
            if session.id in ("", turn[1]):
                session.id, session.new = turn[1], False
        session.id = session.id or mint_id(PREFIX, session.started)

    async def _continued(self, session: Session, conversation: Conversation) -> tuple[str, str] | None:
        """The turn that this conversation continues. Another process may be about to write its last answer."""
        best = self._recent.by_conversation(session.caller, conversation, session.id)
        until = time.monotonic() + OTHER_PROCESS_SECONDS
        while best is None or best.depth > 0:
            found = await self._by_conversation(session, conversation)
            if found is not None and (best is None or found.depth < best.depth):
                best = found
            if (best is not None and best.depth < 1) or not self._others() or time.monotonic() > until:
                break
            await asyncio.sleep(POLL_SECONDS)
        return (best.turn_id, best.session_id) if best is not None else None

    def _remember(self, hints: SessionHints, session: Session) -> None:
        """Finds the session from memory only. Its row may be missing in the database, so the session counts as new."""
        session.id, session.new, session.previous = "", True, ""
        seen: Seen | Match | None = self._recent.by_response(hints.caller, hints.response_id) if hints.response_id else None
        if hints.name:
            last = self._recent.last(hints.name) if hints.name.startswith(PREFIX) else None
            session.id = named(hints.caller, hints.name)
            if last is not None and last.caller == hints.caller:
                session.id, session.name = hints.name, hints.name if last.named else ""
        if session.conversation is not None:
            seen = self._recent.by_conversation(hints.caller, session.conversation, session.id)
        if seen is not None:
            session.previous = seen.turn_id
            session.id = session.id or seen.session_id
        session.id = session.id or mint_id(PREFIX, session.started)

    async def previous(self, caller: str, response_id: str) -> tuple[str, str] | None:
        """The turn and the session of a response of this caller that can be continued."""
        seen = self._recent.by_response(caller, response_id)
        if seen is not None:
            gone = await self._database.fetch(_WITHDRAWN, turn_id=seen.turn_id)
            return None if gone else (seen.turn_id, seen.session_id)
        rows = await self._database.fetch(_PREVIOUS, response_id=response_id, caller=caller)
        if not rows and not self._recent.knows(response_id):
            await asyncio.sleep(OTHER_PROCESS_SECONDS)  # another process may be about to write it
            rows = await self._database.fetch(_PREVIOUS, response_id=response_id, caller=caller)
        return (rows[0].id, rows[0].session_id) if rows else None

    async def answers(self, session: Session) -> list[Message]:
        """The answers of a session that carry provider state, oldest first, for ``restore_echoes``."""
        found: dict[str, Message] = {}
        try:
            async with patient_timeout(FIND_SECONDS):
                rows = await self._database.fetch(_SIGNED, session_id=session.id)
                bodies = await whole_bodies(self._database, {row.hash: row.body for row in rows})
                found = {row.id: _decoder.decode(bodies[row.hash]) for row in rows if row.hash in bodies}
        except (StoreUnavailable, TimeoutError):
            self._note_missed()
        found.update(self._recent.answers(session.id))
        return [found[turn] for turn in sorted(found)]

    def _note_missed(self) -> None:
        """Counts a lookup that got no answer. The first one is logged at once, and of many that follow one in a while."""
        self.missed += 1
        if time.monotonic() >= self._log_at:
            self._log_at = time.monotonic() + MISSED_LOG_SECONDS
            self._log({"event": "store_missed", "missed": self.missed, "message": _MISSED})

    # --- queries

    async def _name(self, caller: str, session_id: str) -> str | None:
        """The name of a session of this caller; empty if it has none, None if there is no such session. A session that was seen
        here may have any name that it can be known by."""
        last = self._recent.last(session_id)
        if last is not None and last.caller == caller:
            return session_id if last.named else ""
        rows = await self._database.fetch(_NAME, id=session_id, caller=caller)
        return str(rows[0].name) if rows else None

    async def _by_conversation(self, session: Session, conversation: Conversation) -> Match | None:
        """The database query that corresponds to ``Recent.by_conversation``. Of many equal histories it looks at the newest."""
        ends = [
            f"SELECT ended.id, ended.session_id, {depth} AS depth FROM ({_candidates('endings', 'turn_id', f'tip = :tip_{depth}', session)}) AS ended"
            for depth in range(len(conversation.prefixes))
        ]
        values = {"caller": session.caller, "session_id": session.id, "named": bool(session.name)}
        tips = {f"tip_{depth}": prefix.tip for depth, prefix in enumerate(conversation.prefixes)}
        rows = await self._database.fetch(_EXACT.format(ends=" UNION ALL ".join(ends)), **values, **tips)
        if not rows or rows[0].depth > 0:
            newest = conversation.prefixes[0]
            edited = _candidates("turns", "id", "prompt_hash = :prompt_hash", session)
            for row in await self._database.fetch(edited, prompt_hash=newest.prompt_hash, **values):
                if alike(await self._answer(row.id), newest.answer):
                    return Match(EDITED_DEPTH, row.id, row.session_id)
        return Match(rows[0].depth, rows[0].id, rows[0].session_id) if rows else None

    async def _answer(self, turn_id: str) -> bytes:
        rows = await self._database.fetch(_ANSWER, turn_id=turn_id)
        bodies = await whole_bodies(self._database, {row.hash: row.body for row in rows})
        return b"".join(normal(_decoder.decode(body).parts)[:ANSWER_BYTES] for body in bodies.values())


def _candidates(table: str, id: str, same: str, session: Session) -> str:
    """The newest turns with the same hash, in this session or in those without a name. Many turns can have the same hash: those of
    a program that always asks the same."""
    inside = "AND session_id = :session_id" if session.id else ""
    return (
        f"SELECT {id} AS id, session_id FROM {table} WHERE {same} AND named = :named {inside} "
        f"ORDER BY session_id DESC, {id} DESC LIMIT {CANDIDATES}"
    )


def chat_session(caller: str, chat: str) -> str:
    """The session id of a chat of the web page."""
    return named(caller, f"{CHAT}:{chat}")


def named(caller: str, name: str) -> str:
    """The session id for a name that this caller chose. It is the same in every process."""
    mark = hashlib.blake2b(f"{len(caller)}:{caller}{name}".encode("utf-8", "replace"), digest_size=16)
    return f"{PREFIX}{mark.hexdigest()}"


async def _conversation(caller: str, request: Request) -> Conversation:
    if messages_weight(request) > THREAD_HASH_BYTES:
        return await asyncio.to_thread(hash_conversation, caller, request.messages)
    return hash_conversation(caller, request.messages)


class Responses:
    def __init__(self, database: Database, queries: Queries, recent: Recent, writer: Writer) -> None:
        self._database = database
        self._queries = queries
        self._recent = recent
        self._writer = writer

    async def find(self, response_id: str, caller: str | None) -> TurnDetail | None:
        """The turn with this response, running or ended. A client may know of the end before the database does, so an ended
        stream waits for the commit; a background response does not."""
        row = await self._row(response_id, caller)
        turn = await self._queries.turn(row.id, caller) if row is not None else None
        if turn is None or turn.client_options.get("background") or self._recent.knows(response_id):
            return turn
        until = time.monotonic() + OTHER_PROCESS_SECONDS
        while turn is not None and not turn.ending and time.monotonic() < until:
            await asyncio.sleep(POLL_SECONDS)
            turn = await self._queries.turn(turn.id, caller)
        return turn

    async def withdraw(self, response_id: str, caller: str | None) -> bool:
        """Makes a response unavailable by its id. Returns False if it was not available."""
        row = await self._row(response_id, caller)
        if row is None:
            return False
        await self._database.execute(_WITHDRAW, turn_id=row.id, at=time.time())
        self._recent.withdraw(row.id)
        return True

    async def _row(self, response_id: str, caller: str | None) -> DatabaseRow | None:
        """The row of the turn. It may still be on its way to the database, from this process or from another."""
        question = f"SELECT turns.id, {RETRIEVABLE} AS retrievable FROM turns WHERE {has_response_id(caller)}"
        values = {"response_id": response_id, "caller": caller}
        ours = self._recent.knows(response_id)
        if ours:
            await settled(self._writer)
        rows = await self._database.fetch(question, **values)
        if not rows and not ours:
            await asyncio.sleep(OTHER_PROCESS_SECONDS)
            rows = await self._database.fetch(question, **values)
        return rows[0] if rows and rows[0].retrievable else None


async def settled(writer: Writer) -> None:
    """Waits until everything that was queued before is in the database."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.flush()
    except TimeoutError:
        raise StoreUnavailable("the turn is not in the database yet; try again") from None
