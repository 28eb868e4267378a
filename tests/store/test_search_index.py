"""SQLite's index is updated later than its texts: a search still finds all of them, and deleted texts are gone from the index."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from store.turns import answer, ask, asynchronous, take, user
from streamglot.store import Filter, Store, StoreSettings, prune_turns
from streamglot.store.database import StoreUnavailable
from streamglot.store.search import MAX_BEHIND, Indexing

pytestmark = pytest.mark.usefixtures("no_periodic_steps")


async def opened(folder: Path) -> Store:
    return await Store.open(StoreSettings(url=f"sqlite:///{folder}/s.db"))


async def say(store: Store, *words: str) -> list[str]:
    turns = [await take(store, ask(user(word)), answer("yes"), name=word) for word in words]
    await store.writer.flush()
    return [turn.id for turn in turns]


async def found(store: Store, word: str) -> int:
    return len(await store.queries.turns(Filter(search=word)))


async def indexed(store: Store) -> int:
    return int((await store.database.fetch("SELECT number FROM indexed"))[0][0])


async def make_old(store: Store, turns: list[str]) -> None:
    await store.database.execute("UPDATE turns SET started = :at WHERE id IN :turns", turns=turns, at=time.time() - 86_400)


async def whole(store: Store) -> None:
    """SQLite compares the index with the texts itself, and fails if they differ. All texts must be indexed for that."""
    await store.queries.indexing.catch_up()
    await store.database.execute("INSERT INTO search(search, rank) VALUES ('integrity-check', 1)")


@asynchronous
async def test_a_search_finds_what_was_not_indexed_yet(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await say(store, *(f"zebra {number}" for number in range(250)))
    assert await indexed(store) == 0
    assert len(await store.queries.turns(Filter(search="zebra", limit=500))) == 250
    assert await indexed(store) == 250
    await whole(store)
    await store.close()


@asynchronous
async def test_texts_that_are_pruned_before_they_are_indexed(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    first = await say(store, "zebra one", "zebra two")
    assert await found(store, "zebra") == 2
    second = await say(store, "zebra three", "zebra four")
    assert await indexed(store) == 2
    await make_old(store, [first[0], second[0]])
    assert (await prune_turns(store.database, older_than=3600)).turns == 2
    assert [await found(store, f"zebra {number}") for number in ("one", "two", "three", "four")] == [0, 1, 0, 1]
    await whole(store)
    await store.close()


@asynchronous
async def test_reused_numbers_do_not_confuse_the_index(tmp_path: Path) -> None:
    """SQLite continues the numbers from the newest text. A text that was indexed and pruned leaves its number to another."""
    store = await opened(tmp_path)
    all_of_them = await say(store, "zebra one", "zebra two", "zebra three")
    assert await found(store, "zebra") == 3
    await make_old(store, all_of_them)
    await prune_turns(store.database, older_than=3600)
    assert await indexed(store) == 0
    await say(store, "quagga")
    assert (await found(store, "zebra"), await found(store, "quagga")) == (0, 1)
    await whole(store)
    await store.close()


@asynchronous
async def test_an_idle_process_updates_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened(tmp_path)
    await say(store, "zebra one", "zebra two")
    used = 0.0
    monkeypatch.setattr("streamglot.store.search.time", SimpleNamespace(monotonic=time.monotonic, process_time=lambda: used))
    indexing = Indexing(store.database)
    used = 1e9
    await indexing.look()
    assert await indexed(store) == 0  # busy
    await indexing.look()
    assert await indexed(store) == 2
    await store.close()


@asynchronous
async def test_a_busy_process_updates_an_index_that_is_far_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamglot.store.search.IDLE_CPU_SHARE", -1.0)
    monkeypatch.setattr("streamglot.store.search.MAX_BEHIND", 50)
    store = await opened(tmp_path)
    await say(store, *(f"zebra {number}" for number in range(120)))
    await store.queries.indexing.look()
    assert 120 - 50 <= await indexed(store) <= 120
    assert MAX_BEHIND > 50
    await store.close()


@asynchronous
async def test_the_store_updates_the_index_periodically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamglot.store.store.FIRST_SECONDS", 0.0)
    monkeypatch.setattr("streamglot.store.store.SEEN_SECONDS", 0.01)
    monkeypatch.setattr("streamglot.store.search.IDLE_CPU_SHARE", 2.0)
    store = await opened(tmp_path)
    await say(store, "zebra")
    end = time.monotonic() + 60
    while await indexed(store) != 1:
        assert time.monotonic() < end
    await store.close()


@asynchronous
async def test_a_database_that_cannot_be_written_to_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened(tmp_path)
    await say(store, "zebra")
    assert await indexed(store) == 0

    async def refused(*_: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(store.database._engine, "write", refused)
        with pytest.raises(StoreUnavailable, match="try again"):
            await found(store, "zebra")
    assert await found(store, "zebra") == 1
    await store.close()
