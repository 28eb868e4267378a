"""Kill -9 in the middle of 200 turns: ended turns are complete, the others are interrupted, none exists twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import select, text

from store.child import STREAMS
from store.turns import ask, asynchronous, begin, user
from streamglot.store import Filter, Finished, Store, StoreSettings, processes, schema
from streamglot.store.writer import COMMIT_SECONDS

SLACK = 5.0
"""Extra seconds for a busy machine: a commit is due after its interval and then takes time."""


def run_and_kill(url: str, log: Path) -> float:
    """Runs the child and kills it. Returns the time of its death."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with log.open("wb") as output:
        child = subprocess.Popen([sys.executable, "-m", "store.child", url], stdout=output, env=environment)
        while (words := log.read_bytes()).count(b" hangs ") < STREAMS // 4 or words.count(b" ended ") < 300:
            assert child.poll() is None
            time.sleep(0.05)
        time.sleep(COMMIT_SECONDS + SLACK)
        killed = time.time()
        child.send_signal(signal.SIGKILL)
        child.wait()
    return killed


@asynchronous
async def test_kill_in_the_middle_of_200_turns(url: str, tmp_path: Path) -> None:
    living = await Store.open(StoreSettings(url=url))
    other = await begin(living, ask(user("of a process that lives")), name="other")
    await living.writer.flush()

    killed = run_and_kill(url, tmp_path / "log")
    store = await Store.open(StoreSettings(url=url))
    rows: dict[str, str] = {}
    before = ""
    while page := await store.queries.turns(Filter(limit=1000, before=before)):
        for turn in page:
            assert turn.id not in rows, "twice"
            rows[turn.id] = turn.ending
        before = page[-1].id
    started: dict[str, float] = {}
    ended: dict[str, float] = {}
    for line in (tmp_path / "log").read_text().splitlines():
        when, what, *named = line.split(" ")
        if what in ("started", "ended"):
            (started if what == "started" else ended)[named[0]] = float(when)
    due = killed - COMMIT_SECONDS - SLACK
    assert sum(at < due for at in ended.values()) > 200
    late = {ident: killed - at for ident, at in ended.items() if at < due and rows.get(ident) != "end"}
    assert late == {}, "ended long before the end, and not there whole"
    assert {rows.get(ident) for ident in ended} <= {"end", "interrupted", None}
    unfinished = [ident for ident, at in started.items() if ident not in ended and at < due]
    assert len(unfinished) > 20
    assert {rows.get(ident) for ident in unfinished} == {"interrupted"}
    assert set(rows.values()) == {"end", "interrupted", ""}
    assert rows.pop(other.id) == "", "a process that lives was declared dead"
    assert set(rows) <= set(started)

    whole = next(ident for ident, at in ended.items() if at < due)
    shown = await store.queries.turn(whole)
    assert shown is not None
    assert shown.request is not None
    assert shown.response is not None
    assert shown.response.choices[0].text.startswith("answer")
    cut = await store.queries.turn(unfinished[0])
    assert cut is not None
    assert cut.error is not None
    assert (cut.error.code, cut.ending) == ("interrupted", "interrupted")
    assert cut.request is not None
    assert cut.request.messages[0].text.startswith("stream")
    complete = await store.queries.complete(unfinished[0])
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
    mine = schema.processes.c.id == one.process.id
    await one.database.execute(schema.processes.update().where(mine).values(place="elsewhere", seen=time.time() - 3600))
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
async def test_a_message_that_cannot_be_read_is_left_out(url: str) -> None:
    body = "CAST(X'ff' AS TEXT)" if url.startswith("sqlite") else "'no message'"  # PostgreSQL refuses invalid text
    dead, living = await Store.open(StoreSettings(url=url)), await Store.open(StoreSettings(url=url))
    await begin(dead, ask(user("gone")), name="gone")
    await begin(dead, ask(user("found")), name="found")
    await dead.writer.flush()
    await dead.database.execute(text(f"UPDATE messages SET body = {body} WHERE body LIKE '%gone%'"))
    mine = schema.processes.c.id == dead.process.id
    await dead.database.execute(schema.processes.update().where(mine).values(place="elsewhere", seen=1.0))
    assert await living.process.recover() == 2
    assert [turn.title for turn in await living.queries.turns(Filter(search="found"))] == ["found"]
    await dead.close()
    await living.close()


@asynchronous
async def test_a_remote_process_is_alive_while_it_sends_heartbeats(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    row = {"id": "x", "place": "elsewhere", "pid": os.getpid(), "born": "", "started": time.time(), "seen": time.time()}
    await store.database.execute(schema.processes.insert(), row)
    table = schema.processes
    (found,) = await store.database.fetch(select(table).where(table.c.id == "x"))
    assert processes.is_alive(found, time.time())
    assert not processes.is_alive(found, time.time() + 2 * processes.DEAD_SECONDS)
    (ours,) = await store.database.fetch(select(table).where(table.c.id == store.process.id))
    assert processes.is_alive(ours, time.time() + 1e6)
    assert processes.start_time(os.getpid()) == ours.born != ""
    assert processes.start_time(2**22 + 1) == ""
    await store.close()
