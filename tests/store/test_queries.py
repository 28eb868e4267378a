"""Queries, exports, pruning and keys: a caller sees its own turns, and only pruning deletes."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from store.tables import add, counted
from store.turns import answer, ask, assistant, asynchronous, begin, call, result, take, thought, user
from streamglot.errors import RequestError
from streamglot.store import (
    Filter,
    Finished,
    SessionHints,
    Store,
    StoreSettings,
    export_jsonl,
    export_markdown,
    summary_line,
)
from streamglot.store.export import read_line
from streamglot.store.queries import cursor_of
from streamglot.store.retention import prune_turns, size


async def count(store: Store, table: str) -> int:
    return await counted(store.database, table)


@asynchronous
async def test_callers_see_their_own(url: str) -> None:
    store = await Store.open(StoreSettings(url=url, raw=True))
    mine = await take(store, ask(user("my zebra")), answer("yes", ident="r1"), caller="me", name="s")
    yours = await take(store, ask(user("your zebra")), answer("no", ident="r2"), caller="you", name="s")
    await store.writer.flush()
    queries = store.queries
    assert [turn.id for turn in await queries.turns(Filter(caller="me", search="zebra"))] == [mine.id]
    assert [turn.id for turn in await queries.turns(Filter(caller="", search="zebra"))] == []
    assert len(await queries.turns(Filter(search="zebra"))) == 2
    for ident in (yours.id, "r2"):
        assert await queries.turn(ident, "me") is None
        assert await queries.complete(ident, "me") is None
        assert await queries.history(ident, "me") == []
        assert await queries.turn(ident, "you") is not None
    assert await queries.raw(yours.id, "me") == []
    assert [entry.id for entry in await queries.sessions("me")] == [mine.session.id]
    assert await queries.session(yours.session.id, "me") is None
    assert [line async for line in export_jsonl(queries, Filter(caller="nobody"))] == []
    await store.close()


@asynchronous
async def test_lists_are_filtered_and_paged(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    turns = [await take(store, ask(user(f"q{n}"), model="ab"[n % 2]), answer("x"), name=f"s{n % 3}") for n in range(10)]
    await store.writer.flush()
    queries = store.queries
    ids = [turn.id for turn in reversed(turns)]
    assert [turn.id for turn in await queries.turns()] == ids
    page = await queries.turns(Filter(limit=4))
    assert [turn.id for turn in await queries.turns(Filter(limit=4, before=page[-1].id))] == ids[4:8]
    assert len(await queries.turns(Filter(model="a"))) == 5
    assert len(await queries.turns(Filter(session_id=turns[0].session.id))) == 4
    assert len(await queries.turns(Filter(upstream="one"))) == 10
    assert len(await queries.turns(Filter(since=time.time() + 60))) == 0
    assert len(await queries.turns(Filter(until=turns[5].started.at))) == 5
    sessions = await queries.sessions()
    assert [entry.turns for entry in sessions] == [4, 3, 3]
    assert (sessions[0].title, sessions[0].input_tokens) == ("q0", 100)
    line = msgspec.json.decode(summary_line(page[0]))
    wanted = {"id", "session_id", "model", "upstream", "dialects", "ending", "error", "usage", "started", "duration"}
    assert wanted <= set(line)
    await store.close()


@asynchronous
async def test_pages_of_sessions_that_get_new_turns(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    for number in range(6):
        await take(store, ask(user(f"q{number}")), answer("x"), caller="me", name=f"s{number}")
    await store.writer.flush()
    queries = store.queries
    first = await queries.sessions("me", 3)
    await take(store, ask(user("more")), answer("x"), caller="me", name="s3")  # the last session of the page
    await store.writer.flush()
    second = await queries.sessions("me", 3, before=cursor_of(first[-1]))
    assert [entry.title for entry in (*first, *second)] == ["q5", "q4", "q3", "q2", "q1", "q0"]
    assert await queries.sessions("me", before=cursor_of(second[-1])) == []
    assert [entry.title for entry in await queries.sessions("me", 2, before=first[-1].id)] == ["q5", "q4"]  # its current place
    for unknown in ("ses_none", "ses_none@", f"{first[0].id}@soon", f"{first[0].id}@nan"):
        with pytest.raises(
            RequestError, match="before must be the last_id of a page, or the id of a session that you may see, not"
        ):
            await queries.sessions("me", before=unknown)
    with pytest.raises(RequestError, match="before must be"):
        await queries.sessions("you", before=first[0].id)
    await store.close()


@asynchronous
async def test_pages_of_turns_that_are_deleted_meanwhile(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await Store.open(StoreSettings(url=url))
    made = [await take(store, ask(user(f"q{number}")), answer("x"), caller="me", name="s") for number in range(4)]
    await store.writer.flush()
    queries = store.queries
    monkeypatch.setattr("streamglot.store.export.PAGE", 1)
    exported = []
    async for line in export_jsonl(queries, Filter()):
        exported.append(read_line(line).id)
        if len(exported) == 2:
            await store.database.execute("DELETE FROM turns WHERE id = :id", id=exported[-1])
    assert exported == [turn.id for turn in reversed(made)]
    for which in (Filter(before=made[2].id), Filter(before="x"), Filter(before=made[1].id, caller="you")):
        with pytest.raises(RequestError, match="before must be the last_id of a page, or the id of a turn that you may see, not"):
            await queries.turns(which)
    await store.close()


@asynchronous
async def test_search(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    for question, answered in (
        ("The quick brown fox", "jumps over"),
        ("The lazy dog", "sleeps; quick naps"),
        ("Übung", "macht den Meister"),
    ):
        await take(store, ask(user(question)), answer(answered))
    await store.writer.flush()

    async def found(words: str) -> list[str]:
        return [turn.title for turn in await store.queries.turns(Filter(search=words))]

    assert await found("quick") == ["The lazy dog", "The quick brown fox"]
    assert await found("quick jumps") == ["The quick brown fox"]
    assert await found('"quick brown"') == ["The quick brown fox"]
    assert await found('"brown quick"') == []
    assert await found("quick -fox") == ["The lazy dog"]
    assert await found("übung") == ["Übung"]
    for hostile in (
        'x"',
        "a OR",
        "NEAR(",
        "col:x",
        "x*",
        "' OR 1=1 --",
        "x\0",
        "x'); DROP TABLE texts; --",
        "x & !y",
        "%x",
        "\\x",
    ):
        assert await found(hostile) == []
    await store.close()


@asynchronous
async def test_export(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    request = ask(user("go"), assistant(call("c1")), result("c1", "```\nfound\n```"))
    await take(store, request, answer(thought("line one\nline two", "s"), "Done."), name="s")
    await take(store, ask(user("second")), answer("x"), name="s")
    await store.writer.flush()
    lines = [line async for line in export_jsonl(store.queries, Filter())]
    assert len(lines) == 2
    assert read_line(lines[1]).request == request
    page = [text async for text in export_markdown(store.queries, Filter())][1]
    for piece in (
        "# go",
        "## user",
        "**call** `read` `c1`",
        "````\n```\nfound\n```\n````",
        "> line two",
        "Done.",
        "- ending: end",
    ):
        assert piece in page
    await store.close()


@asynchronous
async def test_prune_by_age_with_an_archive(url: str, tmp_path: Path) -> None:
    store = await Store.open(StoreSettings(url=url, raw=True))
    shared = user("shared by old and new")
    old = [await take(store, ask(shared, user(f"old {n}")), answer(f"old answer {n}"), name=f"old{n}") for n in range(5)]
    new = await take(store, ask(shared, user("new")), answer("new answer"), name="new")
    running = await store.find_session(SessionHints(name="run"), ask())
    frames = {"turn_id": old[0].id, "number": 0, "body": msgspec.msgpack.encode([(0.5, "up", b"\xff\x00")])}
    await add(store.database, "frames", frames)
    for turn in (old[0], new):
        now = time.time()  # a stream that was seen long ago is removed by the buffer itself
        row = {"id": turn.id, "caller": "", "started": now, "seen": now, "last": 1, "stopped": False, "head": "{}"}
        await add(store.database, "streams", row)
        await add(store.database, "chunks", {"stream_id": turn.id, "number": 1, "last": 1, "body": b"x"})
    await store.writer.flush()
    ids = [turn.id for turn in old]
    await store.database.execute("UPDATE turns SET started = :at WHERE id IN :ids", ids=ids, at=time.time() - 86_400)
    before = await store.queries.turn(old[0].id)
    done = await prune_turns(store.database, older_than=3600, archive=tmp_path / "archive" / "old.jsonl")
    assert (done.turns, done.archived) == (5, 5)
    assert done.bytes_after < done.bytes_before
    lines = (tmp_path / "archive" / "old.jsonl").read_bytes().splitlines()
    assert before in [read_line(line) for line in lines]
    assert {line["id"]: line.get("raw") for line in map(msgspec.json.decode, lines)} == {
        **dict.fromkeys(ids),
        old[0].id: [[0.5, "up", "/wA="]],
    }
    for table, column in (("streams", "id"), ("chunks", "stream_id")):
        assert [row[0] for row in await store.database.fetch(f"SELECT {column} FROM {table}")] == [new.id]
    assert [turn.id for turn in await store.queries.turns()] == [new.id]
    assert await store.queries.turns(Filter(search="old")) == []
    assert await count(store, "messages") == 3
    assert await count(store, "nodes") == 2
    assert await count(store, "sessions") == 1
    assert await store.queries.history(new.id) == [shared, user("new"), assistant("new answer")]
    # pruned messages can be written again by a process that had written them before
    again = await take(store, ask(shared, user("old 1")), answer("old answer 1"), name="old1")
    await store.writer.flush()
    assert await store.queries.history(again.id) == [shared, user("old 1"), assistant("old answer 1")]
    assert (await store.queries.session(again.session.id)) is not None
    assert running.new
    await store.close()


@asynchronous
async def test_prune_by_size_takes_the_oldest(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    turns = [await take(store, ask(user(f"{n} " + "x" * 5000)), answer("y" * 5000), name=f"{n}") for n in range(40)]
    await store.writer.flush()
    whole = await size(store.database)
    done = await prune_turns(store.database, max_bytes=whole // 2)
    assert done.bytes_after <= whole // 2
    left = [turn.id for turn in await store.queries.turns()]
    assert 10 < len(left) < 21
    assert left == [turn.id for turn in reversed(turns)][: len(left)]
    assert (await prune_turns(store.database, max_bytes=whole)).turns == 0
    assert (await prune_turns(store.database)).turns == 0
    await store.close()


@asynchronous
async def test_a_turn_that_runs_is_not_pruned(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    session = await store.find_session(SessionHints(), ask(user("x")))
    from streamglot.store import Started

    turn = store.start(session, Started(request=ask(user("x")), at=time.time() - 86_400))
    await store.writer.flush()
    assert (await prune_turns(store.database, older_than=60, max_bytes=0)).turns == 0
    turn.finish(Finished(ending="end", response=answer("y")))
    await store.writer.flush()
    assert (await store.queries.turns())[0].ending == "end"
    await store.close()


@asynchronous
async def test_the_last_conversation_of_a_directory(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    for place in ("/here", "/there"):
        session = await store.find_session(SessionHints(name=place, directory=place), ask(user("x")))
        from store.turns import start

        start(store, session, ask(user("x"))).finish(Finished(ending="end", response=answer("y")))
    await store.writer.flush()
    last = await store.queries.last_session()
    assert last == await store.queries.last_session("", "/there")
    here = await store.queries.last_session(None, "/here")
    assert here not in (None, last)
    assert await store.queries.last_session("nobody") is None
    await store.close()


@asynchronous
async def test_keys(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    key, secret = await store.keys.add(
        "me", models=["gpt-*"], requests_per_minute=5, budget_tokens=100, budget_cost=1.0, budget_seconds=60.0
    )
    assert secret.startswith("sg-")
    rows = await store.database.fetch("SELECT * FROM keys")
    assert secret not in str(rows)
    assert await store.keys.find(secret) == key
    assert await store.keys.find(secret + "x") is None
    assert await store.keys.all() == [key]
    with pytest.raises(RequestError, match="'me'"):
        await store.keys.add("me")
    assert await store.keys.budget_exceeded() == []
    started = []
    for number in range(3):
        turn = await take(store, ask(user(f"{number}")), answer("x"), caller="me", cost=0.125)
        started.append(turn.started.at)
    await take(store, ask(user("z")), answer("x"), caller="you", cost=5.0)
    await store.writer.flush()
    spent = await store.keys.spent(key)
    assert (spent.turns, spent.tokens, spent.cost) == (3, 120, 0.375)
    over = await store.keys.budget_exceeded()
    assert [(found.key, found.spent) for found in over] == [(key, spent)]
    assert over[0].renews == pytest.approx(started[0] + 60.0)  # 80 of 120 tokens are left when the first turn leaves the period
    assert await store.keys.budget_exceeded(time.time() + 3600) == []
    await store.keys.add("paid", budget_cost=4.0)
    await take(store, ask(user("p")), answer("x"), caller="paid", cost=4.5)
    await store.writer.flush()
    assert [(found.key.name, found.renews) for found in await store.keys.budget_exceeded()] == [
        ("me", over[0].renews),
        ("paid", None),
    ]
    assert await store.keys.revoke("paid")
    assert [found.key.name for found in await store.keys.budget_exceeded()] == ["me"]
    assert await store.keys.revoke("me")
    assert not await store.keys.revoke("me")
    assert await store.keys.find(secret) is None
    assert await store.keys.all() == []
    assert [known.name for known in await store.keys.all(revoked=True)] == ["me", "paid"]
    with pytest.raises(RequestError):
        await store.keys.add("me")
    await store.close()


@asynchronous
async def test_an_export_has_the_options_of_the_client(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    await begin(store, ask(user("x")), "me", response_id="resp_1", client_options={"background": True})
    await store.writer.flush()
    [line] = [line async for line in export_jsonl(store.queries, Filter())]
    assert msgspec.json.decode(line)["client_options"] == {"background": True}
    assert read_line(line).client_options == {"background": True}
    await store.close()
