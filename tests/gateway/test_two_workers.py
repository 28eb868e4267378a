"""Streams that are cut and resumed, a thousand times, on two processes: while they run and after their end, on the process
that produces them and on the other one. The bytes equal those of a client that was never disconnected."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.dialect_clients import CLIENT_DIALECTS, body_of, path_of
from gateway.process import Served, serving
from gateway.stored_turns import text_script
from gateway.upstream import Hang, HostileUpstream, Pause, Step, Until
from gateway.worker_client import at_once
from gateway.worker_lines import Lines
from store.servers import Postgres
from streamglot.gateway.resumable import EVENT_IDS, EventIds
from waiting import soon

ARRAY = "gemini array"
KINDS = (*CLIENT_DIALECTS, ARRAY)
WORDS = 60
PAUSE = 0.02
LINES = 8
"""Connections to each worker for those who come after the end."""


def asked_as(kind: str, model: str) -> tuple[str, dict[str, Any]]:
    if kind == ARRAY:
        return f"/v1beta/models/{model}:streamGenerateContent", body_of("gemini", model)
    return path_of(kind, model), body_of(kind, model)


def slowly(go_on: threading.Event) -> Any:
    """Words, some of them together and some of more than one line; in the middle it waits for those who come back."""
    steps: list[str | Step] = []
    for number in range(WORDS):
        steps.append(f"word {number} – „ü“ [{{\n\n: ")
        if number % 3:
            steps.append(Pause(PAUSE))
        if number == WORDS // 2:
            steps.append(Until(go_on))
    return text_script(*steps)


class Stream:
    """One stream: everything that its first reader, which is never cut, received, and the number of events so far."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.id = ""
        self.worker = 0
        self.data = b""
        self.over = False
        self.numbering: EventIds

    @property
    def events(self) -> int:
        return self.numbering.count(self.data)

    async def run(self, lines: Lines, worker: int, model: str) -> None:
        async with lines.lent(worker) as line:
            await line.send(*asked_as(self.kind, model))
            assert line.status == 200
            self.numbering = EVENT_IDS[line.headers["content-type"].partition(";")[0]]
            self.id, self.worker = line.headers["x-streamglot-stream"], worker
            async for piece in line.pieces():
                self.data += piece
        self.over = True


class Resumed:
    """``counted``: how often it was done, by when (``live``, ``cut`` or ``over``) and whether on the producer's process."""

    def __init__(self, lines: Lines, chance: random.Random) -> None:
        self._lines = lines
        self._chance = chance
        self.begun = 0
        self.counted: Counter[tuple[str, bool]] = Counter()

    async def resume(self, stream: Stream) -> None:
        """From a random event on, on a random worker."""
        worker, when = self._lines.any(self._chance), "over" if stream.over else "live"
        after = self._chance.randint(0, stream.events)
        by_header = self._chance.random() < 0.2
        path = f"/v1/streams/{stream.id}" + ("" if by_header else f"?after={after}")
        async with self._lines.lent(worker) as line:
            self.begun += 1
            rest = await line.ask(path, headers={"last-event-id": str(after)} if by_header else None)
            assert line.status == 200, rest
        await soon(lambda: stream.over)
        assert rest == stream.numbering.rest(stream.data, after), (stream.kind, after, when)
        self.counted[when, worker == stream.worker] += 1

    async def cut(self, kind: str) -> None:
        """A client disconnects after some event, and resumes on the other worker after its last complete event."""
        producer, worker = self._lines.any(self._chance), self._lines.any(self._chance)
        line = await self._lines.to(producer)
        await line.send(*asked_as(kind, "up/slow"), {"x-streamglot-keep": "true"})
        ident = line.headers["x-streamglot-stream"]
        numbering = EVENT_IDS[line.headers["content-type"].partition(";")[0]]
        enough, data = self._chance.randint(1, WORDS // 2), b""
        async for piece in line.pieces():
            data += piece
            if numbering.count(data) >= enough:
                break
        line.hang_up()
        async with self._lines.lent(worker) as other:
            self.begun += 1
            rest = await other.ask(f"/v1/streams/{ident}?after={numbering.count(data)}")
            assert other.status == 200, rest
            assert f"word {WORDS - 1} ".encode() in rest
            assert data + rest == await other.ask(f"/v1/streams/{ident}"), (kind, enough)
        self.counted["cut", worker == producer] += 1


async def resume_often(served: Served, go_on: threading.Event, kinds: tuple[str, ...], each: int, over: int) -> int:
    """Resumes streams of each kind ``each`` times while they run, and ``over`` times in all after their end."""
    chance = random.Random(6)
    lines = Lines(served)
    await lines.prepare(len(kinds) * each)
    resumed = Resumed(lines, chance)
    streams = [Stream(kind) for kind in kinds]

    async def come_back(stream: Stream) -> None:
        await soon(lambda: stream.data)
        await asyncio.sleep(chance.uniform(0, WORDS * PAUSE / 2))
        await resumed.resume(stream)

    async with asyncio.TaskGroup() as group:
        for stream in streams:
            group.create_task(stream.run(lines, lines.any(chance), "up/slow"))
            for number in range(each):
                group.create_task(come_back(stream))
                if number % 2:
                    group.create_task(resumed.cut(stream.kind))
        await soon(lambda: resumed.begun == len(kinds) * (each + each // 2))
        go_on.set()

    async def again(times: int) -> None:
        for _ in range(times):
            await resumed.resume(chance.choice(streams))

    async with asyncio.TaskGroup() as group:
        for _ in range(LINES):
            group.create_task(again(over // LINES))
    counted = resumed.counted
    assert all(counted[when, same] > 4 for when in ("live", "cut", "over") for same in (False, True)), counted
    return sum(counted.values())


@pytest.fixture
def go_on() -> threading.Event:
    return threading.Event()


@pytest.fixture
def slow(upstream: HostileUpstream, go_on: threading.Event) -> HostileUpstream:
    upstream.scripts["slow"] = slowly(go_on)
    upstream.scripts["held"] = text_script("first", Hang())
    return upstream


def test_a_thousand_streams_are_resumed_on_two_workers(slow: HostileUpstream, go_on: threading.Event, tmp_path: Path) -> None:
    async def drive() -> None:
        with serving(tmp_path, slow.url, f"sqlite:///{tmp_path}/s.db", "--workers", "2") as served:
            assert await resume_often(served, go_on, KINDS, each=20, over=736) >= 1000
            logged = {event["event"] for event in served.events()}
            assert logged <= {"store_failing", "store_back"}, "two that write may wait for each other, and lose nothing"

    at_once(drive)


def test_streams_are_resumed_on_postgresql(
    slow: HostileUpstream, go_on: threading.Event, postgres: Postgres, tmp_path: Path
) -> None:
    async def drive() -> None:
        with serving(tmp_path, slow.url, await postgres.database(), "--workers", "2") as served:
            assert await resume_often(served, go_on, ("openai_chat", "agui", ARRAY), each=16, over=80) >= 150

    at_once(drive)


def test_streams_are_resumed_with_valkey(slow: HostileUpstream, go_on: threading.Event, valkey_url: str, tmp_path: Path) -> None:
    async def drive() -> None:
        with serving(tmp_path, slow.url, f"sqlite:///{tmp_path}/s.db", "--workers", "2", valkey=valkey_url) as served:
            assert await resume_often(served, go_on, ("openai_chat", "ollama", "vercel_ui"), each=16, over=80) >= 150

    at_once(drive)


@pytest.mark.parametrize("valkey", [False, True])
def test_a_stream_is_stopped_from_the_other_worker(
    slow: HostileUpstream, valkey: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    address = request.getfixturevalue("valkey_url") if valkey else ""

    async def drive() -> None:
        with serving(tmp_path, slow.url, f"sqlite:///{tmp_path}/s.db", "--workers", "2", valkey=address) as served:
            lines = Lines(served)
            for number, kind in enumerate(KINDS):
                stream = Stream(kind)
                worker = lines.workers[number % 2]
                running = asyncio.create_task(stream.run(lines, worker, "up/held"))
                await soon(lambda: b"first" in stream.data)  # noqa: B023  # it runs before the next round
                before = len(slow.requests("held"))
                async with lines.lent(lines.other(worker)) as line:
                    await line.ask(f"/v1/streams/{stream.id}/stop", {})
                    assert line.status == 200
                    await running
                    assert await line.ask(f"/v1/streams/{stream.id}") == stream.data
                await soon(lambda: slow.requests("held")[before - 1].closed)  # noqa: B023  # it runs before the next round

    at_once(drive)
