"""Valkey is gone, silent or refuses: the queue is bounded, everything is logged and counted, and closing ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from valkey.asyncio import Valkey

from store.servers import frozen, nobody, started_valkey
from store.turns import asynchronous
from streamglot.counters import valkey
from streamglot.store import Store, StoreSettings, ValkeyBuffer
from streamglot.store.streams import valkey as valkey_buffer
from streamglot.store.streams import valkey as valkey_queue
from waiting import WAIT_SECONDS, soon

KEPT = b"x" * 100


def nothing() -> None:
    """A callback that does nothing."""


def keep(buffer: ValkeyBuffer, stream_id: str, chunks: int = 1) -> None:
    buffer.open(stream_id, "me", nothing, nothing, "{}")
    for number in range(1, chunks + 1):
        buffer.append(stream_id, number, number, KEPT)
    buffer.end(stream_id)


async def read(buffer: ValkeyBuffer, stream_id: str) -> bytes:
    return b"".join([chunk.data async for chunk in buffer.read(stream_id)])


def events(logged: list[Any]) -> list[str]:
    assert {line["where"] for line in logged} == {"valkey"}
    return [line["event"] for line in logged]


@asynchronous
async def test_a_missing_server_is_logged_before_anything_is_lost() -> None:
    logged: list[Any] = []
    with nobody() as address:
        buffer = ValkeyBuffer(address, log=logged.append)
        await soon(lambda: buffer.report().failing)
        assert events(logged) == ["store_failing"]
        assert "refused" in buffer.report().last_error or "failed" in buffer.report().last_error
        await buffer.close()
    assert buffer.report().dropped == {}


@asynchronous
async def test_every_command_counts_towards_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams without content fill the queue too, and the ends of streams find room where chunks do not."""
    monkeypatch.setattr(valkey_queue, "CLOSE_SECONDS", 0.1)
    logged: list[Any] = []
    with nobody() as address:
        buffer = ValkeyBuffer(address, queue=100_000, log=logged.append)
        for number in range(1000):
            keep(buffer, f"turn_{number}")
        report = buffer.report()
        assert report.queued < 1000
        assert 90_000 < report.queued_bytes <= 100_000
        dropped = report.dropped
        assert dropped["chunks"] / 1000 > dropped["streams"] / (report.queued + sum(dropped.values()))
        await soon(lambda: buffer.report().failing)
        assert sorted(events(logged)) == ["store_dropping", "store_failing"]
        await buffer.close()
    lost = buffer.report().dropped
    assert lost["chunks"] == 1000
    assert sum(lost.values()) == sum(dropped.values()) + report.queued


@asynchronous
async def test_heartbeats_do_not_fill_the_queue_while_the_server_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey_queue, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(valkey_buffer, "WATCH_SECONDS", 0.0)
    with nobody() as address:
        buffer = ValkeyBuffer(address, lost=0.0)
        buffer.open("turn_1", "me", nothing, nothing)
        await soon(lambda: buffer.report().failing)
        queued = buffer.report().queued
        await soon(lambda: buffer.report().failures > 2)
        assert buffer.report().queued == queued
        await buffer.close()


@asynchronous
async def test_a_silent_server_counts_as_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(valkey_queue, "CLOSE_SECONDS", 0.1)
    logged: list[Any] = []
    with frozen() as address:
        buffer = ValkeyBuffer(address, log=logged.append)
        keep(buffer, "turn_1")
        await soon(lambda: buffer.report().failing)
        assert events(logged) == ["store_failing"]
        await buffer.close()


@asynchronous
async def test_closing_does_not_wait_for_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """This holds for any number of queued commands. What is lost is in the store's report and in the log."""
    monkeypatch.setattr(valkey, "ANSWER_SECONDS", 100 * WAIT_SECONDS)
    monkeypatch.setattr(valkey_queue, "CLOSE_SECONDS", 0.1)
    logged: list[Any] = []
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db"), logged.append)
    await store.buffer.close()
    with frozen() as address:
        store.buffer = buffer = ValkeyBuffer(address, log=logged.append)
        for number in range(1000):
            keep(buffer, f"turn_{number}", chunks=2)
        assert store.report().queued > 2000
        async with asyncio.timeout(WAIT_SECONDS):
            report = await store.close()
    assert (report.dropped["chunks"], report.queued, report.queued_bytes) == (2000, 0, 0)
    assert logged[-1] == {"event": "store_lost", "dropped": report.dropped, "unfit": {}}


@asynchronous
async def test_closing_at_any_moment(valkey_url: str) -> None:
    for steps in range(40):
        buffer = ValkeyBuffer(valkey_url)
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_SECONDS):
            await buffer.close()


@pytest.mark.usefixtures("valkey_url")
@asynchronous
async def test_commands_are_resent_to_a_server_that_was_full() -> None:
    """It answers and accepts nothing: refused commands are sent again."""
    logged: list[Any] = []
    server = started_valkey()
    async with Valkey.from_url(server.connection_url) as client:
        await client.config_set("maxmemory", 1)
        buffer = ValkeyBuffer(server.connection_url, log=logged.append)
        keep(buffer, "turn_1", chunks=3)
        await soon(lambda: buffer.report().failing)
        await client.config_set("maxmemory", 0)
        await soon(lambda: not buffer.report().failing)
    assert await read(buffer, "turn_1") == 3 * KEPT
    assert events(logged) == ["store_failing", "store_back"]
    await buffer.close()
    assert (buffer.report().dropped, buffer.report().unfit) == ({}, {})
    await asyncio.to_thread(server.stop)


@asynchronous
async def test_a_command_that_the_server_never_accepts_does_not_stop_the_others(valkey_url: str) -> None:
    logged: list[Any] = []
    async with Valkey.from_url(valkey_url) as client:
        await client.set(f"{valkey_buffer.PREFIX}turn_unfit", "of another kind")
        buffer = ValkeyBuffer(valkey_url, log=logged.append)
        keep(buffer, "turn_unfit")
        keep(buffer, "turn_fit")
        await soon(lambda: not buffer.report().queued)
        assert await read(buffer, "turn_fit") == KEPT
        assert buffer.report().unfit == {"chunks": 1, "streams": 1}, "a chunk and the end"
        assert buffer.report().written["chunks"] == 1
        assert events(logged) == ["store_unfit"]
        assert "WRONGTYPE" in logged[0]["message"]
        await buffer.close()
