"""The gateway is killed or stopped in the middle of 200 streams: what ended is kept whole, what did not is kept as that,
nothing is kept twice; and a stream that ended can be had again from the gateway that comes after."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from databases import EVERY_DATABASE
from gateway.process import serving, stored_turns
from gateway.stored_turns import USAGE, chunk
from gateway.upstream import Hang, HostileUpstream, Script, Seen, sse, streamed
from gateway.worker_client import Line, at_once
from streamglot.store import Database, Queries, TurnDetail
from streamglot.store.writer import COMMIT_SECONDS
from waiting import soon

CHAT = "/v1/chat/completions"
WHOLE, HELD, BUSY = 80, 80, 40
MARKERS = 3


def words(question: str) -> list[str]:
    return [f"{question} – word {number}\n" for number in range(20)]


def body_for(question: str, model: str = "told") -> dict[str, Any]:
    return {"model": f"up/{model}", "messages": [{"role": "user", "content": question}], "stream": True}


@pytest.fixture
def answering(upstream: HostileUpstream) -> HostileUpstream:
    """Answers in the words of the question: ``told`` is answered completely, ``held`` only by half."""

    def answer(seen: Seen, *held: Hang) -> Script:
        chunks = [chunk({"content": word}) for word in words(seen.body["messages"][0]["content"])]
        return streamed(*chunks[:10], *held, *chunks[10:], chunk({}, "stop", usage=USAGE), sse("[DONE]"))

    upstream.scripts["told"] = answer
    upstream.scripts["held"] = lambda seen: answer(seen, Hang())
    return upstream


class Client:
    """One stream, and what was seen of it."""

    def __init__(self, question: str) -> None:
        self.question = question
        self.data = b""
        self.turn = ""
        self.ended = 0.0

    async def ask(self, line: Line, model: str) -> None:
        await line.send(CHAT, body_for(self.question, model), {"x-request-id": self.question})
        assert line.status == 200
        self.turn = line.headers["x-streamglot-turn"]
        async for piece in line.pieces():
            self.data += piece
        self.ended = time.time()


async def commit_seconds(url: str, markers: list[Client], port: int) -> float:
    """How long it takes on this machine, as busy as it is now, until a turn that ended is in the database: the interval on a
    quiet one. The longest of some tries, and some seconds."""
    database, line, longest = await Database.open(url), await Line.to(port), COMMIT_SECONDS
    for marker in markers:
        await marker.ask(line, "told")
        while (turn := await Queries(database).turn(marker.turn)) is None or not turn.ending:
            await asyncio.sleep(0.05)
        longest = max(longest, time.time() - marker.ended)
    await database.close()
    return 2 * longest + 3.0


def text_of(turn: TurnDetail) -> str:
    return turn.response.choices[0].text if turn.response is not None and turn.response.choices else ""


@EVERY_DATABASE
def test_kill_in_the_middle_of_200_streams(answering: HostileUpstream, url: str, tmp_path: Path) -> None:
    whole = [Client(f"whole-{number}") for number in range(WHOLE)]
    held = [Client(f"held-{number}") for number in range(HELD)]
    markers = [Client(f"marker-{number}") for number in range(MARKERS)]
    busy: list[Client] = []
    due = 0.0

    async def drive() -> None:
        nonlocal due
        with serving(tmp_path, answering.url, url) as served:

            async def keep_busy(number: int) -> None:
                """One stream after the other, up to the last moment."""
                line = await Line.to(served.port)
                for step in itertools.count():
                    busy.append(Client(f"busy-{number}-{step}"))
                    await busy[-1].ask(line, "told")
                    await asyncio.sleep(0.5)

            async def one(client: Client, model: str) -> None:
                await client.ask(await Line.to(served.port), model)

            hanging = [asyncio.create_task(one(client, "held")) for client in held]
            hanging += [asyncio.create_task(keep_busy(number)) for number in range(BUSY)]
            await asyncio.gather(*(one(client, "told") for client in whole))
            await soon(lambda: all(b"word 9" in client.data for client in held))
            seconds = await commit_seconds(url, markers, served.port)
            ended = time.time()
            await asyncio.sleep(seconds)  # the promise is about time: what ended so long ago is written
            due = min(ended, time.time() - seconds)
            served.kill()
            await asyncio.gather(*hanging, return_exceptions=True)

    at_once(drive)
    assert all(0 < client.ended <= due for client in whole)
    assert not any(client.ended for client in held)

    with serving(tmp_path, answering.url, url) as served:
        assert served.log_line("store_recovered")["interrupted"] >= HELD
        found = asyncio.run(stored_turns(url))
        assert [turns for turns in found.values() if len(turns) > 1] == [], "twice"
        for client in [*whole, *(one for one in busy if 0 < one.ended < due)]:
            (turn,) = found[client.question]
            assert (turn.id, turn.ending, turn.error) == (client.turn, "end", None)
            assert text_of(turn) == "".join(words(client.question))
            assert turn.request is not None
            assert turn.request.messages[0].text == client.question
        for client in held:
            (turn,) = found[client.question]
            assert (turn.id, turn.ending) == (client.turn, "interrupted")
            assert turn.error is not None
            assert turn.error.code == "interrupted"
            assert turn.request is not None
            assert turn.request.messages[0].text == client.question
        assert any(one.ended >= due for one in busy), "nothing ended in the last moments"
        known = {client.question for client in (*whole, *held, *busy, *markers)}
        assert set(found) <= known
        assert {turn.ending for (turn,) in found.values()} == {"end", "interrupted"}
        for client in whole[:10]:
            assert served.ask(f"/v1/streams/{client.turn}") == (200, client.data)
        status, body = served.ask(CHAT, body_for("after"))
        assert status == 200
        assert b"word 19" in body


@EVERY_DATABASE
def test_sigterm_in_the_middle_of_200_streams(answering: HostileUpstream, url: str, tmp_path: Path) -> None:
    """Nothing is lost at all: the unfinished streams end with an error in their own dialect, and are kept as far as they came."""
    whole = [Client(f"whole-{number}") for number in range(WHOLE)]
    held = [Client(f"held-{number}") for number in range(HELD + BUSY)]

    async def drive() -> None:
        with serving(tmp_path, answering.url, url) as served:

            async def one(client: Client, model: str) -> None:
                await client.ask(await Line.to(served.port), model)

            hanging = [asyncio.create_task(one(client, "held")) for client in held]
            await soon(lambda: all(b"word 9" in client.data for client in held))
            await asyncio.gather(*(one(client, "told") for client in whole))
            stopping = asyncio.to_thread(served.stop)  # at once: nothing of the last streams can have been written yet
            status, *_ = await asyncio.gather(stopping, *hanging)
            assert status in (0, -15, 128 + 15)
            assert [line["event"] for line in served.events()] == []

    at_once(drive)
    found = asyncio.run(stored_turns(url))
    assert set(found) == {client.question for client in (*whole, *held)}
    for client in whole:
        (turn,) = found[client.question]
        assert (turn.ending, text_of(turn)) == ("end", "".join(words(client.question)))
    for client in held:
        (turn,) = found[client.question]
        assert (turn.ending, text_of(turn)) == ("error", "".join(words(client.question)[:10]))
        assert turn.error is not None
        assert turn.error.code == "shutting_down"
        assert b"shutting down" in client.data
        assert client.data.endswith(b"data: [DONE]\n\n")
    with serving(tmp_path, answering.url, url) as served:
        for client in (*whole[:10], *held[:10]):
            assert served.ask(f"/v1/streams/{client.turn}") == (200, client.data)
