"""Every query on the way of a request, and of the first pages of lists, reads a bounded number of rows of a filled database.

``use_everything`` calls each of them, and what it executes is explained by the database. The queries are found in the source: one that
is neither called there nor exempt fails a test.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import pytest
from bench.filled import LARGE, SAME, SAME_ID, fill
from msgspec.structs import replace

import streamglot.store
from store.servers import Postgres
from store.tables import add
from store.turns import answer, ask, assistant, asynchronous, begin, take, thought, user
from streamglot.store import Database, Filter, Finished, Session, SessionHints, Store, StoreSettings
from streamglot.store.approvals import ClosedApproval, OpenedApproval
from streamglot.store.conversation import Conversation, Prefix
from streamglot.store.database import schema
from streamglot.store.database.postgres import PLANNING, PostgresConnection
from streamglot.store.database.sql import for_postgres, for_sqlite
from streamglot.store.database.sqlite import SqliteConnection
from streamglot.store.keys import DAY
from streamglot.store.processes import Process
from streamglot.store.queries import cursor_of

FOLDER = Path(streamglot.store.__file__).parent
MODULES = {path: path.stem for path in FOLDER.glob("*.py")} | {
    path: f"streams_{path.stem}" for path in FOLDER.glob("streams/*.py")
}
TURNS = 60_000
MOST_ROWS = 2_100
"""Rows that one query may read. The largest session, the repeated conversation and the repeated response have at least 3,000; a budget has up to
1,440 minutes of its first day, and a search reads two blocks of texts."""
MOST_STEPS = 60_000
"""Steps of SQLite's virtual machine that one query may take. To read all turns takes at least 100,000."""
SMALL = ("keys", "epochs", "indexed", "running", "schema_version", "history", "streams_asked_for")
"""What may be read whole: tables that do not grow with the number of turns, the messages of one conversation, and the index of those
streams that a reader waits for."""
EXEMPT = {
    "queries.last_answered": "for a person who waits on the command line",
    "queries.sessions_in": "the same",
    "queries.count_turns": "the same",
    "queries._like": "the same",
    "retention": "removes turns, and reads all that it removes",
    "queries.rename_session": "writes one row",
    "queries.rename": "the same, in its transaction",
    "keys.add": "adds up once what earlier turns of the new key used",
    "keys._add": "the same, in its transaction",
    "keys.charged": "a part of pruning",
}

pytestmark = pytest.mark.usefixtures("patient_lookups", "no_periodic_steps")


class Statements:
    """The statements that were executed, and the functions of the store that did it."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.callers: set[str] = set()

    def note(self, sql: str, values: Any) -> None:
        if "pg_catalog" in sql or "sqlite_master" in sql or "schema_version" in sql or sql == "SELECT 1 FROM turns LIMIT 1":
            return
        if re.match(r"\s*(SELECT|UPDATE|DELETE|WITH|INSERT)", sql) and not re.search(r"\bVALUES\b|\bunnest\(|set_config", sql):
            self.found.setdefault(sql, values)

    def note_callers(self) -> None:
        frame = sys._getframe(2)
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path in MODULES:
                self.callers.add(f"{MODULES[path]}.{frame.f_code.co_name}")
            frame = frame.f_back  # type: ignore[assignment]  # None at the end


@contextmanager
def noted(patch: pytest.MonkeyPatch) -> Iterator[Statements]:
    """Notes all statements of stores that are opened within."""
    statements = Statements()

    def noting(method: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            statements.note_callers()
            return method(*args, **named)

        return call

    for name in ("fetch", "write", "write_each", "execute"):
        patch.setattr(Database, name, noting(getattr(Database, name)))
    for kind in (SqliteConnection, PostgresConnection):
        for name in ("fetch", "execute"):
            patch.setattr(kind, name, _noted(statements, getattr(kind, name)))
        patch.setattr(kind, "execute_each", noting(kind.execute_each))
    yield statements


def _noted(statements: Statements, method: Any) -> Any:
    async def call(connection: Any, sql: str, /, **values: Any) -> Any:
        statements.note_callers()
        if connection.is_sqlite:
            statements.note(*for_sqlite(sql, values))
        else:
            statement, names = for_postgres(sql)
            statements.note(statement, [values[name] for name in names])
        return await method(connection, sql, **values)

    return call


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a store that holds a year of one caller's turns."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('filled') / 'store.db'}"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        url = asyncio.run(server.database())
    asyncio.run(_prepare(url))
    fill(url, 0, TURNS, "me")
    asyncio.run(_add_others(url))
    return url


async def _prepare(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    await store.keys.add("me", budget_cost=0.5, budget_seconds=3 * DAY + 12_345.0)
    await store.keys.add("total", budget_tokens=5)
    await store.close()


async def _add_others(url: str) -> None:
    """Many rows in the other tables."""
    database = await Database.open(url)
    long_ago, ids = time.time() - 60.0, [f"old_{number:05}" for number in range(3_000)]
    rows: dict[str, list[dict[str, Any]]] = {
        "processes": [
            {"id": id, "place": "x", "pid": 1, "born": "1", "started": 1.0, "seen": 1.0, "recovered": 2.0} for id in ids
        ],
        "states": [{"session_id": id, "provider": "p", "name": "n", "value": "1", "at": 1.0} for id in ids],
        "withdrawals": [{"turn_id": id, "at": 1.0} for id in ids],
        "frames": [{"turn_id": id, "number": 0, "body": b"\x90"} for id in ids],
        "steps": [{"turn_id": id, "number": 0, "body": "{}"} for id in ids],
        "chunks": [{"stream_id": id, "number": 1, "last": 1, "body": b"\x90"} for id in ids],
        "streams": [
            {"id": id, "caller": "me", "started": 1.0, "seen": long_ago, "last": 1, "stopped": False, "head": ""}
            for id in ids[1:]
        ],
        "approvals": [
            {"id": id, "process": "x", "caller": "me", "suspended": True, "expires": long_ago + 1e6, "body": "{}"} for id in ids
        ],
    }
    rows["streams"].append({**rows["streams"][0], "id": ids[0], "seen": 1.0})  # it has expired
    for name, some in rows.items():
        await add(database, name, *some)
    await database.close()


async def use_everything(url: str) -> None:
    """Calls every query on the way of a request, and every list with each of its filters."""
    await use_sessions(url)
    store = await Store.open(StoreSettings(url=url, raw=True))
    await use_streams(url, store)
    await use_approvals(store)
    await use_lists(store)
    await store.keys.changes()
    await store.keys.find("sg-none")
    await store.keys.revoke("nobody")
    assert {over.key.name for over in await store.keys.budget_exceeded()} == {"me"}
    assert (await store.keys.spent((await store.keys.all())[0])).turns > 1000
    await store.process.recover()
    dead = Process(store.database)
    await dead.seen()
    turn = await begin(store, ask(user("of a process that dies")), "me")
    await store.writer.flush()
    await store.database.execute("UPDATE running SET process = :dead WHERE turn_id = :turn", dead=dead.id, turn=turn.id)
    await dead.end()
    far = {"id": "far", "place": "elsewhere", "pid": 1, "born": "", "started": 1.0, "seen": 1.0}
    elsewhere = await Database.open(url)  # a process sees only what others write
    await add(elsewhere, "processes", far)
    await elsewhere.close()
    assert await store.process.recover() == 0
    await store.queries.indexing.catch_up()
    await store.close()


async def use_sessions(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    long = "an answer of some length that can be edited. " * 100
    signed = answer(thought("hm", "signature"), long, ident="resp_mine")
    first = await begin(store, ask(user("first")), "me", response_id="resp_mine")
    first.finish(Finished(ending="end", response=signed, upstream="usual"))
    await take(store, ask(user("named")), signed, caller="me", name="name")
    await store.writer.flush()
    assert await store.sessions.previous("me", "resp_mine")
    await store.close()

    store = await Store.open(StoreSettings(url=url))  # it has none of them in memory
    said, edited = assistant(long), assistant(long.replace("length", "size", 1))
    for messages in ((user("first"), said, user("b")), (user("first"), edited, user("b")), (user("else"), edited, user("b"))):
        session = await store.find_session(SessionHints(caller="me"), ask(*messages))
        assert (session.id == first.session.id) == (messages[0] == user("first"))
        session = await store.find_session(SessionHints(caller="me", name=first.session.id), ask(*messages))
        assert session.id == first.session.id
        await store.find_session(SessionHints(caller="me", name="name"), ask(*messages))
    same = Conversation(b"x", [Prefix(SAME, SAME + b"!", b"because")] * 8)
    assert await store.sessions._by_conversation(Session(id="", caller="me"), same)
    same = Conversation(b"x", [Prefix(SAME, bytes([number]), b"because") for number in range(8)])
    assert await store.sessions._by_conversation(Session(id="", caller="me"), same) is None
    for response in ("resp_mine", SAME_ID):
        session = await store.find_session(SessionHints(caller="me", response_id=response), ask(user("x")))
        assert not session.new
        assert await store.history(session)
        assert len(await store.answers(session)) == (response == "resp_mine")
        for caller in ("me", None):
            assert await store.responses.find(response, caller)
    assert await store.responses.withdraw(SAME_ID, "me")
    assert (await store.last_turn(Session(id=LARGE, caller="me")))[1]
    assert store.sessions.missed == 0
    await store.close()


async def use_streams(url: str, store: Store) -> None:
    def nothing() -> None: ...

    other = await Store.open(StoreSettings(url=url))
    await begin(store, ask(user("of another caller, in the same transaction")), "total", name="other")
    turn = await begin(store, ask(user("streamed")), "me", name="streamed")
    turn.frame("up", 0.0, b"x")
    turn.step(1, {"kind": "call"})
    assert await store.buffer.claim("claimed", "me", "")
    assert not await store.buffer.claim("old_00001", "me", "") or True
    store.buffer.open(turn.id, "me", nothing, nothing)
    store.buffer.append(turn.id, 1, 1, b"one")
    await store.writer.flush()
    assert await other.buffer.head(turn.id, "me") == ""
    read = aiter(other.buffer.read(turn.id, 0, "me"))
    assert (await anext(read)).data == b"one"
    waiting = asyncio.ensure_future(anext(read))
    assert await other.buffer.stop(turn.id, "me")
    await other.buffer._produced(turn.id)  # type: ignore[attr-defined]  # what a reader asks when the producer is silent
    await asyncio.sleep(0)
    store.buffer.append(turn.id, 2, 2, b"two")
    await waiting
    store.buffer.end(turn.id)
    turn.finish(Finished(ending="end", response=answer("x"), upstream="usual"))
    await store.writer.flush()
    assert [chunk.data async for chunk in read] == []
    with pytest.raises(Exception, match="stream"):
        await other.buffer.head("turn_none", "me", wait=False)
    await other.buffer._has_ended(turn.id)  # type: ignore[attr-defined]  # what a reader asks that finds no stream
    store.buffer._expiry = 0.0  # type: ignore[attr-defined]
    await store.buffer.expire()
    assert len(await store.queries.raw(turn.id, "me")) == 1
    assert (await store.queries.raw_after(turn.id, "me", 0, 10)).found
    assert await store.queries.complete(turn.id, "me")
    await other.close()


async def use_approvals(store: Store) -> None:
    approvals, expires = store.approvals, time.time() + 60
    await approvals.write([OpenedApproval("q1", "me", expires, "{}"), OpenedApproval("q2", "me", expires, "{}")], [])
    assert await approvals.decide("q1", "{}")
    assert await approvals.decisions() == [("q1", "{}")]
    await approvals.write([], [ClosedApproval("q1", "{}"), ClosedApproval("q2", None)])
    assert await approvals.find("q1")
    await approvals.others()
    await approvals.suspend(OpenedApproval("q3", "me", expires, "{}"))
    assert await approvals.suspended(["q3"])
    assert await approvals.take(["q3"])
    await approvals.expire()


async def use_lists(store: Store) -> None:
    queries, now = store.queries, time.time()
    values: dict[str, tuple[Any, ...]] = {
        "caller": ("me", None, "other-7"),
        "session_id": (LARGE, "none"),
        "model": ("small", "large", "none"),
        "upstream": ("usual", "seldom", "none"),
        "ending": ("end", "error", "", "refusal"),
        "since": (now - 4 * DAY, now + DAY),
        "until": (now - 4 * DAY, 1.0),
        "search": ("common", "seldom", "absent", "w20", '"common answer"', "common -seldom"),
        "before": (),
        "limit": (10,),
    }
    assert set(values) == set(Filter.__struct_fields__), "a new filter needs a case"
    for caller in (None, "me"):
        for name, some in values.items():
            for value in some:
                which = Filter(caller=caller, limit=100)
                setattr(which, name, value)
                found = await queries.turns(which)
                if found:
                    await queries.turns(replace(which, before=found[-1].id))
                    await queries.turns(replace(which, before=cursor_of(found[-1])))
        assert len(await queries.sessions("other-7")) == 100
        sessions = await queries.sessions(caller)
        assert len(sessions) == 100
        assert await queries.sessions(caller, before=cursor_of(sessions[-1]))
        assert await queries.sessions(caller, before=sessions[-1].id)
        assert await queries.session(LARGE, caller)
        assert await queries.last_session(caller)
        assert await queries.last_session(caller, "/somewhere") is None
    [turn] = await queries.turns(Filter(caller="me", limit=1))
    assert await queries.turn(turn.id, "me")
    assert await queries.turn(SAME_ID, None)
    assert await queries.turn("none", "me") is None
    await queries.turns(Filter(search="common", before=f"turn_0{cursor_of(turn)[6:]}"))


@asynchronous
async def test_every_query_reads_a_bounded_number_of_rows(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamglot.store.sessions, "OTHER_PROCESS_SECONDS", 0.0)
    with noted(monkeypatch) as statements:
        await use_everything(filled)
    assert len(statements.found) > 60
    explained = _explained_by_sqlite if filled.startswith("sqlite") else _explained_by_postgresql
    faults = [f"{fault}\n{sql}" for sql, fault in await explained(filled, statements.found)]
    assert not faults, "\n\n".join(faults)
    missing = queries_in_source() - statements.callers - exempt()
    # for the other database
    missing -= (
        {"search._newest", "writer._lock_totals"} if filled.startswith("sqlite") else {"search.catch_up", "search._index_some"}
    )
    assert not missing, f"these queries have no case in use_everything: {sorted(missing)}"


def test_no_exemption_is_stale() -> None:
    found = queries_in_source()
    assert EXEMPT.keys() <= found | {name.partition(".")[0] for name in found}


def test_every_repeated_query_is_known() -> None:
    """Those that a ``Watch`` repeats; ``use_everything`` lets each of them look."""
    watches = {name for path, name in MODULES.items() if re.search(r"= Watch\(", path.read_text())}
    assert watches == {"approvals", "keys", "processes", "streams_database"}


def queries_in_source() -> set[str]:
    """The functions of the store that query the database: module and name."""
    found: set[str] = set()
    for path, name in MODULES.items():
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Attribute) and node.attr in (
                        "fetch",
                        "write",
                        "write_each",
                        "execute",
                        "execute_each",
                    ):
                        owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
                        if owner in ("database", "_database", "connection", "source"):
                            found.add(f"{name}.{function.name}")
    return found


def exempt() -> set[str]:
    return {name for name in queries_in_source() if name in EXEMPT or name.partition(".")[0] in EXEMPT}


async def _explained_by_sqlite(url: str, statements: dict[str, Any]) -> list[tuple[str, str]]:
    faults: list[tuple[str, str]] = []
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        for sql, values in statements.items():
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
            bounded = re.search(r"\(\s*SELECT.*LIMIT", sql, re.DOTALL) is not None
            for line in plan:
                scanned = re.match(r"SCAN (\w+)(?! VIRTUAL)", line)
                tables = {*schema.tables(), "search"}
                is_small = line.split()[-1] in SMALL or "VIRTUAL TABLE" in line
                if scanned and scanned[1] in tables - {*SMALL} and not is_small and ("USING" not in line or " LIMIT" not in sql):
                    faults.append((sql, f"reads the whole table: {line}"))
                if "USE TEMP B-TREE FOR ORDER BY" in line and not bounded and not _is_of_small(sql):
                    faults.append((sql, f"sorts without a bound: {plan}"))
            steps = 0

            def count() -> None:
                nonlocal steps
                steps += 1

            connection.execute("BEGIN")
            connection.set_progress_handler(count, 100)
            connection.execute(sql, values).fetchall()
            connection.set_progress_handler(None, 0)
            connection.execute("ROLLBACK")
            if steps * 100 > MOST_STEPS:
                faults.append((sql, f"takes {steps * 100} steps: {plan}"))
    return faults


def _is_of_small(sql: str) -> bool:
    """Whether the statement reads a table that stays small."""
    return re.search(rf"FROM ({'|'.join(SMALL)})\b", sql) is not None


async def _explained_by_postgresql(url: str, statements: dict[str, Any]) -> list[tuple[str, str]]:
    """Explains without statistics, and with them."""
    faults: list[tuple[str, str]] = []
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(PLANNING)
        for statistics in (False, True):
            if statistics:
                await connection.execute("ANALYZE")
            for sql, values in statements.items():
                transaction = connection.transaction()
                await transaction.start()
                try:
                    [[plan]] = await connection.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", *(values or ()))
                finally:
                    await transaction.rollback()
                tree = json.loads(plan)[0]["Plan"]
                faults += [(sql, f"{fault}, statistics {statistics}\n{_shown(tree)}") for fault in _faults(tree)]
    finally:
        await connection.close()
    return faults


def _faults(node: dict[str, Any], limited: bool = False) -> Iterator[str]:
    kind, table = node["Node Type"], node.get("Relation Name", "")
    grows = table and table not in SMALL
    if kind == "Seq Scan" and grows and node["Actual Loops"]:
        yield f"reads the whole table {table}"
    read = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)) * node[
        "Actual Loops"
    ]
    if grows and read > MOST_ROWS and "search" not in str(node.get("Index Name", "")):
        yield f"reads {read} rows of {table}"
    if kind in ("Sort", "Incremental Sort") and node["Plans"][0]["Actual Rows"] > MOST_ROWS:
        yield f"sorts {node['Plans'][0]['Actual Rows']} rows"
    for inner in node.get("Plans", ()):
        yield from _faults(inner, limited or kind == "Limit")


def _shown(node: dict[str, Any], depth: int = 0) -> str:
    facts = (node["Node Type"], node.get("Relation Name", ""), node.get("Index Name", ""), f"{node['Actual Rows']} rows")
    lines = ["  " * depth + " ".join(filter(None, facts))]
    return "\n".join([*lines, *(_shown(inner, depth + 1) for inner in node.get("Plans", ()))])
