"""Budgets and limits under load: what parallel requests may use together, streams that are stopped, several workers."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from databases import EVERY_DATABASE
from gateway.archived import inside, store_of, with_store
from gateway.dialect_clients import CLIENT_DIALECTS, body_of, path_of, understood
from gateway.process import Served, serving
from gateway.running import Answer, Running
from gateway.stored_turns import USAGE, chunk, keeping, kept, text_script
from gateway.upstream import Hang, HostileUpstream, Until, sse, streamed, whole
from gateway.worker_client import Line, at_once
from store.turns import answer, ask, asynchronous, take, user
from streamglot.config import KeyConfig
from streamglot.gateway.auth import authenticator as stored_keys
from streamglot.gateway.auth.authenticator import Caller
from streamglot.gateway.auth.budgets import OUTPUT_TOKENS
from streamglot.messages import TokenCounts
from streamglot.store import Store
from waiting import WAIT_SECONDS, soon, until

CHAT = "/v1/chat/completions"
WORDS = 400
_numbers = itertools.count()


def fresh(upstream: HostileUpstream, script: Any) -> str:
    """A new model name that answers with this script."""
    name = f"budget-{next(_numbers)}"
    upstream.scripts[name] = script
    return name


def key(url: str, name: str = "me", **limits: Any) -> str:
    """As ``streamglot keys add`` makes it, in a process of its own."""
    return with_store(url, lambda store: store.keys.add(name, **limits))[1]


def asking(model: str, stream: bool = True, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "q"}], "stream": stream, **more}


@pytest.mark.parametrize(
    ("limit", "reserved"), [(-10_000, 10), (0, 10), (5, 15), (None, 10 + OUTPUT_TOKENS), (10**9, 10 + OUTPUT_TOKENS)]
)
@asynchronous
async def test_a_reservation_is_never_negative(limit: int | None, reserved: int) -> None:
    caller = Caller(KeyConfig(name="me", tokens_per_minute=1_000), f"never negative {limit}")
    reservation = await caller.reserve(10, limit, lambda given, taken: 0.0, 0.0)
    assert reservation._tokens == reserved
    reservation.settle(TokenCounts(10, 3), 0.0)
    assert caller.limits(0.0)["tokens"].left == 1_000 - 13


async def parallel(port: int, count: int, secret: str, body: dict[str, Any]) -> list[tuple[int, bytes]]:
    """This many requests at once, each over a connection of its own."""

    async def one() -> tuple[int, bytes]:
        line = await Line.to(port)
        data = await line.ask(CHAT, body, {"x-api-key": secret})
        line.hang_up()
        return line.status, data

    return await asyncio.gather(*(one() for _ in range(count)))


def endless(upstream: HostileUpstream) -> str:
    """A model that says many words, far more than any budget here allows, and does not end."""
    words = [chunk({"content": f"word {number} "}) for number in range(WORDS)]
    return fresh(upstream, streamed(*words, Hang()))


def spent(url: str, name: str = "me") -> int:
    async def found(store: Store) -> int:
        return next(used.tokens for known, used in await store.keys.balances() if known.name == name)

    return with_store(url, found)


# --- admission


@EVERY_DATABASE
def test_parallel_requests_share_what_is_left(upstream: HostileUpstream, url: str) -> None:
    go_on = threading.Event()
    model = fresh(upstream, text_script("word", Until(go_on)))
    secret = key(url, budget_tokens=100)
    with keeping(upstream, url) as gateway:
        done: list[tuple[int, bytes]] = []

        async def drive() -> None:
            tasks = [asyncio.create_task(parallel(gateway.port, 1, secret, asking(f"work/{model}"))) for _ in range(200)]
            await soon(lambda: sum(task.done() for task in tasks) == 199)
            go_on.set()
            for task in tasks:
                done.extend(await task)

        at_once(drive)
        refused = [msgspec.json.decode(body)["error"] for status, body in done if status == 429]
        assert len(refused) == 199
        assert {error["code"] for error in refused} == {"budget_reserved"}
        assert "wait until one of them ends" in refused[0]["message"]
        until(lambda: gateway.ask(CHAT, asking("replay"), {"x-api-key": secret}).status == 200, lambda: "it was not given back")
    assert len(upstream.requests(model)) == 1


def test_a_reservation_of_a_request_that_failed_is_given_back(upstream: HostileUpstream, url: str) -> None:
    model = fresh(upstream, whole({"error": {"message": "no"}}, 400))
    secret = key(url, budget_tokens=100, tokens_per_minute=100)
    with keeping(upstream, url) as gateway:
        for _ in range(5):
            assert gateway.ask(CHAT, asking(f"work/{model}"), {"x-api-key": secret}).status == 400
        assert gateway.ask(CHAT, asking("replay"), {"x-api-key": secret}).status == 200


def test_a_request_that_is_larger_than_what_is_left_is_refused(upstream: HostileUpstream, url: str) -> None:
    model = fresh(upstream, text_script("word"))
    secret = key(url, budget_tokens=100)
    with keeping(upstream, url) as gateway:
        large = asking(f"work/{model}", messages=[{"role": "user", "content": "word " * 200}])
        refused = gateway.ask(CHAT, large, {"x-api-key": secret})
        assert (refused.status, refused.json()["error"]["code"]) == (429, "budget_exceeded")
        assert "about 282 tokens of input" in refused.json()["error"]["message"]
        assert gateway.ask(CHAT, asking(f"work/{model}"), {"x-api-key": secret}).status == 200
    assert len(upstream.requests(model)) == 1


def test_tokens_per_minute_are_reserved_too(upstream: HostileUpstream, url: str) -> None:
    go_on = threading.Event()
    model = fresh(upstream, text_script("word", Until(go_on)))
    secret = key(url, tokens_per_minute=100)
    with keeping(upstream, url) as gateway:
        first: list[Answer] = []
        body = asking(f"work/{model}")
        thread = threading.Thread(target=lambda: first.append(gateway.ask(CHAT, body, {"x-api-key": secret})))
        thread.start()
        upstream.wait_for(model)
        refused = gateway.ask(CHAT, asking("replay"), {"x-api-key": secret})
        assert (refused.status, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        go_on.set()
        thread.join()
        assert first[0].status == 200
        assert gateway.ask(CHAT, asking("replay"), {"x-api-key": secret}).status == 200  # it used 7, not what was reserved


# --- streams that are stopped


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_a_stream_is_stopped_when_the_budget_is_used_up(upstream: HostileUpstream, tmp_path: Path, client: str) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    name = endless(upstream)
    secret = key(url, budget_tokens=100)
    with keeping(upstream, url) as gateway:
        model = f"work/{name}"
        found = understood(client, gateway.ask(path_of(client, model), body_of(client, model), {"x-api-key": secret}))
        assert found.status == 200
        assert found.error is not None
        assert "the key 'me' has used 1" in found.error
        assert "upstream" not in found.error
        assert 30 < len(found.text.split()) < 150
        assert gateway.ask(CHAT, asking("replay"), {"x-api-key": secret}).json()["error"]["code"] == "budget_exceeded"
        (turn,) = kept(url)
    assert (turn.ending, turn.error and turn.error.code) == ("error", "budget_exceeded")
    assert turn.response is not None
    assert turn.response.choices[0].text == found.text
    assert turn.usage is not None
    assert 90 <= (turn.usage.input_tokens or 0) + (turn.usage.output_tokens or 0) <= 150
    until(lambda: upstream.requests(name)[-1].closed, lambda: "the upstream went on")


def test_a_whole_answer_is_stopped_too(upstream: HostileUpstream, url: str) -> None:
    model = endless(upstream)
    secret = key(url, budget_tokens=100)
    with keeping(upstream, url) as gateway:
        answered = gateway.ask(CHAT, asking(f"work/{model}", False), {"x-api-key": secret})
        assert (answered.status, answered.json()["error"]["code"]) == (429, "budget_exceeded")
        (turn,) = kept(url)
    assert turn.response is not None
    assert turn.response.choices[0].text.startswith("word 0 word 1 ")


def test_usage_of_other_requests_of_the_key_stops_a_stream(upstream: HostileUpstream, url: str) -> None:
    model = fresh(upstream, text_script("first", Hang()))
    secret = key(url, budget_tokens=2_000)
    with keeping(upstream, url) as gateway:
        answers: list[Answer] = []
        quiet = asking(f"work/{model}")
        thread = threading.Thread(target=lambda: answers.append(gateway.ask(CHAT, quiet, {"x-api-key": secret})))
        thread.start()
        upstream.wait_for(model, lambda seen: seen.sent > 0)
        with_store(url, lambda store: _used(store, 5_000))
        thread.join()
        assert b"budget_exceeded" in answers[0].body
        assert b"first" in answers[0].body


async def _used(store: Store, tokens: int) -> None:
    large = answer("x")
    large.usage = TokenCounts(tokens, 0)
    await take(store, ask(user("x")), large, caller="me")


def test_large_pieces_count_by_their_length(upstream: HostileUpstream, url: str) -> None:
    """An upstream that says thousands of words in one event uses thousands of tokens."""
    pieces = [chunk({"content": "word " * 1_000}) for _ in range(50)]
    model = fresh(upstream, streamed(*pieces, Hang()))
    secret = key(url, budget_tokens=3_000)
    with keeping(upstream, url) as gateway:
        answered = gateway.ask(CHAT, asking(f"work/{model}"), {"x-api-key": secret})
        assert b"budget_exceeded" in answered.body
        assert len(answered.body) < 30_000


# --- what counts


def test_usage_counts_before_it_is_in_the_database(upstream: HostileUpstream, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    model = fresh(upstream, text_script("word"))
    secret = key(url, budget_tokens=21)
    with keeping(upstream, url) as gateway:
        locker = sqlite3.connect(tmp_path / "s.db", isolation_level=None, timeout=WAIT_SECONDS)
        locker.execute("BEGIN IMMEDIATE")
        statuses = [gateway.ask(CHAT, asking(f"work/{model}", False), {"x-api-key": secret}).status for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]  # 7 tokens each
        locker.execute("COMMIT")
        locker.close()
        inside(gateway, store_of(gateway).writer.flush())
        inside(gateway, gateway.gateway.access.stored.refresh(store_of(gateway)))
        caller = gateway.gateway.access.authenticator.admit({"x-api-key": secret})
        assert caller is not None
        assert caller.budget.used() == (21, 0)  # and not twice
    assert spent(url) == 21
    with keeping(upstream, url) as gateway:
        assert gateway.ask(CHAT, asking(f"work/{model}", False), {"x-api-key": secret}).status == 429


@EVERY_DATABASE
def test_usage_that_is_written_while_usage_is_added_up_counts_once(
    upstream: HostileUpstream, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_keys, "REFRESH_SECONDS", 3 * WAIT_SECONDS)  # the test adds up itself
    model = fresh(upstream, text_script("word"))
    secret = key(url, budget_tokens=100)
    with keeping(upstream, url) as gateway:
        store, stored = store_of(gateway), gateway.gateway.access.stored
        balances, bodies = store.keys.balances, [asking(f"work/{model}", False)]

        async def meanwhile() -> Any:
            while bodies:
                await asyncio.to_thread(gateway.ask, CHAT, bodies.pop(), {"x-api-key": secret})
                await store.writer.flush()
            return await balances()

        monkeypatch.setattr(store.keys, "balances", meanwhile)
        stored._count_at = 0.0
        inside(gateway, stored.refresh(store))
        caller = gateway.gateway.access.authenticator.admit({"x-api-key": secret})
        assert caller is not None
        assert caller.budget.used() == (7, 0)


def test_negative_usage_makes_no_budget_larger(upstream: HostileUpstream, url: str) -> None:
    wrong = {"prompt_tokens": -1_000_000, "completion_tokens": -5, "total_tokens": -1}
    model = fresh(upstream, streamed(chunk({"content": "word " * 10}), chunk({}, "stop", usage=wrong), sse("[DONE]")))
    secret = key(url, budget_tokens=30)
    with keeping(upstream, url) as gateway:
        gateway.ask(CHAT, asking(f"work/{model}"), {"x-api-key": secret})
        caller = gateway.gateway.access.authenticator.admit({"x-api-key": secret})
        assert caller is not None
        until(lambda: caller.budget.used()[0] == caller.budget.settled()[0] >= 0)
    assert spent(url) >= 0


def test_embeddings_count(upstream: HostileUpstream, url: str) -> None:
    vector = {"object": "embedding", "index": 0, "embedding": [0.5]}
    usages: list[dict[str, Any]] = [{"prompt_tokens": 40, "total_tokens": 40}, {"prompt_tokens": -7}, {}]
    model = fresh(upstream, [whole({"object": "list", "data": [vector], "usage": usage}) for usage in usages])
    secret = key(url, budget_tokens=100, tokens_per_minute=1_000)
    with keeping(upstream, url) as gateway:
        body = {"model": f"work/{model}", "input": ["word " * 20] * 2}  # about 58 tokens
        statuses = [gateway.ask("/v1/embeddings", body, {"x-api-key": secret}).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        line = gateway.log_line(lambda line: line.get("dialect") == "embeddings")
        assert (line["input_tokens"], line["ending"], line["key"]) == (40, "end", "me")
        turns = kept(url, lambda found: len(found) == 2 and all(turn.ending for turn in found))
    assert [turn.usage.input_tokens if turn.usage else None for turn in turns] == [40, 58]
    assert {(turn.dialects["client"], turn.upstream, turn.title) for turn in turns} == {("embeddings", "work", "")}


def test_embeddings_that_fail_cost_nothing(upstream: HostileUpstream, url: str) -> None:
    model = fresh(upstream, whole({"error": {"message": "no"}}, 400))
    secret = key(url, budget_tokens=10)
    with keeping(upstream, url) as gateway:
        for _ in range(3):
            failed = gateway.ask("/v1/embeddings", {"model": f"work/{model}", "input": "q"}, {"x-api-key": secret})
            assert failed.status == 400
        turns = kept(url, lambda found: len(found) == 3 and all(turn.ending for turn in found))
    assert {turn.ending for turn in turns} == {"error"}
    assert spent(url) == 0


def test_a_budget_of_money(upstream: HostileUpstream, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dollar a token."""
    for place in ("gateway.auth.budgets", "engine.turn_recorder"):
        monkeypatch.setattr(f"streamglot.{place}.price", lambda usage, *_: float(usage.output_tokens or 0))
    model = endless(upstream)
    secret = key(url, budget_cost=50.0)
    with keeping(upstream, url) as gateway:
        answered = gateway.ask(CHAT, asking(f"work/{model}"), {"x-api-key": secret})
        assert b"budget_exceeded" in answered.body
        assert b"of the 50.00 that it may cost" in answered.body
        (turn,) = kept(url)
    assert turn.cost is not None
    assert 40 < turn.cost < 100


# --- several workers


def of_workers(served: Served, count: int) -> None:
    until(lambda: len(served.workers()) == count)


def test_two_workers_share_a_budget(upstream: HostileUpstream, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    model = fresh(upstream, text_script("word"))
    secret = key(url, budget_tokens=100)

    async def drive() -> None:
        with serving(tmp_path, upstream.url, url, "--workers", "2") as served:
            of_workers(served, 2)
            done = await parallel(served.port, 200, secret, asking(f"up/{model}", False))
            assert {status for status, _ in done} == {200, 429}
            codes = {msgspec.json.decode(body)["error"]["code"] for status, body in done if status == 429}
            assert codes <= {"budget_reserved", "budget_exceeded"}

    at_once(drive)
    assert 7 <= spent(url) < 100 + 7


def test_streams_at_once_are_counted_over_all_workers(upstream: HostileUpstream, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    model = fresh(upstream, text_script("first", Hang()))
    secret = key(url, concurrent=4)

    async def drive() -> None:
        with serving(tmp_path, upstream.url, url, "--workers", "2") as served:
            of_workers(served, 2)
            lines = await opened(served, 40)
            assert len(lines) == 4
            killed, *_ = served.workers()
            os.kill(killed, signal.SIGKILL)
            await soon(lambda: len(served.workers()) == 2 and killed not in served.workers())
            for line in lines:
                line.hang_up()
            again: list[Line] = []

            async def free() -> bool:
                again.extend(await opened(served, 8))
                return len(again) >= 4

            while not await free():
                await asyncio.sleep(0.01)
            assert len(again) == 4, "what a killed worker held is free again, and no more than that"

    async def opened(served: Served, count: int) -> list[Line]:
        """As many streams as are let in, out of this many."""
        lines = []
        for _ in range(count):
            line = await Line.to(served.port)
            await line.send(CHAT, asking(f"up/{model}"), {"x-api-key": secret})
            if line.status == 200:
                lines.append(line)
            else:
                assert line.status == 429
                line.hang_up()
        return lines

    at_once(drive)


def test_an_answer_from_the_cache_costs_nothing(upstream: HostileUpstream, url: str) -> None:
    model = fresh(upstream, streamed(chunk({"content": "word"}), chunk({}, "stop", usage=USAGE), sse("[DONE]")))
    routes = [{"models": ["cached"], "to": [{"upstream": "work", "model": model}], "cache_seconds": 600.0}]
    secret = key(url, budget_tokens=15)
    with keeping(upstream, url, routes=routes) as gateway:
        statuses = [_asked(gateway, secret) for _ in range(20)]
    assert statuses == [200] * 20
    assert spent(url) == 7


def _asked(gateway: Running, secret: str) -> int:
    return gateway.ask(CHAT, asking("cached"), {"x-api-key": secret}).status
