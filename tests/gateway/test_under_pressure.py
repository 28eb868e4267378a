"""Large answers, strings that no database accepts, and a database that cannot be read: responses to clients and reports."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from databases import EVERY_DATABASE
from gateway.archived import inside, store_of
from gateway.running import Running
from gateway.stored_turns import USAGE, chunk, keeping, kept, text_script
from gateway.upstream import HostileUpstream, sse, streamed
from gateway.worker_client import Line, at_once
from store.servers import writing
from streamglot.store import StoreSettings
from waiting import until

RESPONSES = "/v1/responses"
CONVERSATIONS = 12
PIECE = "lorem ipsum " * 5_000


@pytest.fixture
def large(upstream: HostileUpstream) -> HostileUpstream:
    pieces = [chunk({"content": PIECE}) for _ in range(10)]
    upstream.scripts["large"] = streamed(*pieces, chunk({}, "stop", usage=USAGE), sse("[DONE]"))
    upstream.scripts["small"] = text_script("fine")
    return upstream


@EVERY_DATABASE
def test_parallel_large_answers_lock_no_conversation(large: HostileUpstream, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve answers of 600 kB at once and a queue of 2 MB, while the database takes nothing."""
    monkeypatch.setattr("streamglot.gateway.recording.StoreSettings", partial(StoreSettings, queue_bytes=2 * 2**20))

    async def ask(gateway: Running, number: int, model: str, stream: bool) -> bytes:
        line = await Line.to(gateway.port)
        body = {"model": f"work/{model}", "input": "q", "conversation": f"c{number}", "stream": stream}
        answer = await line.ask(RESPONSES, body)
        assert line.status == 200, answer
        line.hang_up()
        return answer

    with keeping(large, url) as gateway:

        async def drive() -> None:
            async with writing(url):
                answers = await asyncio.gather(*(ask(gateway, number, "large", True) for number in range(CONVERSATIONS)))
                assert all(b'"response.completed"' in answer for answer in answers)
            await asyncio.to_thread(inside, gateway, store_of(gateway).writer.flush())
            again = await asyncio.gather(*(ask(gateway, number, "small", False) for number in range(CONVERSATIONS)))
            assert all(b"fine" in answer for answer in again)

        at_once(drive)
        report = store_of(gateway).report()
        assert set(report.dropped) <= {"chunks", "contents"}
        assert report.dropped["contents"] >= 8
        turns = kept(url, lambda found: len(found) == 2 * CONVERSATIONS and all(turn.ending for turn in found))
    assert {turn.ending for turn in turns} == {"end"}
    assert {turn.usage.output_tokens if turn.usage else None for turn in turns} == {4}
    for seen in large.requests("small")[-CONVERSATIONS:]:
        question, answer, following = seen.body["messages"]
        assert (question["content"], following["content"]) == ("q", "q")
        assert answer["content"].startswith("lorem ipsum")


@EVERY_DATABASE
def test_a_turn_ends_whatever_fails_at_its_end(large: HostileUpstream, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in what is done beside it does not leave a conversation locked."""

    def fail(*_: object, **__: object) -> Any:
        raise ZeroDivisionError("a fault")

    with keeping(large, url) as gateway:
        with monkeypatch.context() as patch:
            patch.setattr("streamglot.gateway.resumable.StreamRecorder.end", fail)
            patch.setattr("streamglot.engine.exchange.Exchange._estimate_usage", fail)
            body = {"model": "work/small", "input": "q", "conversation": "c", "stream": True}
            assert gateway.ask(RESPONSES, body, {"x-request-id": "failing"}).status == 200
            gateway.line("failing")
        assert gateway.ask(RESPONSES, {**body, "stream": False}).status == 200
        faults = [line for line in gateway.lines if line.get("event") in ("observer_failed", "task_failed")]
        assert len(faults) >= 2


# --- strings of clients that reach the database

HOSTILE_TEXTS = ("\0", "a\0b", "\ufffd", "\U0010ffff", "' OR 1=1 --", "%", "x" * 100_000)


@EVERY_DATABASE
@pytest.mark.parametrize("name", HOSTILE_TEXTS, ids=range(len(HOSTILE_TEXTS)))
def test_no_string_of_a_client_is_a_fault(large: HostileUpstream, url: str, name: str) -> None:

    with keeping(large, url) as gateway:
        model = "work/small"
        known = msgspec.json.decode(gateway.ask(RESPONSES, {"model": model, "input": "q"}).body)["id"]
        for suffix in (name, known + name):
            refused = gateway.ask(RESPONSES, {"model": model, "input": "q", "previous_response_id": suffix})
            assert (refused.status, refused.json()["error"]["code"]) == (400, "previous_response_not_found")
        for field in (
            {"conversation": name},
            {"conversation": {"id": name}},
            {"session_id": name},
            {"user": name},
            {"metadata": {"user_id": name}},
            {"model": f"{model}", "instructions": name},
            {"input": name},
        ):
            answered = gateway.ask(RESPONSES, {"model": model, "input": "q", **field})
            assert answered.status == 200, (field, answered)
        unknown = gateway.ask(RESPONSES, {"model": name, "input": "q"})
        assert unknown.status in (400, 404)
        if len(name) < 1_000:
            place = quote(name, safe="")
            paths = ("/v1/responses/{}", "/v1/responses/{}/input_items", "/v1/streams/{}", "/turns/{}", "/turns/{}/raw")
            for path in (*paths, "/sessions/{}", "/sessions/{}/export", "/turns/{}/export"):
                assert gateway.ask(path.format(place)).status == 404, path
            assert gateway.ask(f"/v1/responses/{place}", method="DELETE").status == 404
            assert gateway.ask(f"/v1/responses/{place}/cancel", {}).status == 404
            assert gateway.ask(f"/v1/streams/{place}/stop", {}).status == 404
            assert gateway.ask(f"/v1/streams/turn_1{place}?after=0").status == 404
            assert gateway.ask(f"/ui/{place}/stream").status in (204, 404)
            for query in ("session", "model", "upstream", "search", "before", "ending", "since", "limit", "unknown"):
                assert gateway.ask(f"/turns?{query}={place}").status in (200, 400), query
            assert gateway.ask(f"/search?q={place}").status in (200, 400)
            assert gateway.ask(f"/sessions?before={place}").status == 400
        assert not [line for line in gateway.lines if line.get("event") in ("fault", "store_unfit", "store_fault")]
        report = store_of(gateway).report()
        assert (report.dropped, report.unfit) == ({}, {})


def test_a_stream_is_not_found_by_more_than_its_id(large: HostileUpstream, url: str) -> None:
    with keeping(large, url) as gateway:
        body = {"model": "work/small", "messages": [{"role": "user", "content": "q"}], "stream": True}
        stream = gateway.ask("/v1/chat/completions", body).headers["x-streamglot-stream"]
        assert gateway.ask(f"/v1/streams/{stream}").status == 200
        assert gateway.ask(f"/v1/streams/{stream}%00").status == 404
        assert gateway.ask(f"/v1/streams/{stream}%00/stop", {}).status == 404


# --- /ready


def store_state(gateway: Running) -> str:
    state: str = gateway.ask("/ready").json()["store"]
    return state


def filled(gateway: Running, path: Path) -> None:
    """Some turns in the file itself, and nothing in the log that SQLite has beside it."""
    for _ in range(20):
        gateway.ask(RESPONSES, {"model": "work/small", "input": "q"})
    inside(gateway, store_of(gateway).writer.flush())

    def emptied() -> bool:
        with closing(sqlite3.connect(path)) as connection:
            return bool(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)

    until(emptied)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_a_damaged_file_is_not_ready(large: HostileUpstream, tmp_path: Path, share: float) -> None:
    """Nobody asks the store anything meanwhile, and most of its pages are in memory."""
    path = tmp_path / "s.db"
    with keeping(large, f"sqlite:///{path}") as gateway:
        filled(gateway, path)
        assert store_state(gateway) == "ok"
        whole = path.read_bytes()
        damage = int(share * len(whole)) // 4096 * 4096
        with path.open("r+b") as file:
            file.seek(damage)
            file.write(os.urandom(len(whole) - damage))
        until(lambda: store_state(gateway) == "failing")
        report = store_of(gateway).report()
        assert any(words in report.last_error for words in ("malformed", "not a database", "damaged")), report.last_error
        assert gateway.ask("/turns").status == 503


def test_a_file_that_is_missing_is_not_ready(large: HostileUpstream, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with keeping(large, f"sqlite:///{path}") as gateway:
        filled(gateway, path)
        path.rename(tmp_path / "elsewhere")
        until(lambda: store_state(gateway) == "failing")
        (tmp_path / "elsewhere").rename(path)
        until(lambda: store_state(gateway) == "ok")


def test_a_file_that_was_repaired_is_ready(large: HostileUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamglot.store.database.CHECK_SECONDS", 0.0)
    path = tmp_path / "s.db"
    with keeping(large, f"sqlite:///{path}") as gateway:
        filled(gateway, path)
        whole = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (len(whole) - 4096))
        until(lambda: store_state(gateway) == "failing")
        assert gateway.ask("/health").status == 200
        with path.open("r+b") as file:
            file.write(whole)
        until(lambda: store_state(gateway) == "ok")
