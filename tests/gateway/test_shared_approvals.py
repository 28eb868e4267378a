"""Questions to people on two workers: each worker shows and decides the questions of both."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from databases import EVERY_DATABASE
from gateway.dialect_clients import body_of, understood
from gateway.process import Served, serving
from gateway.running import Answer
from gateway.scenarios import DONE, called, calls, chunk, text_chunk, usage
from gateway.upstream import HostileUpstream, sse, streamed
from gateway.worker_client import Line, at_once
from gateway.worker_lines import Lines
from store.turns import asynchronous
from streamglot.errors import RequestError
from streamglot.gateway.approvals import SharedApprovals
from streamglot.gateway.observe.live import Live
from streamglot.policies.approvals import ApprovalRequest, Approvals, Decision
from streamglot.store import Store, StoreSettings
from waiting import soon

MODEL = "shared-approvals"
POLICY = '[[policies]]\nuse = "human_approval"\nseconds = 600.0\n'
CLIENT = POLICY + 'ask = "client"\n'
KEYS = '[[server.keys]]\nname = "ann"\nkey_env = "ANN"\n[[server.keys]]\nname = "bob"\nkey_env = "BOB"\n'
ANN = {"authorization": "Bearer key-of-ann-0001"}
BOB = {"authorization": "Bearer key-of-bob-0001"}
STORES = ["sqlite", "postgresql", "no content", "none"]
"""Without a store, and without content in the store, the workers share a database of their own."""


@pytest.fixture
def calling(upstream: HostileUpstream) -> HostileUpstream:
    upstream.scripts[MODEL] = streamed(
        sse(text_chunk("Hm."), calls(called(0, "call_a", "weather", '{"city":"Paris"}'), finish="tool_calls"), usage(5, 2), DONE)
    )
    upstream.scripts[f"{MODEL}-two"] = streamed(
        sse(
            calls(called(0, "call_a", "weather", '{"city":"Paris"}'), called(1, "call_b", "time", '{"tz":"UTC"}')),
            chunk({}, "tool_calls"),
            DONE,
        )
    )
    return upstream


async def store_url(kind: str, folder: Path, request: pytest.FixtureRequest) -> str:
    if kind == "postgresql":
        return str(await request.getfixturevalue("postgres").database())
    return "none" if kind == "none" else f"sqlite:///{folder}/s.db"


@asynccontextmanager
async def two_workers(
    calling: HostileUpstream, folder: Path, store: str, more: str, content: bool = True
) -> AsyncIterator[Lines]:
    with serving(folder, calling.url, store, "--workers", "2", more=more, content=content) as served:
        await soon(lambda: len(served.workers()) == 2)
        lines = Lines(served)
        await lines.prepare(4)
        yield lines


class Held:
    """A request whose call waits for a person on this worker."""

    def __init__(self, lines: Lines, worker: int, headers: dict[str, str] | None = None) -> None:
        self._lines = lines
        self.worker = worker
        self._headers = headers
        self.answer = asyncio.create_task(self._ask())

    async def _ask(self) -> Any:
        line = await self._lines.to(self.worker)
        body = {**body_of("openai_chat", f"up/{MODEL}", tools=("weather",))}
        data = await line.ask("/v1/chat/completions", body, self._headers)
        return understood("openai_chat", Answer(line.status, line.headers, data))


async def listed(line: Line, headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(await line.ask("/approvals", headers=headers))["approvals"]
    return found


async def wait_for(line: Line, count: int, headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
    while len(found := await listed(line, headers)) != count:
        await asyncio.sleep(0.01)
    return found


async def decided(line: Line, id: str, decision: dict[str, Any], headers: dict[str, str] | None = None) -> tuple[int, Any]:
    told = json.loads(await line.ask(f"/approvals/{id}", decision, headers))
    return line.status, told


@pytest.mark.parametrize("kind", STORES)
def test_a_decision_on_the_other_worker_resumes_the_stream(
    calling: HostileUpstream, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    async def drive() -> None:
        store = await store_url(kind, tmp_path, request)
        async with two_workers(calling, tmp_path, store, POLICY, content=kind != "no content") as lines:
            for worker in lines.workers:
                held = Held(lines, worker)
                async with lines.lent(lines.other(worker)) as other, lines.lent(worker) as own:
                    [asked] = await wait_for(other, 1)
                    assert [asked] == await listed(own)
                    assert (asked["tool"], asked["text"]) == ("weather", '{"city":"Paris"}')
                    status, told = await decided(other, asked["id"], {"approved": True, "text": "no object"})
                    assert (status, "must be a JSON object" in told["error"]["message"]) == (400, True)
                    changed = {"approved": True, "text": '{"city":"Rome"}', "by": "eve"}
                    status, told = await decided(other, asked["id"], changed)
                    assert (status, told["id"], told["approved"]) == (200, asked["id"], True)
                    assert (await held.answer).calls == [("weather", {"city": "Rome"})]
                    for line in (own, other):
                        assert await listed(line) == []
                        status, told = await decided(line, asked["id"], {"approved": False})
                        assert (status, told["error"]["code"]) == (409, "already_decided")
                        assert "was already approved by 'eve'" in told["error"]["message"]
                    assert (await decided(other, "another", {"approved": True}))[0] == 404
                    assert (await decided(other, "a%00b", {"approved": True}))[0] == 404

    at_once(drive)
    if kind == "no content":
        database = b"".join(path.read_bytes() for path in tmp_path.glob("s.db*"))
        assert b"Rome" not in database
        assert b"Paris" not in database


def test_the_first_of_two_decisions_at_once_counts(calling: HostileUpstream, tmp_path: Path) -> None:
    async def drive() -> None:
        async with two_workers(calling, tmp_path, f"sqlite:///{tmp_path}/s.db", POLICY) as lines:
            for number in range(10):
                held = Held(lines, lines.workers[number % 2])
                first, second = [await lines.to(worker) for worker in lines.workers]
                [asked] = await wait_for(first, 1)
                await wait_for(second, 1)
                yes, no = await asyncio.gather(
                    decided(first, asked["id"], {"approved": True}), decided(second, asked["id"], {"approved": False})
                )
                assert sorted((yes[0], no[0])) == [200, 409], (yes, no)
                assert bool((await held.answer).calls) == (yes[0] == 200)

    at_once(drive)


def test_the_questions_of_a_killed_worker_disappear(calling: HostileUpstream, tmp_path: Path) -> None:
    async def drive() -> None:
        async with two_workers(calling, tmp_path, f"sqlite:///{tmp_path}/s.db", POLICY) as lines:
            doomed, other = lines.workers
            held = Held(lines, doomed)
            async with lines.lent(other) as line, lines.lent(other) as feed:
                [asked] = await wait_for(line, 1)
                await feed.send("/approvals/events")
                pieces = feed.pieces()
                assert asked["id"].encode() in await anext(pieces)
                os.kill(doomed, signal.SIGKILL)
                await wait_for(line, 0)
                while b'"approvals":[]' not in await anext(pieces):
                    pass
                assert (await decided(line, asked["id"], {"approved": True}))[0] == 404
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    await held.answer

    at_once(drive)


def stopped(process: int) -> bool:
    """Whether all threads of a process stand still."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return all((thread / "stat").read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)


async def stop_between_writes(worker: int, database: Path) -> None:
    """Stops a worker while it holds no lock of the database: with a lock it would stop the other one too."""
    while True:
        os.kill(worker, signal.SIGSTOP)
        await soon(lambda: stopped(worker))
        with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                os.kill(worker, signal.SIGCONT)
                await asyncio.sleep(0)
            else:
                connection.execute("ROLLBACK")
                return


def test_a_worker_that_is_busy_takes_the_decision_later(calling: HostileUpstream, tmp_path: Path) -> None:
    async def drive() -> None:
        async with two_workers(calling, tmp_path, f"sqlite:///{tmp_path}/s.db", POLICY) as lines:
            busy, other = lines.workers
            held = Held(lines, busy)
            async with lines.lent(other) as line:
                [asked] = await wait_for(line, 1)
                await stop_between_writes(busy, tmp_path / "s.db")
                status, told = await decided(line, asked["id"], {"approved": True, "by": "e" * 1000})
                assert (status, told["taken"]) == (200, False)
                assert await listed(line) == []
                status, told = await decided(line, asked["id"], {"approved": False})
                assert (status, told["error"]["code"]) == (409, "already_decided")
                os.kill(busy, signal.SIGCONT)
                assert len((await held.answer).calls) == 1

    at_once(drive)


def test_a_gateway_that_stops_withholds_its_held_calls(calling: HostileUpstream, tmp_path: Path) -> None:
    """The upstream has finished its answers, and the policy would forward a call about which it fails."""
    database = tmp_path / "s.db"

    async def drive() -> None:
        more = POLICY + 'on_error = "forward"\n'
        with serving(tmp_path, calling.url, f"sqlite:///{database}", more=more) as served:
            line = await Line.to(served.port)
            asking = asyncio.create_task(_answer(served))
            await wait_for(line, 1)
            served.process.terminate()
            found = await asking
            assert (found.text, found.calls, found.code) == ("Hm.", [], "shutting_down")

    at_once(drive)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM approvals").fetchone() == (0,)


def test_a_question_whose_client_left_disappears_everywhere(calling: HostileUpstream, tmp_path: Path) -> None:
    async def drive() -> None:
        async with two_workers(calling, tmp_path, f"sqlite:///{tmp_path}/s.db", POLICY) as lines:
            line, other = [await lines.to(worker) for worker in lines.workers]
            await line.send("/v1/chat/completions", body_of("openai_chat", f"up/{MODEL}", tools=("weather",)))
            [asked] = await wait_for(other, 1)
            line.hang_up()
            await wait_for(other, 0)
            assert (await decided(other, asked["id"], {"approved": True}))[0] == 404

    at_once(drive)


def test_a_key_sees_and_decides_its_own_questions_on_every_worker(
    calling: HostileUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANN", "key-of-ann-0001")
    monkeypatch.setenv("BOB", "key-of-bob-0001")

    async def drive() -> None:
        async with two_workers(calling, tmp_path, f"sqlite:///{tmp_path}/s.db", POLICY + KEYS) as lines:
            held = Held(lines, lines.workers[0], ANN)
            own, other = [await lines.to(worker) for worker in lines.workers]
            [asked] = await wait_for(other, 1, ANN)
            for line in (own, other):
                assert await listed(line, BOB) == []
                assert (await decided(line, asked["id"], {"approved": True}, BOB))[0] == 404
            assert (await decided(other, asked["id"], {"approved": True}, ANN))[0] == 200
            assert len((await held.answer).calls) == 1
            for line in (own, other):
                assert (await decided(line, asked["id"], {"approved": True}, BOB))[0] == 404, "it does not learn of the decision"

    at_once(drive)


def interrupts_in(data: bytes) -> list[dict[str, Any]]:
    events = [json.loads(row[6:]) for row in data.decode().splitlines() if row.startswith("data: {")]
    found: list[dict[str, Any]] = events[-1]["outcome"]["interrupts"]
    return found


@pytest.mark.parametrize("kind", STORES)
def test_a_suspended_call_is_resumed_by_the_other_worker_once(
    calling: HostileUpstream, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    async def drive() -> None:
        store = await store_url(kind, tmp_path, request)
        async with two_workers(calling, tmp_path, store, CLIENT, content=kind != "no content") as lines:
            first, second = [await lines.to(worker) for worker in lines.workers]
            body = body_of("agui", f"up/{MODEL}-two", tools=("weather", "time"))
            weather, time = interrupts_in(await first.ask("/agui", body))
            yes = {"interruptId": weather["id"], "status": "resolved", "payload": {"approved": True}}
            no = {"interruptId": time["id"], "status": "cancelled"}
            for wrong in ({**no, "interruptId": "another"}, {**no, "interruptId": "a\0b"}, yes):
                await second.ask("/agui", {**body, "resume": [yes, wrong]})
                assert second.status in (400, 404), wrong
            answers = await asyncio.gather(*(line.ask("/agui", {**body, "resume": [yes, no]}) for line in (first, second)))
            assert sorted((first.status, second.status)) == [200, 404], "one of the two gets the calls"
            line, data = (first, answers[0]) if first.status == 200 else (second, answers[1])
            found = understood("agui", Answer(200, line.headers, data))
            assert (found.calls, found.text) == ([("weather", {"city": "Paris"})], "[refused by the user]")

    at_once(drive)


def test_a_suspended_call_survives_a_restart(calling: HostileUpstream, tmp_path: Path) -> None:
    async def drive() -> None:
        body = body_of("agui", f"up/{MODEL}", tools=("weather",))
        store = f"sqlite:///{tmp_path}/s.db"
        with serving(tmp_path, calling.url, store, more=CLIENT) as served:
            line = await Line.to(served.port)
            [asked] = interrupts_in(await line.ask("/agui", body))
        with serving(tmp_path, calling.url, store, more=CLIENT) as served:
            line = await Line.to(served.port)
            yes = {"interruptId": asked["id"], "status": "resolved", "payload": {"approved": True}}
            data = await line.ask("/agui", {**body, "resume": [yes]})
            found = understood("agui", Answer(line.status, line.headers, data))
            assert found.calls == [("weather", {"city": "Paris"})]

    at_once(drive)


def test_a_lone_process_decides_while_its_database_does_not_answer(calling: HostileUpstream, tmp_path: Path) -> None:
    async def drive() -> None:
        store = tmp_path / "s.db"
        with serving(tmp_path, calling.url, f"sqlite:///{store}", more=POLICY) as served:
            line = await Line.to(served.port)
            asking = asyncio.create_task(_answer(served))
            [asked] = await wait_for(line, 1)
            store.rename(tmp_path / "gone.db")
            assert (await decided(line, asked["id"], {"approved": True}))[0] == 200
            assert len((await asking).calls) == 1

    at_once(drive)


@EVERY_DATABASE
@pytest.mark.usefixtures("patient_writers")
@asynchronous
async def test_a_decision_that_its_own_process_takes_from_the_table_at_once_counts(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = [await Store.open(StoreSettings(url=url)) for _ in range(2)]
    try:
        live = SimpleNamespace(changed=lambda: None, watchers=lambda name: 0)
        pool: Any = SimpleNamespace()  # Any: the part of a pool that is used
        shared = SharedApprovals(pool, cast(Live, live), lambda: one, lambda _: None)
        pool.approvals = Approvals(lambda: "q1", sharing=shared)
        asking = asyncio.create_task(pool.approvals.ask(ApprovalRequest("r", "p", "m", "tool_call", seconds=600.0)))
        await soon(pool.approvals.open)
        decide = one.approvals.decide

        async def decided_and_taken(id: str, decision: str) -> bool:
            written = await decide(id, decision)
            await two.process.seen()  # the decisions are read because another process has written
            await shared._step()
            assert pool.approvals.decided(id) is not None
            return written

        monkeypatch.setattr(one.approvals, "decide", decided_and_taken)
        assert await shared.decide("q1", Decision(True, by="eve"), None)
        assert (await asking).by == "eve"
        with pytest.raises(RequestError, match="was already approved by 'eve'"):
            await shared.decide("q1", Decision(False), None)
    finally:
        await one.close()
        await two.close()


async def _answer(served: Served) -> Any:
    line = await Line.to(served.port)
    data = await line.ask("/v1/chat/completions", body_of("openai_chat", f"up/{MODEL}", tools=("weather",)))
    return understood("openai_chat", Answer(line.status, line.headers, data))
