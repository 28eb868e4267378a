"""``client.batch``: many requests of a program at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from batch.mock import MockUpstream
from streamglot import Client, ConfigError, Message, Request
from streamglot.batch import RetryPolicy
from streamglot.client import BatchResult
from streamglot.messages import TextPart
from streamglot.upstream.settings import BreakerSettings
from waiting import soon

NEVER_OPEN = BreakerSettings(failures=1_000_000)
AT_ONCE = RetryPolicy(retries=2, first=0.001)


def test_results_come_for_every_kind_of_request(upstream: MockUpstream) -> None:
    async def run() -> list[BatchResult]:
        async with Client(upstreams=[upstream.upstream()]) as client:
            requests = [
                "text",
                Request(model="m", messages=[Message("user", [TextPart("object")])]),
                {"id": "named", "prompt": "prompt", "temperature": 0.1},
                {"messages": [{"role": "system", "content": "own"}, {"role": "user", "content": "chat"}]},
                {"prompt": 5},
                7,
            ]
            return [one async for one in client.batch(requests, model="m", system="short", ordered=True)]  # type: ignore[arg-type]  # requests of every form

    results = asyncio.run(run())
    assert [result.index for result in results] == [0, 1, 2, 3, 4, 5]
    assert [result.text for result in results] == ["re: text", "re: object", "re: prompt", "re: chat", "", ""]
    assert [result.id for result in results] == [0, 1, "named", 3, 4, 5]
    assert [result.error is None for result in results] == [True] * 4 + [False] * 2
    assert [body["messages"][0]["content"] for body in upstream.bodies if len(body["messages"]) > 1].count("short") == 3
    first = results[0]
    assert (first.upstream, first.model, first.attempts, first.cost) == ("mock", "m", 1, None)
    assert first.response.usage.input_tokens == 10


def test_a_plain_program_reads_them_with_for(upstream: MockUpstream) -> None:
    def source() -> Iterator[str]:
        yield from (f"p{number}" for number in range(30))

    with Client(upstreams=[upstream.upstream()]) as client:
        results = list(client.batch(source(), model="m", concurrent=4))
        texts = sorted(result.text for result in results)
        assert texts == sorted(f"re: p{number}" for number in range(30))
        for result in client.batch(source(), model="m", ordered=True):
            assert result.index == 0
            break
    assert upstream.most <= 8


def test_only_what_may_pass_is_retried(upstream: MockUpstream) -> None:
    upstream.fails = lambda prompt, times: {"flaky": 503 if times < 3 else 0, "bad": 400, "down": 503}.get(prompt, 0)
    with Client(upstreams=[upstream.upstream(breaker=NEVER_OPEN)]) as client:
        results = list(client.batch(["fine", "flaky", "bad", "down"], model="m", retry=AT_ONCE, ordered=True))
    assert [result.attempts for result in results] == [1, 3, 1, 3]
    assert [result.error is not None and result.error.code for result in results] == [
        False,
        False,
        "mock_failure",
        "mock_failure",
    ]
    assert upstream.asked == {"fine": 1, "flaky": 3, "bad": 1, "down": 3}


def test_results_come_before_the_slow_ones_are_done(upstream: MockUpstream) -> None:
    upstream.hold = threading.Event()
    upstream.held = lambda prompt: prompt == "slow"

    async def run() -> list[str]:
        async with Client(upstreams=[upstream.upstream()]) as client:
            texts = []
            async for result in client.batch(["slow", "a", "b"], model="m"):
                texts.append(result.text)
                if len(texts) == 2 and upstream.hold is not None:
                    upstream.hold.set()
            return texts

    assert asyncio.run(run())[2] == "re: slow"


def test_a_source_is_read_no_faster_than_requests_are_answered(upstream: MockUpstream) -> None:
    upstream.hold = threading.Event()
    read = 0

    async def source() -> AsyncIterator[str]:
        nonlocal read
        for number in range(1000):
            read += 1
            yield f"p{number}"

    async def run() -> None:
        async with Client(upstreams=[upstream.upstream()]) as client:
            results = aiter(client.batch(source(), model="m", concurrent=3))
            waiting = asyncio.ensure_future(anext(results))
            await soon(lambda: sum(upstream.asked.values()) == 3)
            assert read == 3
            assert upstream.hold is not None
            upstream.hold.set()
            await waiting

    asyncio.run(run())
    assert read < 50


def test_tools_and_policies_of_the_client_hold_for_its_batches(upstream: MockUpstream) -> None:
    def look_up(word: str) -> str:
        """Looks a word up."""
        return word

    with Client(upstreams=[upstream.upstream()], tools=[look_up]) as client:
        assert [result.text for result in client.batch(["a"], model="m")] == ["re: a"]
    assert upstream.bodies[0]["tools"][0]["function"]["name"] == "look_up"


def test_an_asynchronous_client_is_read_with_async_for(upstream: MockUpstream) -> None:
    async def run() -> Any:
        async with Client(upstreams=[upstream.upstream()]) as client:
            with pytest.raises(ConfigError):
                list(client.batch(["a"], model="m"))
            with pytest.raises(ConfigError):
                client.batch(["a"], concurrent=0)

    asyncio.run(run())
