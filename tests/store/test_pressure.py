"""More data than the store can take: contents are dropped, but never the ending of a turn or its usage."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from store.servers import writing
from store.turns import answer, ask, asynchronous, begin, call, result, start, take, user
from streamglot.messages import Part
from streamglot.store import Filter, Finished, SessionHints, Store, StoreSettings
from streamglot.store.rows import SHORT_BYTES, TurnEntry
from streamglot.store.turns import (
    BARE_BYTES,
    ID_CHARS,
    PART_CHARS,
    answer_weight,
    bare_response,
    encoded_size,
    short_part,
    short_request,
    short_response,
    weight,
)
from vocabulary import *
from waiting import soon

LONG = "words without end " * 20_000


@contextmanager
def locked(path: Path) -> Iterator[None]:
    locker = sqlite3.connect(path, isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    yield
    locker.execute("COMMIT")
    locker.close()


@asynchronous
async def test_large_answers_are_ended_and_counted(url: str) -> None:
    """A queue of 1 MB and twelve answers of 360 kB in conversations: all of them end and can be continued."""
    store = await Store.open(StoreSettings(url=url, queue_bytes=2**20))
    turns = []
    async with writing(url):
        for number in range(12):
            turns.append(await take(store, ask(user("q")), answer(LONG), name=f"conversation:{number}"))
        assert store.report().queued_bytes <= 2**20
    await store.writer.flush()
    report = store.report()
    assert set(report.dropped) == {"contents"}
    assert 9 <= report.dropped["contents"] <= 11
    for number, turn in enumerate(turns):
        found = await store.queries.turn(turn.id)
        assert found is not None
        assert found.usage is not None
        assert (found.ending, found.usage.output_tokens) == ("end", 15)
        session = await store.find_session(SessionHints(name=f"conversation:{number}"), ask(user("and?")))
        session.previous, ended = await store.last_turn(session)
        assert (session.previous, ended) == (turn.id, True)
        question, logged = await store.history(session)
        assert question.text == "q"
        if found.more.get("contents") == "cut":
            assert logged.text.startswith("words without end")
            assert logged.text.endswith(f"[{len(LONG) - PART_CHARS} more characters were not stored]")
        else:
            assert logged.text == LONG
    await store.close()


@asynchronous
async def test_raw_bytes_make_room_for_turns(tmp_path: Path) -> None:
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db", queue_bytes=2**20, raw=True))
    with locked(tmp_path / "s.db"):
        await begin(store, ask(user("first")))
        await soon(lambda: store.report().failing)
        turn = await begin(store, ask(user("q")))
        for _ in range(20):
            turn.frame("up", 0.0, b"x" * 50_000)
        store.buffer.open("turn_1", "", lambda: None, lambda: None)
        store.buffer.append("turn_1", 1, 1, b"y" * 100_000)
        assert store.report().dropped["frames"] == 10
        large = "z" * 700_000
        turn.finish(Finished(ending="end", response=answer(large)))
        assert store.report().dropped == {"frames": 20, "chunks": 1}
    await store.writer.flush()
    found = await store.queries.turn(turn.id)
    assert found is not None
    assert found.response is not None
    assert found.response.choices[0].text == large
    assert await store.queries.raw(turn.id) == []
    await store.close()


@asynchronous
async def test_a_turn_that_has_begun_has_an_ending(tmp_path: Path) -> None:
    """The queue has room for some turns without contents only. The others are not started, so none waits for its end."""
    logged: list[Mapping[str, Any]] = []
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db", queue_bytes=40 * BARE_BYTES), logged.append)
    with locked(tmp_path / "s.db"):
        session = await store.find_session(SessionHints(name="conversation:c"), ask(user("q")))
        turns = [start(store, session, ask(user(f"{number}"))) for number in range(100)]
        begun = [turn for turn in turns if turn.kept]
        assert 10 <= len(begun) <= 20
        for turn in reversed(turns):
            turn.finish(Finished(ending="end", response=answer(LONG)))
        assert store.report().queued_bytes <= 40 * BARE_BYTES
    await store.writer.flush()
    found = await store.queries.turns(Filter(limit=1_000))
    assert {turn.id for turn in found} == {turn.id for turn in begun}
    assert {(turn.ending, turn.usage.output_tokens if turn.usage else None) for turn in found} == {("end", 15)}
    dropped = store.report().dropped
    assert dropped["starts"] == dropped["endings"] == len(turns) - len(begun)
    later = await take(store, ask(user("later")), answer("x"))
    await store.writer.flush()
    assert later.kept
    assert (await store.close()).dropped["starts"] == dropped["starts"]
    assert [line["event"] for line in logged if line["event"] == "store_unfit"] == []


@asynchronous
async def test_contents_that_no_database_takes_cost_the_contents_alone(url: str) -> None:
    """Half of a surrogate pair cannot be written. The turn must end without it, or its conversation would stay locked."""
    store = await Store.open(StoreSettings(url=url))
    turn = await take(store, ask(user("q")), answer("half \ud800"), name="conversation:c")
    before = await take(store, ask(user("half \ud800")), answer("x"), name="conversation:d")
    await store.writer.flush()
    for one in (turn, before):
        found = await store.queries.turn(one.id)
        assert found is not None
        assert found.usage is not None
        assert (found.ending, found.usage.input_tokens) == ("end", 25)
        assert await store.queries.last_turn(one.session.id) == (one.id, True)
    assert store.report().unfit == {}
    await store.close()


@asynchronous
async def test_contents_that_the_database_refuses_cost_the_contents_alone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await Store.open(StoreSettings(url=url))
    commit = store.writer._commit

    class Refusing:
        generation = commit.generation
        known = commit.known

        async def __call__(self, rows: Any) -> None:
            if any("refused" in body for body in rows.messages.values()):
                raise ValueError("too large")
            await commit(rows)

    monkeypatch.setattr(store.writer, "_commit", Refusing())
    counted: list[int] = []
    turn = await begin(store, ask(user("q")), name="conversation:c")
    turn.finish(Finished(ending="end", response=answer("refused"), written=lambda: counted.append(1)))
    other = await take(store, ask(user("q")), answer("fine"))
    await store.writer.flush()
    found = await store.queries.turn(turn.id)
    assert found is not None
    assert (found.ending, found.request is not None, found.response) == ("end", True, None)
    assert (found.usage, found.more) == (TokenCounts(25, 15), {"contents": "dropped"})
    whole = await store.queries.turn(other.id)
    assert whole is not None
    assert whole.response is not None
    assert whole.response.choices[0].text == "fine"
    assert counted == [1]
    report = await store.close()
    assert (report.dropped, report.unfit) == ({"contents": 1}, {})


@asynchronous
async def test_ids_and_numbers_of_an_upstream_that_fit_no_column(url: str) -> None:
    """PostgreSQL does not index texts of 3 kB, and an integer column does not hold a number of 40 bits."""
    store = await Store.open(StoreSettings(url=url))
    response = answer("fine", ident="i" * 10_000)
    response.choices.append(replace(response.choices[0], index=2**40))
    turn = await take(store, ask(user("q")), response)
    await store.writer.flush()
    found = await store.queries.turn(turn.id)
    assert found is not None
    assert (found.ending, found.response_id) == ("end", "")
    assert await store.responses.find("i" * ID_CHARS, None) is None
    assert (await store.close()).unfit == {}


@asynchronous
async def test_a_fault_of_our_own_does_not_end_the_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Mapping[str, Any]] = []
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db"), logged.append)

    async def fail(_: object) -> None:
        raise ZeroDivisionError("a fault")

    with monkeypatch.context() as patch:
        patch.setattr(store.writer, "_commit_batch", fail)
        await take(store, ask(user("lost")), answer("x"))
        await store.writer.flush()
    turn = await take(store, ask(user("kept")), answer("x"))
    await store.writer.flush()
    assert [found.id for found in await store.queries.turns()] == [turn.id]
    assert logged[0] == {"event": "store_unfit", "kind": "starts", "message": "ZeroDivisionError: a fault"}
    assert store.report().queued == store.report().queued_bytes == 0
    await store.close()


@asynchronous
async def test_without_contents_a_large_request_does_not_wait_in_memory(tmp_path: Path) -> None:
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db", content=False))
    with locked(tmp_path / "s.db"):
        turn = await begin(store, ask(user(LONG)))
        response = answer(LONG)
        turn.finish(Finished(ending="end", response=response, upstream_request=turn.started.request))
        assert turn.started.request.messages == []
        assert store.report().queued_bytes == 2 * BARE_BYTES
    await store.writer.flush()
    found = await store.queries.turn(turn.id)
    assert found is not None
    assert (found.ending, found.usage) == ("end", TokenCounts(25, 15))
    await store.close()


# --- shortened contents


@pytest.mark.parametrize(
    "part",
    [
        TextPart("short", echo=Echo("one", {"signature": "s"})),
        RefusalPart("short"),
        ReasoningPart("short", echo=Echo("one", {"signature": "s"})),
        call("c", echo=Echo("one", {"signature": "s"})),
        MediaPart(mime="image/png", data="aaaa"),
        NativePart("gemini", {"a": 1}),
    ],
)
def test_short_parts_stay_as_they_are(part: Part) -> None:
    assert short_part(part) is part


@pytest.mark.parametrize(
    ("part", "short"),
    [
        (RefusalPart(LONG), RefusalPart(f"{LONG[:PART_CHARS]} [{len(LONG) - PART_CHARS} more characters were not stored]")),
        (TextPart("a", echo=Echo("one", {"signature": LONG})), TextPart("a")),
        (ReasoningPart("a", summary=True, echo=Echo("one", {"signature": LONG})), ReasoningPart("a", summary=True)),
        (
            ToolCallPart("c", "read", f'"{LONG}"', echo=Echo("one", {"a": 1})),
            ToolCallPart("c", "read", f'{{"streamglot":"{len(LONG) + 2} characters of arguments were not stored"}}'),
        ),
        (
            ToolResultPart("c", [MediaPart(mime="image/png", data=LONG)], native=Echo("one", {"a": LONG})),
            ToolResultPart("c", [TextPart(f"[image/png of {len(LONG)} characters was not stored]")]),
        ),
        (MediaPart(data=LONG), TextPart(f"[a medium of {len(LONG)} characters was not stored]")),
        (NativePart("gemini", {"a": LONG}), TextPart("[a part in the dialect gemini was not stored]")),
    ],
)
def test_shortened_parts_say_so(part: Part, short: Part) -> None:
    assert short_part(part) == short


def test_a_short_request_has_all_its_messages() -> None:
    request = ask(
        *(user("q"), Message("assistant", [call("c", arguments=f'{{"path": "{LONG}"}}')]), result("c", LONG)),
        tools=[ToolSpec("read", LONG)],
        metadata={"a": LONG},
        extra={"b": LONG},
        temperature=0.5,
    )
    short = short_request(request)
    assert [message.role for message in short.messages] == ["user", "assistant", "tool"]
    assert (short.tools, short.metadata, short.extra, short.temperature) == ([], None, {}, 0.5)
    assert weight(short) < 3 * PART_CHARS < 5 * len(LONG) < weight(request)
    small = ask(user("q"), tools=[ToolSpec("read", "x")])
    assert short_request(small) == small


def test_a_bare_response_keeps_its_usage_and_error() -> None:
    error = StreamError("broken", LONG, detail={"a": LONG})
    response = replace(answer(LONG, ident="r", error=error), usage=TokenCounts(1, 2, 3, 4, 5, {"raw": LONG}))
    for left in (short_response(response), bare_response(response)):
        assert left.usage == TokenCounts(1, 2, 3, 4, 5)
        assert left.error == StreamError("broken", LONG[:500])
        assert left.id == "r"
        assert answer_weight(left) < 2 * PART_CHARS
    assert short_response(response).choices[0].text.startswith("words without")
    assert bare_response(response).choices == []
    assert bare_response(Response()) == Response()


def test_a_value_that_cannot_be_encoded_counts_as_large() -> None:
    assert encoded_size({"a": object()}) > PART_CHARS
    assert encoded_size(None) == encoded_size({}) == 0


@asynchronous
async def test_an_entry_becomes_lighter_step_by_step(tmp_path: Path) -> None:
    store = await Store.open(StoreSettings(url=f"sqlite:///{tmp_path}/s.db"))
    turn = await begin(store, ask(user(LONG)))
    finished = Finished(ending="end", response=answer(LONG), more={"a": 1})
    entry = TurnEntry(kind="endings", weight=2 * len(LONG), turn=turn, process="p", content=True, finished=finished)
    short = entry.lighter()
    assert short is not None
    assert short.weight < SHORT_BYTES
    assert short.finished is not None
    assert short.finished.more == {"a": 1, "contents": "cut"}
    bare = short.lighter()
    assert bare is not None
    assert (bare.weight, bare.content) == (BARE_BYTES, False)
    assert bare.finished is not None
    assert bare.finished.more == {"a": 1, "contents": "dropped"}
    assert bare.lighter() is None
    many = await begin(store, ask(*(user("short") for _ in range(5_000))))
    entry = TurnEntry(kind="starts", weight=weight(many.started.request), turn=many, process="p", content=True)
    bare = entry.lighter()
    assert bare is not None
    assert not bare.content
    await store.close()
