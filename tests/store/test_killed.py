"""Kill -9 in the middle of 200 turns: ended turns are complete, the others are interrupted, none exists twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import pytest
from msgspec import Struct

from store.child import STREAMS
from store.servers import Postgres
from store.tables import add
from store.turns import ask, asynchronous, begin, user
from streamglot.store import Filter, Finished, OpenedApproval, Store, StoreSettings, processes
from streamglot.store.database import WRITE_LOCK, schema
from waiting import until

pytestmark = pytest.mark.usefixtures("patient_writers")

ENDED = 300
"""Turns that have ended, and are in the database, when the process is killed."""

SILENT = "UPDATE processes SET place = 'elsewhere', seen = :seen WHERE id = :id"
"""Makes a process one of another machine that sent no heartbeat since then."""


class Seen(Struct):
    """What the process printed. ``started`` and ``ended`` are in the order of their commits, and ``starts`` and ``endings`` is how
    many of them the database has."""

    started: list[str]
    ended: list[str]
    hanging: set[str]
    starts: int = 0
    endings: int = 0
    rest: str = ""

    def take(self, text: str) -> None:
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            match line.split(" "):
                case ["started", turn]:
                    self.started.append(turn)
                case ["ended", turn]:
                    self.ended.append(turn)
                case ["hangs", turn]:
                    self.hanging.add(turn)
                case ["written", starts, endings]:
                    self.starts, self.endings = int(starts), int(endings)

    def enough(self) -> bool:
        hang = len(self.hanging) == STREAMS // 4 and self.hanging <= set(self.started[: self.starts])
        return hang and self.endings >= ENDED


def run_and_kill(url: str, log: Path) -> Seen:
    """Runs the child, and kills it when the database has enough of its turns."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    seen = Seen([], [], set())
    with log.open("w") as output, log.open() as printed:
        child = subprocess.Popen([sys.executable, "-m", "store.child", url], stdout=output, env=environment)

        def ready() -> bool:
            seen.take(printed.read())
            return child.poll() is not None or seen.enough()

        try:
            until(ready, lambda: f"{len(seen.hanging)} turns hang, and {seen.endings} endings are written")
            assert child.poll() is None
        finally:
            child.kill()
            child.wait()
        seen.take(printed.read())
    return seen


@pytest.mark.usefixtures("no_periodic_steps")
@asynchronous
async def test_kill_in_the_middle_of_200_turns(url: str, tmp_path: Path) -> None:
    living = await Store.open(StoreSettings(url=url))
    other = await begin(living, ask(user("of a process that lives")), name="other")
    await living.writer.flush()

    seen = run_and_kill(url, tmp_path / "log")
    store = await Store.open(StoreSettings(url=url))
    gone = "SELECT id FROM processes WHERE recovered IS NULL AND id NOT IN :alive"
    while await store.database.fetch(
        gone, alive=[living.process.id, store.process.id]
    ):  # PostgreSQL may still commit what the child had sent
        await store.process.recover()
    rows: dict[str, str] = {}
    before = ""
    while page := await store.queries.turns(Filter(limit=1000, before=before)):
        for turn in page:
            assert turn.id not in rows, "twice"
            rows[turn.id] = turn.ending
        before = page[-1].id
    committed, begun = seen.ended[: seen.endings], seen.started[: seen.starts]
    assert {rows.get(turn) for turn in committed} == {"end"}
    assert {rows.get(turn) for turn in seen.ended} <= {"end", "interrupted", None}
    assert {rows.get(turn) for turn in begun} == {"end", "interrupted"}
    assert {rows.get(turn) for turn in seen.hanging} == {"interrupted"}
    assert set(rows.values()) == {"end", "interrupted", ""}
    assert rows.pop(other.id) == "", "a process that lives was declared dead"
    assert set(rows) <= set(seen.started)

    shown = await store.queries.turn(committed[0])
    assert shown is not None
    assert shown.request is not None
    assert shown.response is not None
    assert shown.response.choices[0].text.startswith("answer")
    hanging = min(seen.hanging)
    cut = await store.queries.turn(hanging)
    assert cut is not None
    assert cut.error is not None
    assert (cut.error.code, cut.ending) == ("interrupted", "interrupted")
    assert cut.request is not None
    assert cut.request.messages[0].text.startswith("stream")
    complete = await store.queries.complete(hanging)
    assert complete is not None
    assert complete["error"]["code"] == "interrupted"
    assert await store.process.recover() == 0
    await store.close()
    other.finish(Finished(ending="end"))
    await living.close()


@pytest.mark.usefixtures("no_periodic_steps")
@asynchronous
async def test_a_late_ending_replaces_interrupted(url: str) -> None:
    """A process counted as dead because its heartbeats failed; the ending that it writes later wins."""
    one, two = await Store.open(StoreSettings(url=url)), await Store.open(StoreSettings(url=url))
    turn = await begin(one, ask(user("slow")))
    await one.writer.flush()
    await one.database.execute(SILENT, id=one.process.id, seen=time.time() - 3600)
    assert await two.process.recover() == 1
    assert (await two.queries.turns())[0].ending == "interrupted"
    assert len(await two.queries.turns(Filter(search="slow"))) == 1  # found by the question, although there is no answer
    turn.finish(Finished(ending="end"))
    await one.writer.flush()
    (only,) = await two.queries.turns()
    assert (only.ending, only.error) == ("end", None)
    await one.close()
    await two.close()


@pytest.mark.usefixtures("no_periodic_steps")
@asynchronous
async def test_a_process_that_was_declared_dead_lives_again_with_its_next_heartbeat(url: str) -> None:
    one, two = await Store.open(StoreSettings(url=url)), await Store.open(StoreSettings(url=url))
    question = OpenedApproval("q", "", time.time() + 3600, "{}")
    await begin(one, ask(user("before")))
    await one.writer.flush()
    await one.approvals.write([question], [])
    before = one.approvals.generation
    await one.database.execute(SILENT, id=one.process.id, seen=time.time() - 3600)
    assert await two.process.recover() == 1
    await two.approvals.expire()
    assert await two.approvals.others() == []

    await one.process.seen()
    assert one.approvals.generation > before, "its questions must be written again"
    await one.approvals.write([question], [])
    assert await two.approvals.others() == ["{}"]
    await begin(one, ask(user("after")))
    await one.writer.flush()
    assert await two.process.recover() == 0, "it is alive"
    await one.process.seen()
    assert one.approvals.generation == before + 1, "it was declared dead once"
    await one.database.execute(SILENT, id=one.process.id, seen=time.time() - 3600)
    assert await two.process.recover() == 1, "the turn that began after its return"
    await one.close()
    await two.close()


@pytest.mark.usefixtures("no_periodic_steps")
@asynchronous
async def test_a_message_that_cannot_be_read_is_left_out(url: str) -> None:
    body = "CAST(X'ff' AS TEXT)" if url.startswith("sqlite") else "'no message'"  # PostgreSQL refuses invalid text
    dead, living = await Store.open(StoreSettings(url=url)), await Store.open(StoreSettings(url=url))
    await begin(dead, ask(user("gone")), name="gone")
    await begin(dead, ask(user("found")), name="found")
    await dead.writer.flush()
    await dead.database.execute(f"UPDATE messages SET body = {body} WHERE body LIKE '%gone%'")
    await dead.database.execute(SILENT, id=dead.process.id, seen=1.0)
    assert await living.process.recover() == 2
    assert [turn.title for turn in await living.queries.turns(Filter(search="found"))] == ["found"]
    await dead.close()
    await living.close()


@pytest.mark.usefixtures("no_periodic_steps")
@asynchronous
async def test_a_turn_that_is_committed_after_the_recovery_of_its_process_is_ended_too(postgres: Postgres) -> None:
    """A process was killed after it had sent COMMIT, and its backend stood still."""
    url = await postgres.database()
    store = await Store.open(StoreSettings(url=url))
    await begin(store, ask(user("early")))
    await store.writer.flush()
    row = {"id": "dead", "place": "elsewhere", "pid": 1, "born": "", "started": 1.0, "seen": 1.0}
    await add(store.database, "processes", row)
    columns = schema.columns("turns")
    copied = ", ".join({"id": "'turn_late'", "process": "'dead'"}.get(name, name) for name in columns)
    late = f"INSERT INTO turns ({', '.join(columns)}) SELECT {copied} FROM turns"
    backend = await asyncpg.connect(url)
    try:
        await backend.execute(f"BEGIN; SELECT pg_advisory_xact_lock_shared({WRITE_LOCK})")
        await backend.execute(late)
        assert await store.process.recover() == 0
        assert store.process.has_others(), "its last transaction may still come"
        await begin(store, ask(user("meanwhile")))
        await store.writer.flush()
        await backend.execute("COMMIT")
    finally:
        await backend.close()
    assert await store.process.recover() == 1
    endings = {turn.id: turn.ending for turn in await store.queries.turns()}
    assert (len(endings), endings["turn_late"]) == (3, "interrupted")
    assert not store.process.has_others()
    assert await store.process.recover() == 0
    await store.close()


@pytest.mark.usefixtures("no_periodic_steps")
@asynchronous
async def test_a_transaction_that_stands_still_does_not_keep_turns_open(postgres: Postgres) -> None:
    url = await postgres.database()
    dead, store = await Store.open(StoreSettings(url=url)), await Store.open(StoreSettings(url=url))
    await begin(dead, ask(user("cut")))
    await dead.writer.flush()
    await dead.database.execute(SILENT, id=dead.process.id, seen=1.0)
    backend = await asyncpg.connect(url)
    try:
        await backend.execute(f"BEGIN; SELECT pg_advisory_xact_lock_shared({WRITE_LOCK})")
        assert await store.process.recover() == 1
        assert [turn.ending for turn in await store.queries.turns()] == ["interrupted"]
    finally:
        await backend.close()
    await dead.close()
    await store.close()


@asynchronous
async def test_a_remote_process_is_alive_while_it_sends_heartbeats(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    row = {"id": "x", "place": "elsewhere", "pid": os.getpid(), "born": "", "started": time.time(), "seen": time.time()}
    await add(store.database, "processes", row)
    (found,) = await store.database.fetch("SELECT * FROM processes WHERE id = 'x'")
    assert processes.is_alive(found, time.time())
    assert not processes.is_alive(found, time.time() + 2 * processes.DEAD_SECONDS)
    (ours,) = await store.database.fetch("SELECT * FROM processes WHERE id = :id", id=store.process.id)
    assert processes.is_alive(ours, time.time() + 1e6)
    assert processes.start_time(os.getpid()) == ours.born != ""
    assert processes.start_time(2**22 + 1) == ""
    await store.close()
