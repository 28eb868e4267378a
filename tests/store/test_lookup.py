"""Finds turns and sessions by the beginning of an id, by a directory, or by the last answer of a caller."""

from __future__ import annotations

from store.turns import answer, ask, asynchronous, start, take, user
from streamglot.store import Finished, SessionHints, Store, StoreSettings
from streamglot.store.queries import Lookup


@asynchronous
async def test_turns_and_sessions_are_found_by_the_beginning_of_an_id(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    first, second = [await take(store, ask(user(word)), answer("x")) for word in ("one", "two")]
    await store.writer.flush()
    lookup = Lookup(store.database)
    assert await lookup.turns_like(first.id[:25]) == [first.id]
    assert await lookup.turns_like("turn_") == [first.id, second.id]
    assert await lookup.turns_like("turn%") == []
    assert await lookup.sessions_like(second.session.id) == [second.session.id]
    assert await lookup.count_turns() == 2
    await store.close()


@asynchronous
async def test_the_last_answered_turn_is_found(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    request = ask(user("x"))
    session = await store.find_session(SessionHints(caller="me", directory="/here"), request)
    mine = start(store, session, request)
    mine.finish(Finished(ending="end", response=answer("yes")))
    silent = await take(store, request, answer(), caller="me")
    anonymous = await take(store, request, answer("no"), caller="anonymous:1")
    key = await take(store, request, answer("never"), caller="a key")
    await store.writer.flush()
    lookup = Lookup(store.database)

    async def last(**which: object) -> str:
        found = await lookup.last_answered(**which)  # type: ignore[arg-type]  # each test names its own
        return found.turn_id if found is not None else ""

    assert await last() == key.id
    assert await last(callers=("me", "")) == mine.id
    assert await last(callers=("me", ""), beginning="anonymous:") == anonymous.id
    assert await last(directory="/here") == mine.id
    assert await last(directory="/there") == ""
    assert await last(session_id=silent.session.id) == ""
    assert await lookup.sessions_in("/here", 5) == [session.id]
    await store.close()
