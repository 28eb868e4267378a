"""What repeats is stored once, comes back as it was, and is pruned with the last turn that refers to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import msgspec
import pytest
from msgspec.structs import replace

from store.tables import counted
from store.turns import answer, ask, assistant, asynchronous, begin, call, result, take, thought, user
from streamglot.messages import Part
from streamglot.store import Filter, Finished, Session, Started, Store, StoreSettings, prune_turns
from streamglot.store.contents import HOLE, MAX_PIECES, PIECE_CHARS, cut, cut_request, filled, hashed, piece_row, unpacked
from streamglot.store.retention import delete_session
from vocabulary import *

LONG = 'a "long" text, with \\ and \n and \x1a and ü and 斑马: ' * 20
TOOLS = [ToolSpec(f"tool_{number}", "what it does " * 20, {"type": "object", "properties": {}}) for number in range(40)]


def whole(body: str, pieces: Sequence[tuple[bytes, object]]) -> str | None:
    return filled(body, [unpacked(piece_row(piece)).decode() for _, piece in pieces])


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_body_is_filled_again(seed: int) -> None:
    random_of = random.Random(seed)

    def text() -> str:
        return "".join(
            random_of.choices('ab"\\\n\x00\x1a/ü斑\U0001f600', k=random_of.choice([0, 3, PIECE_CHARS - 10, PIECE_CHARS, 1000]))
        )

    kinds: list[Callable[[str], Part]] = [TextPart, RefusalPart, lambda text: call(text, "n", text)]
    parts = [random_of.choice(kinds)(text()) for _ in range(6)]
    body = msgspec.json.encode(Message("assistant", [*parts, NativePart("d", {text(): [text(), {"x": text()}]})])).decode()
    found = cut(body)
    assert whole(found.body, found.pieces) == body
    assert len(found.body) < len(body) or not found.pieces
    for mark, piece in found.pieces:
        assert isinstance(piece, bytes)
        assert hashed(piece) == mark


def test_a_body_with_many_long_texts_keeps_the_shorter_ones() -> None:
    texts = [str(number) + "x" * (PIECE_CHARS + number) for number in range(3 * MAX_PIECES)]
    body = msgspec.json.encode(Message("user", [TextPart(text) for text in texts])).decode()
    found = cut(body)
    assert len(found.pieces) == found.body.count(HOLE) == MAX_PIECES
    assert texts[0] in found.body
    assert texts[-1] not in found.body
    assert whole(found.body, found.pieces) == body


def test_a_body_without_all_of_its_pieces_is_none() -> None:
    found = cut(msgspec.json.encode(Message("user", [TextPart(LONG), TextPart(LONG[1:])])).decode())
    assert filled(found.body, []) is None
    assert filled(found.body, ['"one"']) is None
    assert filled("{}", []) == "{}"


def test_requests_with_the_same_tools_share_them() -> None:
    one = Request(model="m", tools=TOOLS, metadata={"user_id": "u"}, temperature=0.5, messages=[user("q")])
    two = replace(one, model="n", tools=msgspec.json.decode(msgspec.json.encode(TOOLS), type=list[ToolSpec]))
    (mark, first), (other, second) = cut_request(one, {}), cut_request(two, {})
    assert [mark for mark, _ in first.pieces] == [mark for mark, _ in second.pieces]
    assert mark != other
    assert mark == cut_request(replace(one, messages=[]), {})[0]
    for request, found in ((one, first), (two, second)):
        body = whole(found.body, found.pieces)
        assert body is not None
        assert msgspec.json.decode(body, type=Request) == replace(request, messages=[])
    bare = cut_request(Request(tools=TOOLS), {})[1]
    assert msgspec.json.decode(whole(bare.body, bare.pieces) or "", type=Request) == Request(tools=TOOLS)
    assert cut_request(Request(tools=TOOLS), {})[0] != cut_request(Request(tools=TOOLS[1:]), {})[0]


@asynchronous
async def test_the_record_of_a_turn_is_complete(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    said: list[Part] = [
        thought(LONG, "s" * 2000),
        TextPart(LONG, [Citation(url="https://a.example", cited_text=LONG)], Echo("one", {"data": LONG})),
        call("c1", "read", msgspec.json.encode({"path": LONG}).decode()),
    ]
    schema_of = {"type": "object", "properties": {name: {"type": "string"} for name in map(str, range(40))}}
    request = ask(
        Message("system", [TextPart(LONG, cache="1h")]),
        user(LONG),
        assistant(*said),
        result("c1", LONG * 3),
        Message("user", [MediaPart("image/png", "iVBOR" * 1000, cache=""), NativePart("d", {"x": [LONG, {"y": None}]}, LONG)]),
        tools=TOOLS,
        output=OutputFormat("json_schema", "o", schema=schema_of),
        metadata={"trace": LONG},
        extra={"large": [LONG] * 3, "small": 1},
        temperature=0.0,
        stop=["x"],
    )
    sent = replace(
        request, model="other", tools=TOOLS[1:], messages=[*request.messages[:1], user("between"), *request.messages[1:]]
    )
    usage = TokenCounts(25, 15, 0, None, 3, {"prompt_tokens": 25, "nothing": None})
    choices = [
        ResponseChoice(0, list(said), "tool_calls", "tool_use", stop_sequence=""),
        ResponseChoice(3, [TextPart(LONG)], "end"),
    ]
    response = Response("resp_1", "m", 7, choices, usage, extensions={"pieces": []})
    turn = await begin(store, request)
    turn.finish(Finished(ending="tool_calls", response=response, upstream="one", upstream_request=sent))
    await store.writer.flush()
    found = await store.queries.turn(turn.id)
    assert found is not None
    assert (found.request, found.upstream_request, found.response) == (request, sent, response)
    assert found.usage == usage
    assert await store.queries.history(turn.id) == [*request.messages, Message("assistant", said)]
    await store.close()


async def stored_texts(store: Store) -> list[str]:
    """All bodies of messages and contents."""
    rows = await store.database.fetch("SELECT body FROM messages")
    pieces = await store.database.fetch("SELECT body FROM contents")
    return [*(row.body for row in rows), *(unpacked(row.body).decode() for row in pieces)]


@asynchronous
async def test_a_text_is_stored_once(url: str) -> None:
    """Clients repeat an answer with other spaces in its calls, without its reasoning, and with a mark for the provider's cache."""
    store = await Store.open(StoreSettings(url=url))
    text, output, instructions = (f"{what} of this turn " * 40 for what in ("the answer", "the result", "the instructions"))
    asked = [Message("system", [TextPart(instructions)]), user("q")]
    said: list[Part] = [thought("why", "signed"), TextPart(text), call("c1", "read", '{"path": "a"}')]
    first = ask(*asked, tools=TOOLS)
    response = Response("r", "m", 1, [ResponseChoice(0, said, "tool_calls")])
    await take(store, first, response, name="n", upstream_request=replace(first, model="upstream"))
    marked = Message("tool", [replace(result("c1", output).parts[0], cache="")])
    tools = msgspec.json.decode(msgspec.json.encode(TOOLS), type=list[ToolSpec])
    second = ask(*asked, assistant(text, call("c1", "read", '{"path":"a"}')), marked, tools=tools)
    await take(store, second, answer("done"), name="n", upstream_request=replace(second, model="upstream"))
    third = ask(*second.messages[:-1], result("c1", output), assistant("done"), user("more"), tools=tools)
    await take(store, third, answer("done again"), name="n", upstream_request=third)
    await store.writer.flush()
    bodies = await stored_texts(store)
    for once in (text, output, instructions, TOOLS[7].name + '"'):
        assert sum(once in body for body in bodies) == 1, once
    await store.close()


async def told(store: Store, number: int, tools: list[ToolSpec], session: str) -> str:
    """Stores a turn with long texts of its own, and with these tools. Returns its id."""
    request = ask(user(f"question {number} {LONG}"), tools=tools, metadata={"user": LONG})
    turn = await take(
        store, request, answer(f"answer {number} {LONG}"), name=session, upstream_request=replace(request, model="u")
    )
    await store.writer.flush()
    return turn.id


async def is_whole(store: Store, turn_id: str, number: int, tools: list[ToolSpec]) -> bool:
    found = await store.queries.turn(turn_id)
    assert found is not None
    assert found.request is not None
    assert found.upstream_request is not None
    assert found.response is not None
    assert found.request.tools == found.upstream_request.tools == tools
    assert (found.request.model, found.upstream_request.model, found.request.metadata) == ("small", "u", {"user": LONG})
    assert found.request.messages[0].text == f"question {number} {LONG}"
    return found.response.choices[0].text == f"answer {number} {LONG}"


@asynchronous
async def test_pruning_removes_what_nothing_refers_to_and_nothing_else(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    own = [replace(TOOLS[0], name="own"), *TOOLS]
    turns = [await told(store, number, TOOLS, f"s{number % 2}") for number in range(4)]
    other = await told(store, 9, own, "other")
    names = sum("own" in body for body in await stored_texts(store))
    assert names == 1
    session = await store.queries.turn(other)
    assert session is not None
    assert await delete_session(store.database, session.session_id) == 1
    assert not any('"own"' in body or "question 9" in body or "answer 9" in body for body in await stored_texts(store))
    for number, turn in enumerate(turns):
        assert await is_whole(store, turn, number, TOOLS)
    # what was pruned is written again
    other = await told(store, 9, own, "other")
    assert await is_whole(store, other, 9, own)
    assert (await prune_turns(store.database, older_than=-60)).turns == 5
    for table in ("messages", "contents", "pieces", "nodes"):
        assert await counted(store.database, table) == 0
    await store.close()


@pytest.mark.usefixtures("patient_writers")
@asynchronous
async def test_a_process_writes_again_what_another_one_has_pruned(url: str) -> None:
    one, two = await Store.open(StoreSettings(url=url)), await Store.open(StoreSettings(url=url))
    await told(one, 1, TOOLS, "a")
    await prune_turns(two.database, older_than=-60)
    assert await counted(one.database, "contents") == 0
    again = await told(one, 1, TOOLS, "a")
    assert await is_whole(two, again, 1, TOOLS)
    await one.close()
    await two.close()


@pytest.mark.usefixtures("patient_writers")
@asynchronous
async def test_processes_that_write_and_prune_the_same_leave_no_turn_with_a_part_missing(url: str) -> None:
    stores = [await Store.open(StoreSettings(url=url)) for _ in range(3)]
    written: list[tuple[str, int]] = []

    async def write(store: Store, session: str) -> None:
        for number in range(12):
            written.append((await told(store, number % 3, TOOLS, session), number % 3))

    async def prune(store: Store) -> None:
        while len(written) < 24:
            await prune_turns(store.database, older_than=-60)
            await asyncio.sleep(0)

    await asyncio.gather(write(stores[0], "a"), write(stores[1], "b"), prune(stores[2]))
    await told(stores[0], 5, TOOLS, "a")
    await told(stores[1], 5, TOOLS, "b")
    left = await stores[2].queries.turns()
    assert len(left) >= 2
    numbers = dict(written)
    for turn in left:
        assert await is_whole(stores[2], turn.id, numbers.get(turn.id, 5), TOOLS)
    for store in stores:
        await store.close()


@asynchronous
async def test_a_turn_that_is_pruned_while_it_is_read_is_gone(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    turn = await told(store, 1, TOOLS, "a")
    await store.database.execute("DELETE FROM pieces")
    assert await store.queries.turn(turn) is None
    assert await store.queries.history(turn) == []
    await store.database.execute("DELETE FROM contents")
    assert await store.queries.turn(turn) is None
    await store.close()


@asynchronous
async def test_an_interrupted_question_with_a_long_text_is_found(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    session = Session(id="ses_1")
    store.start(session, Started(request=ask(user("zebra " * 100)), dialect="d", model="m"))
    await store.writer.flush()

    assert await store.database.write(lambda connection: store.process._end_turns(connection, store.process.id, 1.0)) == 1
    assert len(await store.queries.turns(Filter(search="zebra"))) == 1
    await store.close()
