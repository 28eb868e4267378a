"""Responses are retrieved by their id while they run and after their end, until they are withdrawn."""

from __future__ import annotations

import pytest

from store.tables import counted
from store.turns import answer, ask, asynchronous, begin, take, user
from streamglot.errors import RequestError
from streamglot.store import Filter, Finished, SessionHints, Store, StoreSettings, prune_turns

pytestmark = pytest.mark.usefixtures("patient_lookups")


async def continued(store: Store, response_id: str, name: str = "") -> str:
    want = SessionHints(caller="me", response_id=response_id, name=name)
    return (await store.find_session(want, ask(user("more")))).previous


@asynchronous
async def test_a_response_from_its_start_to_its_withdrawal(url: str) -> None:
    store, other = await Store.open(StoreSettings(url=url)), await Store.open(StoreSettings(url=url))
    turn = await begin(store, ask(user("x")), "me", response_id="resp_1", client_options={"background": True})
    for place in (store, other):
        found = await place.responses.find("resp_1", "me")
        assert found is not None
        assert (found.id, found.response_id, found.ending, found.client_options) == (turn.id, "resp_1", "", {"background": True})
        assert await place.responses.find("resp_1", "you") is None
        assert await continued(place, "resp_1") == ""  # only after its end
    turn.finish(Finished(ending="end", response=answer("y", ident="resp_upstream")))
    for place in (store, other):
        assert await continued(place, "resp_1") == await continued(place, "resp_1", "named") == turn.id
        assert await place.responses.find("resp_upstream", "me") is None  # the client did not receive this id
        found = await place.responses.find("resp_1", None)
        assert found is not None
        assert found.ending == "end"
    assert not await other.responses.withdraw("resp_1", "you")
    assert await other.responses.withdraw("resp_1", "me")
    for place in (store, other):
        assert not await place.responses.withdraw("resp_1", "me")
        assert await place.responses.find("resp_1", None) is None
        assert await continued(place, "resp_1") == ""
    assert (await store.queries.turn("resp_1")) is not None  # the log still has it
    await prune_turns(store.database, older_than=-60.0)
    assert await counted(store.database, "withdrawals") == 0
    await store.close()
    await other.close()


@asynchronous
async def test_turns_that_are_not_retrievable_or_have_no_id(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    turn = await begin(store, ask(user("x")), "me", response_id="resp_2", retrievable=False)
    turn.finish(Finished(ending="end", response=answer("y")))
    await take(store, ask(user("x")), answer("y"), "me")
    await store.writer.flush()
    assert await store.responses.find("resp_2", "me") is None
    assert await continued(store, "resp_2") == ""
    assert await store.responses.find("", "me") is None
    assert await store.queries.turn("") is None
    await store.close()


@asynchronous
async def test_an_interrupted_response_is_retrievable(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    await begin(store, ask(user("x")), "me", response_id="resp_3")
    await store.close()
    store = await Store.open(StoreSettings(url=url))
    found = await store.responses.find("resp_3", "me")
    assert found is not None
    assert (found.ending, found.response_id) == ("interrupted", "resp_3")
    assert [turn.response_id for turn in await store.queries.turns(Filter(ending="interrupted"))] == ["resp_3"]
    await store.close()


@asynchronous
async def test_sessions_page_by_page(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    for number in range(5):
        await take(store, ask(user(f"{number}")), answer("y"), "me", f"name {number}")
    await store.writer.flush()
    everything = [session.id for session in await store.queries.sessions("me")]
    assert len(everything) == 5
    found: list[str] = []
    while page := await store.queries.sessions("me", 2, before=found[-1] if found else ""):
        found += [session.id for session in page]
    assert found == everything
    with pytest.raises(RequestError, match="last_id"):
        await store.queries.sessions("me", before="ses_none")
    await store.close()
