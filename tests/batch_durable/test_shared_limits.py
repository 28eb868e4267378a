"""Rate limits that workers count together in Valkey: the permits of two workers, and worker processes against a mock that counts."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from batch_durable.mock import RunningMock, mocked
from batch_durable.processes import config_of, gateway, input_lines, worker
from batch_durable.s3_server import Tunnel
from batch_durable.test_batch_clients import client_of, ended, submitted
from batch_durable.test_killed_batches import checked, questions
from store.servers import Postgres, frozen, nobody
from store.turns import asynchronous
from streamglot.batch.durable import pace
from streamglot.batch.durable.background import BackgroundTraffic
from streamglot.batch.durable.pace import LONGEST_PAUSE, SharedPace
from streamglot.counters import valkey
from streamglot.counters.valkey import LOST_MS, PREFIX, SharedLimits
from streamglot.tasks import TaskSupervisor
from streamglot.upstream import Upstream
from waiting import WAIT_SECONDS, soon, until

MANY = 1000
"""Concurrent calls of a worker: more than any limit here."""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grants all that is left at once, so that the tests count and do not wait. Processes spread their grants. Calls that need no
    permit need none for as long as a test takes."""
    monkeypatch.setattr(valkey, "AHEAD_MS", 10**9)
    monkeypatch.setattr(valkey, "FREE_SECONDS", WAIT_SECONDS)


class Counted:
    """One worker and its pace of the upstream ``up``."""

    def __init__(self, url: str, name: str, account: str) -> None:
        self.lines: list[Mapping[str, Any]] = []
        self.woken = 0
        self.limits = SharedLimits(url, name, account=lambda upstream: account, say=self.lines.append)
        self.limits.wake = self._wake
        self.traffic = BackgroundTraffic(MANY, limits=self.limits)

    def _wake(self) -> None:
        self.woken += 1

    @property
    def pace(self) -> SharedPace:
        pace = self.traffic.pace("up")
        assert isinstance(pace, SharedPace)
        return pace

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]

    async def start(self, wanted: int) -> int:
        """Starts as many of these calls as may start now. Returns their number."""
        now = time.monotonic()
        self.pace.delay(now, wanted)
        await self.limits.exchange()
        begun = 0
        while begun < wanted and self.pace.delay(time.monotonic(), wanted - begun) == 0:
            self.pace.started(time.monotonic())
            begun += 1
        return begun

    def answer(self, status: int = 200, /, **headers: object) -> None:
        """One call is answered with these headers."""
        fields = {f"x-ratelimit-{name.replace('_', '-')}": str(value) for name, value in headers.items()}
        self.traffic.answered(Upstream(name="up"), status, fields)
        self.pace.ended()

    async def knows(self, left: int, limit: int, unit: str = "requests", reset: str = "50s") -> None:
        """Makes one call, whose answer reports a limit."""
        assert await self.start(1) == 1
        self.answer(200, **{f"remaining_{unit}": left, f"limit_{unit}": limit, f"reset_{unit}": reset})
        await self.limits.exchange()


@asynccontextmanager
async def two_workers(url: str, account: str) -> AsyncIterator[tuple[Counted, Counted]]:
    one, two = Counted(url, "one", account), Counted(url, "two", account)
    try:
        yield one, two
    finally:
        await one.limits.close()
        await two.limits.close()


@asynchronous
async def test_two_workers_take_no_more_than_the_upstream_has_left(valkey_url: str) -> None:
    async with two_workers(valkey_url, "both") as (one, two):
        await one.knows(left=9, limit=10)
        assert [await one.start(4), await two.start(4), await one.start(4), await two.start(4)] == [4, 4, 1, 0]
        assert two.pace.delay(time.monotonic()) > 1, "it asks again when the window is over"
        assert two.pace.rests(time.monotonic())


@asynchronous
async def test_a_worker_without_work_leaves_the_limit_to_the_others(valkey_url: str) -> None:
    async with two_workers(valkey_url, "idle") as (one, two):
        await one.knows(left=9, limit=10)
        assert await two.start(100) == 9, "not half of it"
        assert await one.start(1) == 0


@asynchronous
async def test_traffic_of_others_counts_against_the_limit(valkey_url: str) -> None:
    async with two_workers(valkey_url, "others") as (one, two):
        await one.knows(left=90, limit=100)
        assert await two.start(10) == 10
        two.answer(remaining_requests=5, limit_requests=100, reset_requests="50s")
        await two.limits.exchange()
        assert await one.start(50) == 5


@asynchronous
async def test_a_late_report_raises_nothing(valkey_url: str) -> None:
    async with two_workers(valkey_url, "late") as (one, two):
        await one.knows(left=9, limit=10)
        assert await two.start(8) == 8
        two.answer(remaining_requests=10, limit_requests=10, reset_requests="50s")
        await two.limits.exchange()
        assert await one.start(8) == 1


@asynchronous
async def test_tokens_are_counted_by_the_mean_size_of_a_call(valkey_url: str) -> None:
    async with two_workers(valkey_url, "tokens") as (one, two):
        for each in (one, two):
            each.pace.succeeded(100)
        await one.knows(left=1050, limit=2000, unit="tokens")
        assert [await one.start(6), await two.start(6)] == [6, 4]


@asynchronous
async def test_the_limit_is_full_again_after_its_window_except_for_calls_in_flight(valkey_url: str) -> None:
    async with two_workers(valkey_url, "window") as (one, two):
        await one.knows(left=3, limit=10, reset="1ms")
        await asyncio.sleep(0.01)  # longer than the window: nothing can make this too short
        assert await one.start(4) == 4
        await two.limits.exchange()
        assert await two.start(10) == 6, "the four of the other worker may be counted in the new window"


@asynchronous
async def test_calls_in_flight_before_a_limit_is_known_are_counted(valkey_url: str) -> None:
    async with two_workers(valkey_url, "unknown") as (one, two):
        one.pace.maximum = two.pace.maximum = 5
        one.pace.allowed = two.pace.allowed = 5.0
        assert [await one.start(5), await two.start(2)] == [5, 2], "nothing is known"
        one.answer(remaining_requests=20, limit_requests=30, reset_requests="50s")
        await one.limits.exchange()
        one.pace.allowed = 100.0
        assert await one.start(100) == 11, "20, without 4 of its own and the 5 that the other may have started"


@asynchronous
async def test_a_refusal_pauses_all_workers(valkey_url: str) -> None:
    async with two_workers(valkey_url, "refusal") as (one, two):
        assert await one.start(1) == 1
        one.answer(429, **{"not-a-limit": 1})
        await one.limits.exchange()
        assert await two.start(1) == 0
        assert two.pace.rests(time.monotonic())
        assert two.traffic.paused() == ["up"]
        assert two.pace.delay(time.monotonic()) <= LONGEST_PAUSE


@asynchronous
async def test_a_worker_that_died_no_longer_counts(valkey_url: str) -> None:
    from valkey.asyncio import Valkey

    async with two_workers(valkey_url, "dead") as (one, two):
        assert await one.start(7) == 7
        client: Any = Valkey.from_url(valkey_url)
        flights = f"{PREFIX}{{dead}}:flights"
        seen = int((await client.hget(flights, "one")).split(b":")[1])
        await client.hset(flights, "one", f"{MANY}:{seen - LOST_MS - 1}")
        await two.knows(left=9, limit=10)
        assert await two.start(20) == 9
        assert await client.hkeys(flights) == [b"two"]
        await client.aclose()


@asynchronous
async def test_accounts_are_separate_and_closing_removes_the_calls(valkey_url: str) -> None:
    from valkey.asyncio import Valkey

    async with two_workers(valkey_url, "first") as (one, _), two_workers(valkey_url, "second") as (other, _):
        await one.knows(left=0, limit=10)
        assert await one.start(1) == 0
        assert await other.start(30) == 30
    client: Any = Valkey.from_url(valkey_url)
    assert await client.hkeys(f"{PREFIX}{{second}}:flights") == []
    await client.aclose()


@asynchronous
async def test_unused_permits_are_given_back(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from valkey.asyncio import Valkey

    monkeypatch.setattr(pace, "HEARTBEAT_SECONDS", -1.0)
    client: Any = Valkey.from_url(valkey_url)
    async with two_workers(valkey_url, "unused") as (one, _):
        await one.knows(left=9, limit=10)
        one.pace.delay(time.monotonic(), 5)
        await one.limits.exchange()
        flights = f"{PREFIX}{{unused}}:flights"
        assert (await client.hget(flights, "one")).startswith(b"5:")
        await one.limits.exchange()
        await one.limits.exchange()
        assert await client.hgetall(flights) == {}
    await client.aclose()


# --- Valkey goes away


@asynchronous
async def test_without_valkey_a_worker_continues_with_its_share(valkey_url: str) -> None:
    tunnel = Tunnel(valkey_url.replace("redis://", "http://"))
    one = Counted(tunnel.address.replace("http://", "redis://"), "one", "tunnel")
    one.traffic.workers = 2
    tasks = TaskSupervisor(one.lines.append)
    tasks.start("rate limits", one.limits.run)
    try:
        one.pace.delay(time.monotonic())
        await soon(lambda: one.pace.delay(time.monotonic()) == 0)
        tunnel.close()
        await soon(lambda: not one.pace.counted, lambda: str(one.lines))
        now = time.monotonic()
        fields = {"x-ratelimit-remaining-requests": "10", "x-ratelimit-reset-requests": "50s"}
        one.pace.learn(now, fields, 0.0)
        one.pace.started(now)
        assert one.pace.delay(now) == pytest.approx(10.0), "five calls in 50 seconds"
        one.pace.ended()
        assert one.events == ["rate_limits_divided"], "one line, however often it fails"
        tunnel.open()
        await soon(lambda: one.pace.counted, lambda: str(one.lines))
        assert one.events == ["rate_limits_divided", "rate_limits_counted"]
        assert one.woken
    finally:
        one.limits.stop()
        await tasks.close()
        await one.limits.close()


@asynchronous
@pytest.mark.parametrize("absent", [nobody, frozen])
async def test_a_valkey_server_that_never_answered_stops_no_request(absent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey, "ANSWER_SECONDS", 0.05)
    with absent() as url:
        one = Counted(url, "one", "absent")
        tasks = TaskSupervisor(one.lines.append)
        tasks.start("rate limits", one.limits.run)
        try:
            assert one.pace.delay(time.monotonic()) == float("inf")
            await soon(lambda: one.pace.delay(time.monotonic()) == 0, lambda: str(one.lines))
            assert one.events == ["rate_limits_divided"]
            assert one.woken
        finally:
            one.limits.stop()
            await tasks.close()
            await one.limits.close()


@asynchronous
async def test_a_lost_cancellation_does_not_delay_the_end(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Python 3.12 ``wait_for``, which the client uses, may lose one."""
    one = Counted(valkey_url, "one", "cancelled")
    waiting = asyncio.Event()

    async def ignoring_cancellation() -> None:
        waiting.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    monkeypatch.setattr(one.limits, "exchange", ignoring_cancellation)
    tasks = TaskSupervisor(one.lines.append)
    tasks.start("rate limits", one.limits.run)
    one.pace.delay(time.monotonic())
    await waiting.wait()
    one.limits.stop()
    async with asyncio.timeout(WAIT_SECONDS):
        await tasks.close()
    await one.limits.close()


# --- processes


async def state_of(url: str, account: str) -> dict[bytes, bytes]:
    from valkey.asyncio import Valkey

    client: Any = Valkey.from_url(url)
    found: dict[bytes, bytes] = await client.hgetall(f"{PREFIX}{{{account}}}")
    await client.aclose()
    return found


def limited(upstream: RunningMock, store: str, valkey: str, **batches: Any) -> str:
    config = config_of(upstream.url, store, keys=f'[valkey]\nurl = "{valkey}"', **batches)
    return config.replace("log = false", "log = true")


def test_two_workers_stay_within_a_limit_that_the_upstream_counts(postgres: Postgres, valkey_url: str, tmp_path: Path) -> None:
    """Before the limit is known each worker has at most 4 calls in flight, which the first window has room for."""
    count, limit = 80, 20
    with mocked(str(limit), "1.0") as upstream:
        store = asyncio.run(postgres.database())
        config = limited(upstream, store, valkey_url, concurrency=4, worker=False, directory=str(tmp_path / "files"))
        with (
            gateway(tmp_path / "gateway", config) as process,
            worker(tmp_path / "one", config) as one,
            worker(tmp_path / "two", config) as two,
        ):
            client = client_of(process)
            checked(client, ended(client, submitted(client, input_lines(questions(count)))), count)
            for each in (one, two):
                assert "rate_limits_divided" not in each.log.read_text()
        stats = upstream.stats()
        account = hashlib.sha256(f"{upstream.url}/v1\n".encode()).hexdigest()[:32]
    known = asyncio.run(state_of(valkey_url, account))
    assert float(known[b"requests:limit"]) == limit, "it was counted in Valkey"
    assert sum(stats["accepted"]) == count
    assert stats["refused"] == 0
    assert max(stats["accepted"]) <= limit
    assert len(stats["accepted"]) >= count / limit


def test_two_workers_continue_when_valkey_goes_away(postgres: Postgres, valkey_url: str, tmp_path: Path) -> None:
    """Both have calls in flight when Valkey goes away: a worker without calls does not notice it."""
    count, concurrency = 150, 4
    tunnel = Tunnel(valkey_url.replace("redis://", "http://"))
    with mocked("50", "1.0") as upstream:
        store = asyncio.run(postgres.database())
        address = tunnel.address.replace("http://", "redis://")
        config = limited(upstream, store, address, concurrency=concurrency, worker=False, directory=str(tmp_path / "files"))
        with (
            gateway(tmp_path / "gateway", config) as process,
            worker(tmp_path / "one", config) as one,
            worker(tmp_path / "two", config) as two,
        ):
            client = client_of(process)
            batch = submitted(client, input_lines((name, f"{question} slow") for name, question in questions(count)))
            until(lambda: upstream.asked() == 2 * concurrency)
            tunnel.close()
            for each in (one, two):
                until(lambda log=each.log: "rate_limits_divided" in log.read_text(), lambda: "it does not notice")  # type: ignore[misc]  # a default binds the variable
            upstream.release()
            checked(client, ended(client, batch), count)
            for each in (one, two):
                assert each.log.read_text().count("rate_limits_divided") == 1, each.log.read_text()
            tunnel.open()
            for each in (one, two):
                until(lambda log=each.log: "rate_limits_counted" in log.read_text(), lambda: "it does not count again")  # type: ignore[misc]  # a default binds the variable
        assert sum(upstream.stats()["accepted"]) == count, "every item was answered once"
