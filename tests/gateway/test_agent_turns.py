"""An agent that repeats its tools, its instructions and its history with every request adds little more than its new text."""

from __future__ import annotations

import asyncio

import pytest
from bench.agent_turn import DIALECTS, MOST_BYTES, Agent, sizes, upstream

from gateway.running import running
from streamglot.store import Database
from streamglot.store.search import Indexing
from waiting import WAIT_SECONDS

WARM_UP = 20
"""Turns until the search index has met most words."""
TURNS = 100
"""Enough that the pages of all tables and indexes, which are not full, hardly count."""


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_turn_of_an_agent_adds_few_bytes(url: str, dialect: str) -> None:
    async def settle(turns: int) -> None:
        database = await Database.open(url)

        async with asyncio.timeout(WAIT_SECONDS):
            while len(await database.fetch("SELECT turn_id FROM endings")) < turns:
                await asyncio.sleep(0.02)
        await Indexing(database).catch_up()
        await database.close()

    def size(turns: int) -> int:
        asyncio.run(settle(turns))
        return sum(sizes(url).values())

    with upstream() as port:
        config = {
            "store": {"url": url},
            "upstreams": {"model": {"dialect": "openai_chat", "base_url": f"http://127.0.0.1:{port}/v1"}},
        }
        with running(config) as gateway:
            agent = Agent(gateway.port, dialect)
            for _ in range(WARM_UP):
                agent.ask()
            before = size(WARM_UP)
            for _ in range(TURNS):
                agent.ask()
            after = size(WARM_UP + TURNS)
    assert (after - before) / TURNS <= MOST_BYTES
