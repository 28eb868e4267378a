"""The database is locked, full or missing while streams run: streams continue, losses are counted, and writing recovers."""

from __future__ import annotations

import asyncio
import itertools
import resource
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import pytest

from gateway.process import Served, serving, stored_turns
from gateway.stored_turns import USAGE, chunk
from gateway.upstream import HostileUpstream, Pause, Script, Seen, sse, streamed
from gateway.worker_client import Line, at_once
from store.servers import Postgres, nobody
from waiting import WAIT_SECONDS, soon, until

CHAT = "/v1/chat/completions"
STREAMS = 20
OUTAGE_SECONDS = 10.0
WORDS = 10


def words(question: str) -> str:
    return "".join(f"{question} – word {number}\n" for number in range(WORDS))


@pytest.fixture
def answering(upstream: HostileUpstream) -> HostileUpstream:
    """Answers in the words of the question, in a fifth of a second."""

    def answer(seen: Seen) -> Script:
        lines = words(seen.body["messages"][0]["content"]).splitlines(keepends=True)
        steps = [step for word in lines for step in (chunk({"content": word}), Pause(0.02))]
        return streamed(*steps, chunk({}, "stop", usage=USAGE), sse("[DONE]"))

    upstream.scripts["answering"] = answer
    return upstream


class Traffic:
    """Clients that ask one question after the other, until the test stops them. ``now`` is the current question."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.now = "before"
        self.answered: dict[str, bytes] = {}
        self.turns: dict[str, str] = {}
        self._over = False

    async def client(self, number: int) -> None:
        line = await Line.to(self._port)
        for step in itertools.count():
            if self._over:
                return
            question = f"{self.now}-{number}-{step}"
            body = {"model": "up/answering", "messages": [{"role": "user", "content": question}], "stream": True}
            answer = await line.ask(CHAT, body, {"x-request-id": question})
            assert line.status == 200, answer
            assert answer.count(b'"content":') >= WORDS, answer
            assert answer.endswith(b"data: [DONE]\n\n"), answer
            self.answered[question] = answer
            self.turns[question] = line.headers["x-streamglot-turn"]

    async def asked(self, when: str) -> None:
        """Waits until every client has had several answers to this question."""
        self.now = when
        await soon(lambda: sum(question.startswith(when) for question in self.answered) > 3 * STREAMS)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for number in range(STREAMS):
                group.create_task(self.client(number))
            await self.asked("before")
            yield
            self._over = True


async def through(served: Served, outage: Any, seconds: float = 0.0) -> Traffic:
    """Traffic before, during and after a failure of the database: no client sees any of it."""
    traffic = Traffic(served.port)
    async with traffic.running():
        async with outage:
            await asyncio.to_thread(served.log_line, "store_failing")
            await asyncio.gather(traffic.asked("during"), asyncio.sleep(seconds))
            assert await asyncio.to_thread(served.metric, "streamglot_store_failing") == 1
            assert await asyncio.to_thread(served.metric, "streamglot_store_failures_total") > 0
            assert await asyncio.to_thread(served.metric, "streamglot_store_queued") > 0
        await asyncio.to_thread(served.log_line, "store_back")
        await traffic.asked("after")
    return traffic


def settle(served: Served) -> None:
    """Waits until nothing waits to be written."""
    until(lambda: served.metric("streamglot_store_queued") == served.metric("streamglot_store_failing") == 0)


async def written(served: Served, url: str, traffic: Traffic) -> None:
    """Everything is there once, and whole; nothing was lost, and the log says so."""
    await asyncio.to_thread(settle, served)
    assert await asyncio.to_thread(served.metric, "streamglot_store_dropped_total") == 0
    assert await asyncio.to_thread(served.metric, "streamglot_store_unfit_total") == 0
    assert [line["event"] for line in served.events()] == ["store_failing", "store_back"]
    found = await texts(url)
    assert found == {question: [words(question)] for question in traffic.answered}
    line = await Line.to(served.port)
    for question in [*traffic.answered][:: STREAMS // 2]:
        assert await line.ask(f"/v1/streams/{traffic.turns[question]}") == traffic.answered[question], question


async def texts(url: str) -> dict[str, list[str]]:
    """The stored answer to each question."""
    found: dict[str, list[str]] = {}
    for question, turns in (await stored_turns(url)).items():
        for turn in turns:
            assert turn.ending == "end", turn
            assert turn.response is not None
            found.setdefault(question, []).append(turn.response.choices[0].text)
    return found


def run(answering: HostileUpstream, tmp_path: Path, url: str, outage: Any, seconds: float = 0.0) -> None:
    async def drive() -> None:
        with serving(tmp_path, answering.url, url) as served:
            traffic = await through(served, outage(served), seconds)
            await written(served, url, traffic)

    at_once(drive)


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    locker = sqlite3.connect(path, isolation_level=None, timeout=WAIT_SECONDS)
    locker.execute("BEGIN IMMEDIATE")
    yield
    locker.execute("COMMIT")
    locker.close()


def test_a_locked_database_delays_writes(answering: HostileUpstream, tmp_path: Path) -> None:
    run(answering, tmp_path, f"sqlite:///{tmp_path}/s.db", lambda served: locked(tmp_path / "s.db"))


def test_a_full_disk_drops_content_and_counts_it(answering: HostileUpstream, tmp_path: Path) -> None:
    """No file of the process may grow any more, but for its log, which is far smaller."""

    @asynccontextmanager
    async def full(served: Served) -> AsyncIterator[None]:
        size = max(path.stat().st_size for path in tmp_path.glob("s.db*"))
        assert size > 4 * served.log.stat().st_size
        kind = resource.RLIMIT_FSIZE
        before = resource.prlimit(served.process.pid, kind)
        resource.prlimit(served.process.pid, kind, (size, before[1]))
        yield
        resource.prlimit(served.process.pid, kind, before)

    run(answering, tmp_path, f"sqlite:///{tmp_path}/s.db", full)


def test_a_file_that_is_missing_for_ten_seconds(answering: HostileUpstream, tmp_path: Path) -> None:
    @asynccontextmanager
    async def gone(_: Served) -> AsyncIterator[None]:
        (tmp_path / "here").rename(tmp_path / "there")
        yield
        (tmp_path / "there").rename(tmp_path / "here")

    run(answering, tmp_path, f"sqlite:///{tmp_path}/here/s.db", gone, OUTAGE_SECONDS)


def test_postgresql_does_not_answer_for_ten_seconds(answering: HostileUpstream, postgres: Postgres, tmp_path: Path) -> None:
    if not postgres.own:
        pytest.skip("the configured server must not be stopped")

    @asynccontextmanager
    async def gone(served: Served) -> AsyncIterator[None]:
        await asyncio.to_thread(postgres.stop, "immediate")
        try:
            status, body = await asyncio.to_thread(served.ask, "/v1/streams/turn_1")
            assert (status, b"store_unavailable" in body) == (503, True), body
            yield
        finally:
            await asyncio.to_thread(postgres.start)

    run(answering, tmp_path, asyncio.run(postgres.database()), gone, OUTAGE_SECONDS)


def test_losses_at_shutdown_are_reported(answering: HostileUpstream, tmp_path: Path) -> None:
    """A gateway that stops while the database is locked gives up after a time and reports the losses."""

    async def drive() -> None:
        with serving(tmp_path, answering.url, f"sqlite:///{tmp_path}/s.db") as served:
            traffic = Traffic(served.port)
            async with traffic.running():
                pass
            await asyncio.to_thread(settle, served)
            async with locked(tmp_path / "s.db"):
                line = await Line.to(served.port)
                body = {"model": "up/answering", "messages": [{"role": "user", "content": "lost"}], "stream": True}
                assert (await line.ask(CHAT, body)).endswith(b"data: [DONE]\n\n")
                assert await asyncio.to_thread(served.stop) in (0, -15, 128 + 15)
            lost = served.events()[-1]
            assert (lost["event"], lost["dropped"]["starts"], lost["dropped"]["endings"]) == ("store_lost", 1, 1)
            assert set(await texts(f"sqlite:///{tmp_path}/s.db")) == set(traffic.answered)

    at_once(drive)


def test_an_unreachable_valkey_is_reported(answering: HostileUpstream, tmp_path: Path) -> None:
    """Clients do not notice it; the log reports the fault and the losses."""

    async def drive(valkey: str) -> None:
        with serving(tmp_path, answering.url, f"sqlite:///{tmp_path}/s.db", valkey=valkey) as served:
            line = await Line.to(served.port)
            body = {"model": "up/answering", "messages": [{"role": "user", "content": "lost"}], "stream": True}
            assert (await line.ask(CHAT, body)).endswith(b"data: [DONE]\n\n")
            assert (await asyncio.to_thread(served.log_line, "store_failing"))["where"] == "valkey"
            assert b'"store":"failing"' in (await asyncio.to_thread(served.ask, "/ready"))[1]
            assert await asyncio.to_thread(served.metric, "streamglot_store_failing") == 1
            assert await asyncio.to_thread(served.metric, "streamglot_store_queued") > 0
            assert await asyncio.to_thread(served.stop) in (0, -15, 128 + 15)
            lost = served.events()[-1]
            assert lost["event"] == "store_lost"
            assert set(lost["dropped"]) == {"chunks", "streams"}, "what the database took is not lost"

    with nobody() as valkey:
        at_once(lambda: drive(valkey))


def test_a_conversation_that_is_not_found_in_time_is_answered(
    answering: HostileUpstream, postgres: Postgres, tmp_path: Path
) -> None:
    """A client that sends its whole history gets the same answer. Only the link to the earlier turns is missing, which the log and the
    metrics say."""
    url = asyncio.run(postgres.database())
    first = [{"role": "user", "content": "once"}]
    history = [*first, {"role": "assistant", "content": words("once")}, {"role": "user", "content": "and then?"}]

    async def ask(served: Served, messages: list[dict[str, str]]) -> dict[str, str]:
        line = await Line.to(served.port)
        answer = await line.ask(CHAT, {"model": "up/answering", "messages": messages, "stream": True})
        assert (line.status, answer.count(b'"content":') >= WORDS, answer.endswith(b"data: [DONE]\n\n")) == (200, True, True)
        return {name: line.headers[f"x-streamglot-{name}"] for name in ("session", "turn")}

    async def drive() -> None:
        with serving(tmp_path, answering.url, url) as served:
            before = await ask(served, first)
            await asyncio.to_thread(settle, served)
        with serving(tmp_path, answering.url, url) as served:  # it has nothing in memory
            assert (await ask(served, history))["session"] == before["session"]
            await asyncio.to_thread(settle, served)
        with serving(tmp_path, answering.url, url) as served:
            connection = await asyncpg.connect(url)
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("LOCK TABLE endings IN ACCESS EXCLUSIVE MODE")
            missed = await ask(served, history)
            warning = await asyncio.to_thread(served.log_line, "store_missed")
            await transaction.rollback()
            await connection.close()
            assert missed["session"] != before["session"]
            assert warning["missed"] == 1
            assert "went on without its stored conversation" in warning["message"]
            assert await asyncio.to_thread(served.metric, "streamglot_store_missed_total") == 1
            await asyncio.to_thread(settle, served)
        assert answering.seen[-1].body["messages"] == history
        turns = {turn.id: turn for found in (await stored_turns(url)).values() for turn in found}
        assert turns[missed["turn"]].ending == "end"

    at_once(drive)
