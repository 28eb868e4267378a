"""Fills a store with turns of the past, by bulk statements: a million in a minute or two, on SQLite or PostgreSQL.

The turns are of the kind that makes queries slow: nearly all are of one caller, one conversation in ten is the same, one upstream
gives the same id to one response in ten, and one session has a twentieth of all turns.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it ships no types

from streamglot.store.contents import HOLE, hashed, packed
from streamglot.store.search import scope_of

SECONDS_PER_TURN = 30.0
"""A million turns are a year."""
ROWS = 20_000
"""Turns per statement."""
PER_SESSION = 4
SAME = b"the same conversation"[:20]
SAME_ID = "resp_same"
SETTINGS = b'{"model":"small","messages":[],"stream":true}'
SETTINGS_HASH = hashed(SETTINGS)
LARGE = "ses_large"
"""The session with a twentieth of all turns."""
NAMES = {
    "sessions": (
        "id",
        "caller",
        "name",
        "directory",
        "started",
        "turns",
        "updated",
        "title",
        "input_tokens",
        "output_tokens",
        "cost",
    ),
    "contents": ("hash", "body"),
    "pieces": ("owner", "number", "content"),
    "messages": ("hash", "body"),
    "nodes": ("hash", "parent", "message", "depth"),
    "turns": (
        *("id", "session_id", "caller", "process", "request_id", "started", "dialect", "model", "stream", "probe", "title"),
        *("settings", "node", "prompt_hash", "response_id", "retrievable", "named"),
    ),
    "endings": (
        *("turn_id", "ended", "ending", "response_id", "response", "tip", "upstream", "upstream_dialect", "upstream_model"),
        *("input_tokens", "output_tokens", "cost", "timings", "verdicts", "more", "session_id", "caller", "named"),
    ),
    "answers": ("turn_id", "choice", "message", "echo_session"),
    "texts": ("turn_id", "body", "scope"),
}
SPENDING = (
    "INSERT INTO spending SELECT turns.caller, {size}, {at}, count(*), sum(endings.input_tokens + endings.output_tokens), "
    "sum(endings.cost) FROM turns JOIN endings ON endings.turn_id = turns.id "
    "WHERE turns.caller IN (SELECT name FROM keys) GROUP BY 1, 3"
)
PERIODS = {
    0: "0",
    60: "CAST(floor(turns.started / 60) AS BIGINT) * 60",
    86400: "CAST(floor(turns.started / 86400) AS BIGINT) * 86400",
}

Tables = dict[str, list[tuple[Any, ...]]]


def fill(url: str, first: int, last: int, caller: str = "", end: float | None = None) -> None:
    """Adds the turns ``first`` to ``last`` - 1 to the store at this address. All of them started before ``end``, which is now."""
    end = end or time.time() - 3600
    batches = (
        turns(number, min(number + ROWS, last), caller, end - (last - first) * SECONDS_PER_TURN, first)
        for number in range(first, last, ROWS)
    )
    if url.startswith("sqlite"):
        _fill_sqlite(url.removeprefix("sqlite:///"), batches)
    else:
        asyncio.run(_fill_postgresql(url, batches))


def turns(first: int, last: int, caller: str, begin: float, offset: int) -> Tables:
    """The rows of these turns, by table."""
    found: Tables = {name: [] for name in NAMES}
    found["contents"] += [(SETTINGS_HASH, SETTINGS)] if first == offset else []
    draw = random.Random(first)
    for number in range(first, last):
        started = begin + (number - offset) * SECONDS_PER_TURN
        id = f"turn_{int(started * 1e6):014x}{draw.getrandbits(72):018x}"
        same, large, other = number % 10 == 3, number % 20 == 5, number % 10 == 7
        of = f"other-{number % 50}" if other else caller
        session = LARGE if large else f"ses_{number // PER_SESSION:014x}{other:018x}"
        asked, tip = (SAME, SAME + b"!") if same else (draw.randbytes(20), draw.randbytes(20))
        question, answer, node = draw.randbytes(20), draw.randbytes(20), draw.randbytes(20)
        response = SAME_ID if number % 10 == 4 else f"resp_{number:012x}"
        ending = "error" if number % 20 == 9 else "end"
        upstream, model = ("seldom", "large") if number % 100 == 50 else ("usual", "small")
        words = f"question {number} and a common answer w{number}" + (" seldom" if number % 50 == 0 else "")
        title = f"question {number}"
        if large or number % PER_SESSION == 0 or other:
            totals = (title, PER_SESSION * 1000, PER_SESSION * 200, PER_SESSION * 0.001)
            found["sessions"].append((session, of, "", "", started, PER_SESSION, started, *totals))
        asks = f'"{title}: why is that so?"'
        if number % 10 == 6:  # a long text is stored apart
            piece = draw.randbytes(20)
            found["contents"].append((piece, packed(asks.encode())))
            found["pieces"].append((question, 0, piece))
            asks = HOLE
        found["messages"] += [
            (question, f'{{"role":"user","parts":[{{"type":"text","text":{asks}}}]}}'),
            (answer, f'{{"role":"assistant","parts":[{{"type":"text","text":"{words}: because it is."}}]}}'),
        ]
        found["nodes"].append((node, None, question, 0))
        found["turns"].append(
            (
                *(id, session, of, "gone", f"req_{number}", started, "openai_chat", model, True, False, title),
                *(SETTINGS_HASH, node, asked, "", True, False),
            )
        )
        found["endings"].append(
            (
                *(id, started + 2, ending, response, f'{{"id":"{response}","model":"small","choices":[]}}', tip),
                *(upstream, "openai_chat", model, 1000, 200, 0.001, "{}", "[]", "{}", session, of, False),
            )
        )
        found["answers"].append((id, 0, answer, session if number % 1000 == 5 else None))
        found["texts"].append((id, words, scope_of(of)))
    return found


def _fill_sqlite(path: str, batches: Iterator[Tables]) -> None:
    """Without indexes and triggers, which are made again at the end."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        execute = connection.execute
        execute("PRAGMA synchronous = OFF")
        execute("PRAGMA cache_size = -200000")
        tables = ", ".join(f"'{name}'" for name in NAMES)
        aside = execute(
            f"SELECT type, name, sql FROM sqlite_master WHERE type IN ('index', 'trigger') AND sql IS NOT NULL AND tbl_name IN ({tables})"
        ).fetchall()
        execute("BEGIN")
        for kind, name, _ in aside:
            execute(f"DROP {kind} {name}")
        for batch in batches:
            for name, rows in batch.items():
                marks = ", ".join("?" * len(NAMES[name]))
                connection.executemany(f"INSERT OR IGNORE INTO {name} ({', '.join(NAMES[name])}) VALUES ({marks})", rows)
        execute(
            "INSERT INTO search(rowid, body, scope) SELECT number, body, scope FROM texts WHERE number > (SELECT number FROM indexed)"
        )
        execute("UPDATE indexed SET number = (SELECT max(number) FROM texts)")
        for _, _, sql in aside:
            execute(sql)
        execute("DELETE FROM spending")
        for size, at in PERIODS.items():
            execute(SPENDING.format(size=size, at=at))
        execute("COMMIT")
        execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def _fill_postgresql(url: str, batches: Iterator[Tables]) -> None:
    connection = await asyncpg.connect(url)
    tables = [*NAMES]
    aside = await connection.fetch(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = ANY($1) AND indexname NOT IN (SELECT conname FROM pg_constraint)",
        tables,
    )
    try:
        async with connection.transaction():
            for name in tables:
                await connection.execute(f"ALTER TABLE {name} DISABLE TRIGGER USER")
            for row in aside:
                await connection.execute(f"DROP INDEX {row['indexname']}")
            known: set[str] = {row["id"] for row in await connection.fetch("SELECT id FROM sessions WHERE id = $1", LARGE)}
            for batch in batches:
                fresh = {row[0]: row for row in reversed(batch["sessions"]) if row[0] not in known}
                known.update(name for name in fresh if name == LARGE)
                batch["sessions"] = list(fresh.values())
                for name, rows in batch.items():
                    await connection.copy_records_to_table(name, records=rows, columns=NAMES[name])
            await connection.execute("SET maintenance_work_mem = '1GB'")
            for row in aside:
                await connection.execute(row["indexdef"])
            for name in tables:
                await connection.execute(f"ALTER TABLE {name} ENABLE TRIGGER USER")
            await connection.execute("DELETE FROM spending")
            for size, at in PERIODS.items():
                await connection.execute(SPENDING.format(size=size, at=at))
    finally:
        await connection.close()
