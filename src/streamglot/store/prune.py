"""Deletes turns on request: those above an age, the oldest until the rest is small enough, or those of one session. They can be
archived first."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, text, update

from ..errors import RequestError
from . import schema
from .database import Database, StoreUnavailable
from .export import archive_line
from .keys import COST, DAY, MINUTE, TOKENS, TOTAL, StoredKeys, period_of
from .queries import Queries
from .sql_types import SqlRow

TURNS_PER_TRANSACTION: Final = 500
"""Turns per transaction, so that others can write in between."""
_UNUSED_NODES: Final = text(
    "DELETE FROM nodes WHERE hash NOT IN (WITH RECURSIVE used(hash) AS ("
    "SELECT node FROM turns WHERE node IS NOT NULL "
    "UNION SELECT upstream_node FROM endings WHERE upstream_node IS NOT NULL "
    "UNION SELECT nodes.parent FROM nodes JOIN used ON nodes.hash = used.hash WHERE nodes.parent IS NOT NULL"
    ") SELECT hash FROM used)"
)
_UNUSED_MESSAGES: Final = text(
    "DELETE FROM messages WHERE hash NOT IN (SELECT message FROM nodes) AND hash NOT IN (SELECT message FROM answers)"
)
_UNUSED_PIECES: Final = text(
    "DELETE FROM pieces WHERE owner NOT IN (SELECT hash FROM messages) "
    "AND owner NOT IN (SELECT settings FROM turns WHERE settings IS NOT NULL) "
    "AND owner NOT IN (SELECT upstream_settings FROM endings WHERE upstream_settings IS NOT NULL)"
)
_UNUSED_CONTENTS: Final = text(
    "DELETE FROM contents WHERE hash NOT IN (SELECT content FROM pieces) "
    "AND hash NOT IN (SELECT settings FROM turns WHERE settings IS NOT NULL) "
    "AND hash NOT IN (SELECT upstream_settings FROM endings WHERE upstream_settings IS NOT NULL)"
)
_UNUSED_SESSIONS: Final = text("DELETE FROM sessions WHERE id NOT IN (SELECT session_id FROM turns)")
_UNUSED_STATES: Final = text("DELETE FROM states WHERE session_id NOT IN (SELECT id FROM sessions)")
_UNUSED: Final = (_UNUSED_NODES, _UNUSED_MESSAGES, _UNUSED_PIECES, _UNUSED_CONTENTS, _UNUSED_SESSIONS, _UNUSED_STATES)
"""In this order: each looks at what the ones before it left."""


class Pruned(Struct, kw_only=True):
    turns: int = 0
    archived: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


async def prune_turns(
    database: Database,
    *,
    older_than: float | None = None,
    max_bytes: int | None = None,
    archive: Path | None = None,
    forget_spending: bool = False,
) -> Pruned:
    """Deletes turns that started more than ``older_than`` seconds ago, then the oldest until the rest takes at most
    ``max_bytes``. With an ``archive``, each turn is first written to that file and synced to disk. Running turns stay. The
    spending of a key is computed from its turns: turns that count for a budget are only deleted with ``forget_spending``."""
    done = Pruned(bytes_before=await size(database))
    done.bytes_after = done.bytes_before
    if older_than is not None:
        before = time.time() - older_than
        if not forget_spending:
            await _check_budgets(database, schema.turns.c.started < before, done)
        while turns := await _oldest(database, TURNS_PER_TRANSACTION, before):
            await _remove(database, turns, archive, done)
        await _sweep(database)
        done.bytes_after = await size(database)
    while max_bytes is not None and done.bytes_after > max_bytes:
        count = (await database.fetch(select(func.count()).select_from(schema.turns)))[0][0]
        share = 1 - max_bytes / done.bytes_after
        turns = await _oldest(database, min(TURNS_PER_TRANSACTION, max(1, int(count * share / 2))))
        if not turns:
            break
        if not forget_spending:
            await _check_budgets(database, schema.turns.c.id.in_(turns), done)
        await _remove(database, turns, archive, done)
        await _sweep(database)
        done.bytes_after = await size(database)
    with suppress(StoreUnavailable):  # another process holds the lock: the next pruning shrinks the file
        await database.release_space()
    return done


async def delete_session(database: Database, session_id: str) -> int:
    """Removes all turns of the session with their messages, and returns their number. Refuses if a turn is still running: stop
    it first."""
    turns, endings = schema.turns, schema.endings
    question = select(turns.c.id, endings.c.ending).outerjoin(endings, endings.c.turn_id == turns.c.id)
    rows = await database.fetch(question.where(turns.c.session_id == session_id))
    if any(row.ending is None for row in rows):
        raise RequestError("the session is still being answered; stop it, or wait for its end", code="session_busy", status=409)
    return await _remove_all(database, [row.id for row in rows])


async def _remove_all(database: Database, turns: Sequence[str]) -> int:
    """Removes these turns and the messages that only they contain, and returns their number. Turns that count for a key's
    budget are refused."""
    done = Pruned()
    for start in range(0, len(turns), TURNS_PER_TRANSACTION):
        some = turns[start : start + TURNS_PER_TRANSACTION]
        await _check_budgets(database, schema.turns.c.id.in_(some), done)
        await _remove(database, some, None, done)
    await _sweep(database)
    return done.turns


async def size(database: Database) -> int:
    """Bytes of the contents that depend on turns."""
    total = 0
    for table, columns in (
        (schema.messages, ("body",)),
        (schema.contents, ("body",)),
        (schema.pieces, ()),
        (schema.turns, ()),
        (schema.endings, ("response", "verdicts", "more")),
        (schema.texts, ("body",)),
        (schema.frames, ("body",)),
        (schema.steps, ("body",)),
    ):
        lengths = sum((func.coalesce(func.sum(func.length(table.c[name])), 0) for name in columns), start=func.count() * 200)
        total += int((await database.fetch(select(lengths).select_from(table)))[0][0])
    return total


async def _check_budgets(database: Database, which: ColumnElement[bool], done: Pruned) -> None:
    keys = await StoredKeys(database).charged(which)
    if keys:
        names = ", ".join(map(repr, keys))
        first = f"{done.turns} turns were removed, then pruning stopped" if done.turns else "nothing was removed"
        raise RequestError(
            f"{first}: the next turns count for the budgets of valid keys ({names}), which could then be spent again; "
            "remove only turns that are older than the budget periods, revoke these keys, or add --forget-spending"
        )


async def _oldest(database: Database, limit: int, before: float | None = None) -> list[str]:
    turns, endings = schema.turns, schema.endings
    question = select(turns.c.id).join(endings, endings.c.turn_id == turns.c.id).order_by(turns.c.started).limit(limit)
    if before is not None:
        question = question.where(turns.c.started < before)
    return [row.id for row in await database.fetch(question)]


async def _remove(database: Database, turns: Sequence[str], archive: Path | None, done: Pruned) -> None:
    if archive is not None:
        done.archived += await _archive(database, turns, archive)

    def remove(connection: Connection) -> None:
        _subtract(connection, turns)
        for table, column in (
            (schema.chunks, "stream_id"),
            (schema.streams, "id"),
            (schema.frames, "turn_id"),
            (schema.steps, "turn_id"),
            (schema.texts, "turn_id"),
            (schema.answers, "turn_id"),
            (schema.withdrawals, "turn_id"),
            (schema.endings, "turn_id"),
            (schema.turns, "id"),
        ):
            connection.execute(delete(table).where(table.c[column].in_(turns)))

    await database.write(remove)
    done.turns += len(turns)


def _subtract(connection: Connection, turns: Sequence[str]) -> None:
    """Takes the turns out of the totals of their sessions, and out of what their keys spent. The rows are changed in the order of their
    keys, as writers lock them."""
    table, endings, sessions, spending = schema.turns, schema.endings, schema.sessions, schema.spending
    gone = table.c.id.in_(turns)
    sums = {name: func.sum(endings.c[name]) for name in ("input_tokens", "output_tokens", "cost")}
    counts = select(table.c.session_id, func.count().label("turns"), *(total.label(name) for name, total in sums.items()))
    counts = counts.outerjoin_from(table, endings, endings.c.turn_id == table.c.id).where(gone, ~table.c.probe)
    for row in connection.execute(counts.group_by(table.c.session_id).order_by(table.c.session_id)).all():
        stays = (table.c.session_id == row.session_id, ~table.c.probe, ~gone)
        newest = select(table.c.started).where(*stays).order_by(table.c.id.desc()).limit(1).scalar_subquery()
        titled = select(table.c.title).where(*stays, table.c.title != "").order_by(table.c.id).limit(1).scalar_subquery()
        left: SqlRow = {
            name: sessions.c[name] - (getattr(row, name) or 0) for name in ("turns", "input_tokens", "output_tokens", "cost")
        }
        left |= {"updated": func.coalesce(newest, 0.0), "title": func.coalesce(titled, "")}
        connection.execute(update(sessions).where(sessions.c.id == row.session_id).values(left))
    spent = [func.count().label("turns"), func.sum(TOKENS).label("tokens"), func.sum(COST).label("cost")]
    for size in (TOTAL, MINUTE, DAY):
        at = period_of(table.c.started, size)
        used = select(table.c.caller, at, *spent).join(endings, endings.c.turn_id == table.c.id).where(gone)
        used = used.where(table.c.caller.in_(select(schema.keys.c.name))).group_by(table.c.caller, at)
        for row in connection.execute(used.order_by(table.c.caller, at)).all():
            place = (spending.c.caller == row.caller, spending.c.size == size, spending.c.at == row.at)
            less = {name: spending.c[name] - getattr(row, name) for name in ("turns", "tokens", "cost")}
            connection.execute(update(spending).where(*place).values(less))


async def _archive(database: Database, turns: Sequence[str], archive: Path) -> int:
    """Appends the turns to the archive and syncs it to disk."""
    queries = Queries(database)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
        for turn_id in turns:
            turn = await queries.turn(turn_id)
            if turn is not None:
                file.write(archive_line(turn, await queries.raw(turn.id)))
        file.flush()
        os.fsync(file.fileno())
    return len(turns)


async def _sweep(database: Database) -> None:
    """Deletes messages and contents that no turn uses. It excludes other writers, and a new epoch makes them discard what they remember."""
    epochs = schema.epochs

    def sweep(connection: Connection) -> None:
        for statement in _UNUSED:
            connection.execute(statement)
        number = connection.execute(select(func.coalesce(func.max(epochs.c.number), 0))).scalar_one()
        connection.execute(delete(epochs))
        connection.execute(insert(epochs), {"number": number + 1, "at": time.time()})

    await database.write(sweep, alone=True)
