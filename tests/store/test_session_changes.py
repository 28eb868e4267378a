"""Changes that people make to sessions: titles, and their removal. On every database."""

from __future__ import annotations

import pytest

from store.turns import answer, ask, asynchronous, begin, take, user
from streamglot.errors import RequestError
from streamglot.store import Filter, Store, StoreSettings
from streamglot.store.queries import TITLE_CHARS, rename_session
from streamglot.store.retention import delete_session


@asynchronous
async def test_a_title_is_given_changed_and_taken_back(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    turn = await take(store, ask(user("first words")), answer("yes"), name="s")
    other = await take(store, ask(user("other words")), answer("yes"), name="t")
    await store.writer.flush()

    async def titles() -> dict[str, str]:
        return {session.id: session.title for session in await store.queries.sessions()}

    for title in ("Zebras", "  Grévy's \n zebra  ", "x" * 500):
        await rename_session(store.database, turn.session.id, title)
        shown = " ".join(title.split())[:TITLE_CHARS]
        assert await titles() == {turn.session.id: shown, other.session.id: "other words"}
    await rename_session(store.database, turn.session.id, " ")
    assert (await titles())[turn.session.id] == "first words"
    await store.close()


@asynchronous
async def test_removing_a_session_removes_its_own_messages(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    shared = user("shared")
    gone = await take(store, ask(shared, user("a zebra")), answer("striped"), name="gone")
    stays = await take(store, ask(shared, user("a horse")), answer("plain"), name="stays")
    await store.writer.flush()
    await rename_session(store.database, gone.session.id, "Zebras")
    assert await delete_session(store.database, gone.session.id) == 1
    assert [turn.id for turn in await store.queries.turns()] == [stays.id]
    assert await store.queries.turns(Filter(search="zebra")) == []
    assert [session.id for session in await store.queries.sessions()] == [stays.session.id]
    kept = await store.queries.history(stays.id)
    assert [message.text for message in kept] == ["shared", "a horse", "plain"]
    assert await delete_session(store.database, gone.session.id) == 0
    await store.close()


@asynchronous
async def test_a_session_that_is_being_answered_stays(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    turn = await begin(store, ask(user("go")), name="busy")
    await store.writer.flush()
    with pytest.raises(RequestError, match="still being answered"):
        await delete_session(store.database, turn.session.id)
    assert [found.id for found in await store.queries.turns()] == [turn.id]
    await store.close()
