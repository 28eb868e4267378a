"""Turns are stored once, complete, with their true ending, and the complete response can be rebuilt from them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from store.tables import counted
from store.turns import answer, ask, assistant, asynchronous, begin, call, result, start, take, thought, user
from streamglot.errors import ConfigError
from streamglot.events import Echo, StreamError
from streamglot.messages import Message, Request, TextPart, ToolSpec
from streamglot.store import Filter, Finished, Session, SessionHints, Started, Store, StoreSettings
from streamglot.store.database.paths import data_directory, default_url, place_of
from streamglot.store.recent import MAX_TURNS
from streamglot.store.sessions import named
from streamglot.store.turns import ID_RANDOM_BYTES, IDS_PER_DRAW, mint_id

pytestmark = pytest.mark.usefixtures("patient_lookups")


async def count(store: Store, table: str) -> int:
    return await counted(store.database, table)


def test_ids_sort_by_time_and_never_repeat() -> None:
    made = [mint_id("turn_", 1_700_000_000 + number / 1_000_000) for number in range(2 * IDS_PER_DRAW + 1)]
    assert sorted(made) == made
    same = {mint_id("turn_", 1_700_000_000) for _ in range(3 * IDS_PER_DRAW)}
    assert len(same) == 3 * IDS_PER_DRAW
    assert {len(id) for id in [*made, *same]} == {len("turn_") + 14 + 2 * ID_RANDOM_BYTES}


def test_a_forked_process_makes_other_ids_than_its_parent() -> None:
    mint_id("turn_", 1.0)  # so that some ends of ids are drawn before the fork
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, mint_id("turn_", 1.0).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        made = pipe.read()
    os.waitpid(child, 0)
    ours = {mint_id("turn_", 1.0) for _ in range(2 * IDS_PER_DRAW)}
    assert made.startswith("turn_")
    assert made not in ours


@asynchronous
async def test_a_turn_that_is_not_remembered_displaces_none_and_is_found_in_the_database(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    try:
        live = await take(store, ask(user("live")), answer("yes", ident="resp_live"), name="live")
        session = Session(id=named("", "batch"), name="batch", started=1.0)
        for number in range(MAX_TURNS + 1):
            started = Started(request=ask(user(str(number))), dialect="openai_chat", model="small")
            turn = store.start(session, started, remember=False)
            turn.finish(Finished(ending="end", response=answer("no", ident=f"resp_{number}"), upstream="one"))
        assert await store.sessions.previous("", "resp_live") == (live.id, live.session.id)
        assert store.sessions._recent.knows("resp_live")
        await store.writer.flush()
        assert await store.sessions.previous("", f"resp_{MAX_TURNS}") == (turn.id, session.id)
    finally:
        await store.close()


@asynchronous
async def test_a_turn_survives_a_round_trip(url: str) -> None:
    store = await Store.open(StoreSettings(url=url, raw=True))
    request = ask(Message("system", [TextPart("Be brief.")]), user("Read package.json"), temperature=0.5, max_tokens=100)
    response = answer(thought("hm", "sig"), "I'll read the file.", call("call_1"), ident="chatcmpl-1")
    turn = await begin(store, request)
    turn.frame("up", 0.25, b"data: {}\n\n")
    turn.frame("down", 0.26, b"\x00\xff")
    asked = Request(model="m", messages=request.messages, stream=True)
    turn.finish(
        Finished(
            ending="tool_calls",
            response=response,
            upstream="one",
            upstream_dialect="anthropic",
            upstream_model="m",
            upstream_request=asked,
            cost=0.25,
            timings={"longest_gap": 0.5},
            verdicts=[{"rule": "no_rm", "verdict": "pass"}],
            more={"attempts": 2},
            first_event=0.125,
        )
    )
    await store.writer.flush()
    shown = await store.queries.turn(turn.id)
    assert shown is not None
    assert (shown.request, shown.upstream_request, shown.response) == (request, asked, response)
    assert (shown.ending, shown.error, shown.cost, shown.verdicts) == (
        "tool_calls",
        None,
        0.25,
        [{"rule": "no_rm", "verdict": "pass"}],
    )
    assert shown.timings == {"longest_gap": 0.5, "first_event": 0.125}
    assert shown.more == {"attempts": 2}
    assert shown.dialects == {"client": "openai_chat", "upstream": "anthropic"}
    assert shown.usage == response.usage
    assert shown.duration is not None
    assert shown.title == "Read package.json"
    assert [(frame.at, frame.direction, frame.data) for frame in await store.queries.raw(turn.id)] == [
        (0.25, "up", b"data: {}\n\n"),
        (0.26, "down", b"\x00\xff"),
    ]
    assert await store.queries.turn("chatcmpl-1") == shown
    report = await store.close()
    assert report.dropped == report.unfit == {}
    assert report.written == {"starts": 1, "frames": 2, "endings": 1}


@asynchronous
async def test_the_complete_response_of_any_turn(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    done = await take(store, ask(user("Read it")), answer("I'll read the file.", call("call_1"), ident="chatcmpl-x"))
    broken = StreamError("upstream_truncated", "it broke off")
    cut = await take(store, ask(user("Read it")), answer("I'll", error=broken), ending="truncated")
    open_turn = await begin(store, ask(user("Wait")))
    await store.writer.flush()
    complete = await store.queries.complete(done.id)
    assert complete is not None
    assert complete["id"] == "chatcmpl-x"
    assert complete["object"] == "chat.completion"
    choice = complete["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I'll read the file."
    assert choice["message"]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
    ]
    assert complete["usage"]["total_tokens"] == 40
    other = await store.queries.complete(done.id, name="anthropic")
    assert other is not None
    assert other["type"] == "message"
    partial = await store.queries.complete(cut.id)
    assert partial is not None
    assert partial["choices"][0]["message"]["content"] == "I'll"
    assert partial["error"]["code"] == "upstream_truncated"
    assert await store.queries.complete(open_turn.id) is None
    await store.close()


@asynchronous
async def test_shared_history_is_kept_once(url: str) -> None:
    """Twenty turns that each resend the history take the space of twenty questions and twenty answers."""
    store = await Store.open(StoreSettings(url=url))
    history = [Message("system", [TextPart("Be brief.")])]
    for number in range(20):
        history.append(user(f"question {number}"))
        await take(store, ask(*history), answer(f"answer {number}"))
        history.append(assistant(f"answer {number}"))
        if number % 5 == 0:
            await store.writer.flush()
    await store.writer.flush()
    assert await count(store, "turns") == await count(store, "endings") == 20
    assert await count(store, "messages") == 1 + 20 + 20
    assert await count(store, "nodes") == 1 + 20 + 19
    assert await count(store, "sessions") == 1
    last = (await store.queries.turns(Filter(limit=1)))[0]
    assert await store.queries.history(last.id) == history
    await store.close()


@asynchronous
async def test_every_ending_leaves_its_row(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    for ending in ("end", "length", "truncated", "client_gone", "policy", "error"):
        turn = await begin(store, ask(user(ending)))
        turn.finish(Finished(ending=ending))
        turn.finish(Finished(ending="end"))
    running = await begin(store, ask(user("still here")))
    await store.writer.flush()
    assert [turn.ending for turn in await store.queries.turns()] == [
        "",
        "error",
        "policy",
        "client_gone",
        "truncated",
        "length",
        "end",
    ]
    assert [turn.id for turn in await store.queries.turns(Filter(ending=""))] == [running.id]
    assert len(await store.queries.turns(Filter(ending="client_gone"))) == 1
    await store.close()
    again = await Store.open(StoreSettings(url=url))
    assert (await again.queries.turns(Filter(limit=1)))[0].ending == "interrupted"
    await again.close()


@asynchronous
async def test_without_contents_only_the_fact_of_a_turn_is_stored(url: str) -> None:
    store = await Store.open(StoreSettings(url=url, content=False))
    turn = await take(store, ask(user("a secret")), answer(thought("secret", "sig"), "a secret too", ident="r1"))
    session = await store.find_session(SessionHints(), ask(user("a secret"), assistant("a secret too"), user("go on")))
    assert session.id == turn.session.id
    assert await store.answers(session) == [assistant(thought("secret", "sig"), "a secret too")]
    await store.writer.flush()
    shown = await store.queries.turn(turn.id)
    assert shown is not None
    assert (shown.request, shown.response, shown.title) == (None, None, "")
    assert shown.usage is not None
    assert shown.usage.input_tokens == 25
    assert [await count(store, table) for table in ("messages", "nodes", "answers", "texts")] == [0, 0, 0, 0]
    await store.close()
    again = await Store.open(StoreSettings(url=url, content=False))
    session = await again.find_session(SessionHints(), ask(user("a secret"), assistant("a secret too"), user("go on")))
    assert session.id == turn.session.id
    await again.close()


@asynchronous
async def test_text_that_databases_refuse_is_stored(url: str) -> None:
    """NUL and half surrogate pairs, which one database or the other refuses, do not prevent a row."""
    store = await Store.open(StoreSettings(url=url))
    good = await take(store, ask(user("before")), answer("fine"))
    nul = await take(store, ask(user("a\0b"), model="m\0"), answer("c\0d", call("x\0", arguments='{"a": "\\u0000"}')), name="s\0")
    half = await begin(store, ask(user("half \ud83d of a pair")))
    half.finish(Finished(ending="end\ud83d", response=answer("x")))
    huge = answer("many")
    huge.usage.input_tokens = 2**70
    many = await take(store, ask(user("many")), huge)
    after = await take(store, ask(user("after")), answer("fine"))
    await store.writer.flush()
    ids = {turn.id for turn in await store.queries.turns()}
    assert {good.id, nul.id, after.id} <= ids
    shown = await store.queries.turn(nul.id)
    assert shown is not None
    assert shown.request is not None
    assert shown.request.messages == [user("a\0b")]
    report = await store.close()
    assert report.unfit.get("starts", 0) + report.unfit.get("endings", 0) == sum(report.unfit.values())
    assert len(ids) + (1 if half.id not in ids else 0) + (1 if many.id not in ids else 0) == 5


@asynchronous
async def test_many_at_once_from_two_processes_of_one_database(url: str) -> None:
    """Two processes write the same messages at once: no deadlock, one row each."""
    one, two = await Store.open(StoreSettings(url=url)), await Store.open(StoreSettings(url=url))
    shared = [user(f"shared {number}") for number in range(50)]
    for number in range(100):
        for store in (one, two):
            await take(store, ask(*shared[number % 40 :], user(f"{number}")), answer(f"answer {number % 7}"), name=f"s{number}")
    await asyncio.gather(one.writer.flush(), two.writer.flush())
    assert await count(one, "turns") == 200
    assert await count(one, "sessions") == 100
    assert await count(one, "messages") == 50 + 100 + 7
    for report in (await one.close(), await two.close()):
        assert report.dropped == report.unfit == {}


@asynchronous
async def test_probes_leave_title_and_state_alone(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    from streamglot.store import is_probe

    probe = ask(user("quota"), max_tokens=1)
    titled = ask(Message("system", [TextPart("Write a title for this conversation.")]), user("Fix the bug"))
    assert is_probe(probe)
    assert is_probe(titled)
    assert not is_probe(ask(user("quota")))
    summary = Message("system", [TextPart("You are tasked with summarizing conversations.")])
    assert is_probe(ask(summary, user("Fix it"), Message("assistant", [TextPart("Done")]), user("Summarize.")))
    assert not is_probe(ask(summary, user("Fix it"), tools=[ToolSpec("shell")]))
    assert not is_probe(ask(Message("system", [TextPart("You give books a title.")]), user("Mine")))
    turn = await begin(store, probe, name="s", probe=True)
    turn.finish(Finished(ending="length"))
    await take(store, ask(user("Fix the bug")), answer("Done"), name="s")
    await store.writer.flush()
    (session,) = await store.queries.sessions()
    assert (session.title, session.turns) == ("Fix the bug", 1)
    assert [turn.probe for turn in await store.queries.turns()] == [False, True]
    await store.close()


@asynchronous
async def test_tool_conversation_keeps_order(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    first = await take(store, ask(user("go")), answer(call("c1", echo=Echo("one", {"s": 1}))))
    second_request = ask(user("go"), assistant(call("c1")), result("c1", "found"))
    session = await store.find_session(SessionHints(), second_request)
    assert (session.id, session.previous, session.new) == (first.session.id, first.id, False)
    turn = start(store, session, second_request)
    turn.finish(Finished(ending="end", response=answer("done")))
    await store.writer.flush()
    assert [entry.id for entry in await store.queries.turns(Filter(session_id=session.id))] == [turn.id, first.id]
    await store.close()


def test_database_paths_of_each_platform() -> None:
    assert str(data_directory({"HOME": "/h", "XDG_DATA_HOME": "/x"}, "linux")) == "/x/streamglot"
    assert str(data_directory({"HOME": "/h", "XDG_DATA_HOME": "relative"}, "linux")) == "/h/.local/share/streamglot"
    assert str(data_directory({"HOME": "/h"}, "darwin")) == "/h/Library/Application Support/streamglot"
    assert data_directory({"USERPROFILE": "/h", "LOCALAPPDATA": "/l"}, "win32").parts[-2:] == ("l", "streamglot")
    assert default_url({"HOME": "/h"}) == "sqlite:////h/.local/share/streamglot/streamglot.db"
    place = place_of("postgres://a:b%40@h/n?sslmode=require")
    assert place.shown == "postgresql://a:***@h/n?ssl=require"
    assert place.options == {"host": "h", "user": "a", "password": "b@", "database": "n", "ssl": "require"}
    assert place_of("postgresql://h/n?prepared_statement_cache_size=0").options["statement_cache_size"] == 0
    assert place_of("postgresql:///n?host=/run/pg&port=5433").options == {"host": "/run/pg", "port": 5433, "database": "n"}
    several = place_of("postgresql+asyncpg://me@[::1]:5433/n?target_session_attrs=primary")
    assert several.options == {"host": "::1", "port": 5433, "user": "me", "database": "n", "target_session_attrs": "primary"}
    assert place_of("sqlite:////data/a@b.db").file == Path("/data/a@b.db")
    for wrong in ("mysql://h/n", "sqlite://", "sqlite:///:memory:", "nonsense"):
        with pytest.raises(ConfigError, match=r"store\.url"):
            place_of(wrong)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://me:hidden@h:99999/n", "has the port 99999"),
        ("postgresql://me:hidden@h:0/n", "has the port 0"),
        ("postgresql://me:hidden@h:abc/n", "is not a URL"),
        ("postgresql://me:hidden@[::1/n", "is not a URL"),
        ("postgresql://me:hidden@h/n?nosuch=1", "has the parameter 'nosuch'"),
    ],
)
def test_a_wrong_address_of_a_database_is_refused_without_its_password(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        place_of(url)
    assert "hidden" not in str(refused.value)
