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

from ..errors import RequestError
from .database import Database, StoreUnavailable
from .database.sql import Connection, SqlValue
from .export import archive_line
from .keys import COST, DAY, MINUTE, TOKENS, TOTAL, StoredKeys, period_of
from .queries import Queries

TURNS_PER_TRANSACTION: Final = 500
"""Turns per transaction, so that others can write in between."""
_UNUSED_NODES: Final = (
    "DELETE FROM nodes WHERE hash NOT IN (WITH RECURSIVE used(hash) AS ("
    "SELECT node FROM turns WHERE node IS NOT NULL "
    "UNION SELECT upstream_node FROM endings WHERE upstream_node IS NOT NULL "
    "UNION SELECT nodes.parent FROM nodes JOIN used ON nodes.hash = used.hash WHERE nodes.parent IS NOT NULL"
    ") SELECT hash FROM used)"
)
_UNUSED_MESSAGES: Final = (
    "DELETE FROM messages WHERE hash NOT IN (SELECT message FROM nodes) AND hash NOT IN (SELECT message FROM answers)"
)
_UNUSED_PIECES: Final = (
    "DELETE FROM pieces WHERE owner NOT IN (SELECT hash FROM messages) "
    "AND owner NOT IN (SELECT settings FROM turns WHERE settings IS NOT NULL) "
    "AND owner NOT IN (SELECT upstream_settings FROM endings WHERE upstream_settings IS NOT NULL)"
)
_UNUSED_CONTENTS: Final = (
    "DELETE FROM contents WHERE hash NOT IN (SELECT content FROM pieces) "
    "AND hash NOT IN (SELECT settings FROM turns WHERE settings IS NOT NULL) "
    "AND hash NOT IN (SELECT upstream_settings FROM endings WHERE upstream_settings IS NOT NULL)"
)
_UNUSED_SESSIONS: Final = "DELETE FROM sessions WHERE id NOT IN (SELECT session_id FROM turns)"
_UNUSED_STATES: Final = "DELETE FROM states WHERE session_id NOT IN (SELECT id FROM sessions)"
_UNUSED: Final = (_UNUSED_NODES, _UNUSED_MESSAGES, _UNUSED_PIECES, _UNUSED_CONTENTS, _UNUSED_SESSIONS, _UNUSED_STATES)
"""In this order: each looks at what the ones before it left."""
_SIZES: Final = {
    "messages": ("body",),
    "contents": ("body",),
    "pieces": (),
    "turns": (),
    "endings": ("response", "verdicts", "more"),
    "texts": ("body",),
    "frames": ("body",),
    "steps": ("body",),
}
"""The tables that grow with turns, with their columns of contents."""
ROW_BYTES: Final = 200
"""Bytes of a row without its contents, approximately."""
_OF_TURNS: Final = {
    "chunks": "stream_id",
    "streams": "id",
    "frames": "turn_id",
    "steps": "turn_id",
    "texts": "turn_id",
    "answers": "turn_id",
    "withdrawals": "turn_id",
    "endings": "turn_id",
    "turns": "id",
}
"""The tables that have rows of turns, and the column that names the turn."""
_OLDEST: Final = (
    "SELECT turns.id FROM turns JOIN endings ON endings.turn_id = turns.id {which} ORDER BY turns.started LIMIT {limit}"
)
_OF_SESSION: Final = """
    SELECT turns.id, endings.ending FROM turns LEFT JOIN endings ON endings.turn_id = turns.id WHERE turns.session_id = :session_id
"""
_TOTALS: Final = """
    SELECT turns.session_id, count(*) AS turns, sum(endings.input_tokens) AS input_tokens, sum(endings.output_tokens) AS output_tokens,
        sum(endings.cost) AS cost
    FROM turns LEFT JOIN endings ON endings.turn_id = turns.id WHERE turns.id IN :turns AND NOT turns.probe
    GROUP BY turns.session_id ORDER BY turns.session_id
"""
_LEFT: Final = """
    UPDATE sessions SET turns = turns - :less_turns, input_tokens = input_tokens - :less_input, output_tokens = output_tokens - :less_output,
        cost = cost - :less_cost,
        updated = coalesce((SELECT started FROM turns WHERE {stay} ORDER BY turns.id DESC LIMIT 1), 0.0),
        title = coalesce((SELECT title FROM turns WHERE {stay} AND turns.title <> '' ORDER BY turns.id LIMIT 1), '')
    WHERE id = :session_id
""".format(stay="turns.session_id = :session_id AND NOT turns.probe AND turns.id NOT IN :turns")
_SPENT: Final = f"""
    SELECT turns.caller, {{at}} AS at, count(*) AS turns, sum({TOKENS}) AS tokens, sum({COST}) AS cost
    FROM turns JOIN endings ON endings.turn_id = turns.id
    WHERE turns.id IN :turns AND turns.caller IN (SELECT name FROM keys) GROUP BY turns.caller, 2 ORDER BY turns.caller, 2
"""
_NOT_SPENT: Final = """
    UPDATE spending SET turns = turns - :turns, tokens = tokens - :tokens, cost = cost - :cost
    WHERE caller = :caller AND size = :size AND at = :at
"""
_EPOCH: Final = "INSERT INTO epochs (number, at) VALUES (:number, :at)"


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
            await _check_budgets(database, done, "turns.started < :before", before=before)
        while turns := await _oldest(database, TURNS_PER_TRANSACTION, before):
            await _remove(database, turns, archive, done)
        await _sweep(database)
        done.bytes_after = await size(database)
    while max_bytes is not None and done.bytes_after > max_bytes:
        count = (await database.fetch("SELECT count(*) AS turns FROM turns"))[0].turns
        share = 1 - max_bytes / done.bytes_after
        turns = await _oldest(database, min(TURNS_PER_TRANSACTION, max(1, int(count * share / 2))))
        if not turns:
            break
        if not forget_spending:
            await _check_budgets(database, done, "turns.id IN :turns", turns=turns)
        await _remove(database, turns, archive, done)
        await _sweep(database)
        done.bytes_after = await size(database)
    with suppress(StoreUnavailable):  # another process holds the lock: the next pruning shrinks the file
        await database.release_space()
    return done


async def delete_session(database: Database, session_id: str) -> int:
    """Removes all turns of the session with their messages, and returns their number. Refuses if a turn is still running: stop
    it first."""
    rows = await database.fetch(_OF_SESSION, session_id=session_id)
    if any(row.ending is None for row in rows):
        raise RequestError("the session is still being answered; stop it, or wait for its end", code="session_busy", status=409)
    return await _remove_all(database, [row.id for row in rows])


async def _remove_all(database: Database, turns: Sequence[str]) -> int:
    """Removes these turns and the messages that only they contain, and returns their number. Turns that count for a key's
    budget are refused."""
    done = Pruned()
    for start in range(0, len(turns), TURNS_PER_TRANSACTION):
        some = turns[start : start + TURNS_PER_TRANSACTION]
        await _check_budgets(database, done, "turns.id IN :turns", turns=some)
        await _remove(database, some, None, done)
    await _sweep(database)
    return done.turns


async def size(database: Database) -> int:
    """Bytes of the contents that depend on turns."""
    total = 0
    for table, columns in _SIZES.items():
        lengths = "".join(f" + coalesce(sum(length({name})), 0)" for name in columns)
        total += int((await database.fetch(f"SELECT count(*) * {ROW_BYTES}{lengths} AS bytes FROM {table}"))[0].bytes)
    return total


async def _check_budgets(database: Database, done: Pruned, which: str, **values: SqlValue) -> None:
    keys = await StoredKeys(database).charged(which, **values)
    if keys:
        names = ", ".join(map(repr, keys))
        first = f"{done.turns} turns were removed, then pruning stopped" if done.turns else "nothing was removed"
        raise RequestError(
            f"{first}: the next turns count for the budgets of valid keys ({names}), which could then be spent again; "
            "remove only turns that are older than the budget periods, revoke these keys, or add --forget-spending"
        )


async def _oldest(database: Database, limit: int, before: float | None = None) -> list[str]:
    question = _OLDEST.format(which="WHERE turns.started < :before" if before is not None else "", limit=int(limit))
    return [row.id for row in await database.fetch(question, before=before)]


async def _remove(database: Database, turns: Sequence[str], archive: Path | None, done: Pruned) -> None:
    if archive is not None:
        done.archived += await _archive(database, turns, archive)

    async def remove(connection: Connection) -> None:
        await _subtract(connection, list(turns))
        for table, column in _OF_TURNS.items():
            await connection.execute(f"DELETE FROM {table} WHERE {column} IN :turns", turns=list(turns))

    await database.write(remove)
    done.turns += len(turns)


async def _subtract(connection: Connection, turns: list[str]) -> None:
    """Takes the turns out of the totals of their sessions, and out of what their keys spent. The rows are changed in the order of their
    keys, as writers lock them."""
    for row in await connection.fetch(_TOTALS, turns=turns):
        await connection.execute(
            _LEFT,
            session_id=row.session_id,
            turns=turns,
            less_turns=row.turns,
            less_input=row.input_tokens or 0,
            less_output=row.output_tokens or 0,
            less_cost=row.cost or 0.0,
        )
    for size in (TOTAL, MINUTE, DAY):
        for row in await connection.fetch(_SPENT.format(at=period_of(size, connection.is_sqlite)), turns=turns):
            await connection.execute(
                _NOT_SPENT, caller=row.caller, size=size, at=row.at, turns=row.turns, tokens=int(row.tokens), cost=row.cost
            )


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

    async def sweep(connection: Connection) -> None:
        for statement in _UNUSED:
            await connection.execute(statement)
        [row] = await connection.fetch("SELECT coalesce(max(number), 0) AS number FROM epochs")
        await connection.execute("DELETE FROM epochs")
        await connection.execute(_EPOCH, number=row.number + 1, at=time.time())

    await database.write(sweep, alone=True)
