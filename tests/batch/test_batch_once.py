"""A batch with an id that several processes get at once runs in one of them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from batch.mock import MockUpstream
from batch.test_batch_endpoint import ask, chat, serving
from store.servers import writing
from streamglot.gateway.api import batch_answers
from streamglot.gateway.api.batch_answers import BatchAnswers
from streamglot.store import Store, StoreSettings
from streamglot.store.database import StoreLocked, sqlite
from streamglot.store.streams.valkey import ValkeyBuffer
from waiting import WAIT_SECONDS, soon


def _same(store: Store) -> Store:
    return store


@pytest.mark.parametrize("buffer", ["database", "postgresql", "valkey"])
def test_a_batch_that_two_gateways_get_at_once_runs_once(
    upstream: MockUpstream, tmp_path: Path, buffer: str, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path / 'db' / 'store.db'}"
    if buffer == "postgresql":
        url = asyncio.run(request.getfixturevalue("postgres").database())
    valkey = {"url": request.getfixturevalue("valkey_url") if buffer == "valkey" else ""}
    names = [f"at once {buffer} {number}" for number in range(6)]
    with (
        serving(upstream, tmp_path, store={"url": url}, valkey=valkey) as one,
        serving(upstream, tmp_path, store={"url": url}, valkey=valkey) as two,
        ThreadPoolExecutor(2 * len(names)) as threads,
    ):
        asked = [(threads.submit(ask, one, [chat(1, name)], batch_id=name), name) for name in names]
        asked += [(threads.submit(ask, two, [chat(1, name)], batch_id=name), name) for name in names]
        for asking, name in asked:
            answer = asking.result(WAIT_SECONDS)
            assert answer.status == 200, answer.body
            assert answer.json()["responses"] == [{"request_id": 1, "result": f"re: {name}", "error": None}]
        assert [upstream.asked[name] for name in names] == [1] * len(names)


@pytest.mark.usefixtures("patient_writers")
@pytest.mark.parametrize("buffer", ["database", "valkey"])
def test_a_batch_that_ended_without_an_answer_runs_again_in_one_place(
    tmp_path: Path, buffer: str, request: pytest.FixtureRequest
) -> None:
    async def run() -> None:
        async with AsyncExitStack() as opened:
            stores = []
            for _ in range(2):
                store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path / 'store.db'}"))
                opened.push_async_callback(store.close)
                if buffer == "valkey":
                    store.buffer = ValkeyBuffer(request.getfixturevalue("valkey_url"))
                stores.append(store)
            one, two = (BatchAnswers(partial(_same, store)) for store in stores)
            name = f"no answer {tmp_path}"
            assert await one.claim("me", name, "d")
            assert not await two.claim("me", name, "d"), "it runs elsewhere"
            one.begin("me", name, "d")
            one.finish("me", name, None)
            assert await two.find("me", name, "d") is None
            assert sorted([await one.claim("me", name, "d"), await two.claim("me", name, "d")]) == [False, True]

    asyncio.run(run())


def test_a_batch_is_not_run_while_another_process_may_be_claiming_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.01)
    monkeypatch.setattr(batch_answers, "LOCKED_SECONDS", WAIT_SECONDS)
    url = f"sqlite:///{tmp_path / 'store.db'}"

    async def run() -> None:
        one, two = [await Store.open(StoreSettings(url=url)) for _ in range(2)]
        try:
            answers, attempts, claim = BatchAnswers(lambda: one), [], one.buffer.claim

            async def counted(*given: str) -> bool:
                attempts.append(given)
                return await claim(*given)

            monkeypatch.setattr(one.buffer, "claim", counted)
            async with writing(url):
                claiming = asyncio.create_task(answers.claim("me", "locked", "d"))
                await soon(lambda: len(attempts) > 1 or claiming.done())
            assert await claiming
            assert not await BatchAnswers(lambda: two).claim("me", "locked", "d"), "the first claim was written"
            async with writing(url):
                monkeypatch.setattr(batch_answers, "LOCKED_SECONDS", 0.0)
                with pytest.raises(StoreLocked):
                    await answers.claim("me", "locked too long", "d")
        finally:
            await one.close()
            await two.close()

    asyncio.run(run())
