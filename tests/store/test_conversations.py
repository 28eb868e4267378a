"""The hash of a conversation: the same for every faithful repetition, different for other callers and other conversations."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.turns import answer, ask, assistant, asynchronous, begin, call, result, take, thought, user
from streamglot import tasks
from streamglot.events import Echo, StreamError
from streamglot.messages import Message, Part, ReasoningPart, Response, TextPart, ToolCallPart, ToolResultPart
from streamglot.store import Finished, SessionHints, Store, StoreSettings, hash_conversation, session_hints, sessions
from streamglot.store.conversation import alike, normal
from waiting import WAIT_SECONDS

pytestmark = pytest.mark.usefixtures("patient_lookups", "patient_writers")

words = st.text(st.characters(codec="utf-8", exclude_characters="\0<"), min_size=1, max_size=30).filter(
    lambda text: text.strip() != ""
)
calls = st.builds(
    lambda name, path: call("c", name, f'{{"path": "{path}", "line": 1}}'),
    st.sampled_from(["read", "write"]),
    st.sampled_from("abc"),
)
answers = st.lists(st.one_of(words.map(TextPart), calls), min_size=1, max_size=4)
conversations = st.lists(st.tuples(words, answers), min_size=1, max_size=5)


def messages_of_turns(turns: list[tuple[str, list[Part]]]) -> list[Message]:
    """A question, an answer, and a result for each call in the answer."""
    messages: list[Message] = []
    for question, parts in turns:
        messages += [user(question), Message("assistant", parts)]
        messages += [result(part.call_id, "found") for part in parts if isinstance(part, ToolCallPart)]
    return messages


def echoed(messages: list[Message], seed: int) -> list[Message]:
    """The same conversation as another client would send it."""
    chance = random.Random(seed)
    out: list[Message] = []
    if chance.random() < 0.5:
        out.append(Message("system", [TextPart(f"Today is day {seed}")]))
    for message in messages:
        parts: list[Part] = []
        for part in message.parts:
            match part:
                case TextPart():
                    cut = chance.randint(0, len(part.text))
                    pieces = [part.text[:cut], part.text[cut:]] if chance.random() < 0.3 else [part.text]
                    parts += [TextPart(chance.choice(["", " ", "\n"]) + piece + chance.choice(["", " \n"])) for piece in pieces]
                case ToolCallPart():
                    arguments = part.arguments.replace(" ", chance.choice(["", " ", "\n  "]))
                    parts.append(ToolCallPart(f"call_{chance.random()}", part.name, arguments))
                case ToolResultPart():
                    parts.append(ToolResultPart(f"call_{chance.random()}", part.content, name="x"))
                case _:
                    parts.append(part)
        if message.role == "assistant":
            if chance.random() < 0.5:
                parts.insert(0, thought("hm"))
            if chance.random() < 0.3:
                parts.sort(key=lambda part: isinstance(part, ToolCallPart))
            if chance.random() < 0.3 and len(parts) > 1:
                out.append(Message("assistant", parts[:1]))
                parts = parts[1:]
        role = "user" if message.role == "tool" and chance.random() < 0.5 else message.role
        out.append(Message(role, parts, echo=Echo("one", {"id": seed}) if chance.random() < 0.3 else None))
    return out


@given(conversations, st.integers(0, 10_000))
def test_a_repeated_conversation_has_the_same_hash(turns: list[tuple[str, list[Part]]], seed: int) -> None:
    messages = messages_of_turns(turns)
    assert hash_conversation("me", messages) == hash_conversation("me", echoed(messages, seed))


@given(conversations, words, words)
def test_two_callers_never_share_a_hash(turns: list[tuple[str, list[Part]]], one: str, two: str) -> None:
    if one == two:
        return
    messages = messages_of_turns(turns)
    first, second = hash_conversation(one, messages), hash_conversation(two, messages)
    hashes = [
        {conversation.prompt_hash, *(mark for prefix in conversation.prefixes for mark in (prefix.prompt_hash, prefix.tip))}
        for conversation in (first, second)
    ]
    assert not hashes[0] & hashes[1]


@given(conversations, words, answers)
def test_a_turn_is_found_by_the_next_one(turns: list[tuple[str, list[Part]]], question: str, parts: list[Part]) -> None:
    messages = [*messages_of_turns(turns), user(question)]
    before = hash_conversation("me", messages)
    tip = before.tip(normal(parts))
    after = hash_conversation("me", [*messages, Message("assistant", parts), user("go on")])
    assert (after.prefixes[0].prompt_hash, after.prefixes[0].tip) == (before.prompt_hash, tip)


@pytest.mark.parametrize("parts", [[thought("Hm.")], [TextPart(" \n")], []], ids=["thoughts", "space", "nothing"])
def test_a_turn_whose_answer_has_no_words_is_found(parts: list[Part]) -> None:
    before = hash_conversation("me", [user("q")])
    after = hash_conversation("me", [user("q"), Message("assistant", parts), user("go on")])
    assert [(prefix.prompt_hash, prefix.tip) for prefix in after.prefixes] == [(before.prompt_hash, before.tip(normal(parts)))]
    assert hash_conversation("me", [Message("assistant", parts), user("q")]).prefixes == []


@given(conversations, conversations)
def test_other_words_have_another_hash(one: list[tuple[str, list[Part]]], two: list[tuple[str, list[Part]]]) -> None:
    same = [normal(message.parts) for message in messages_of_turns(one)] == [
        normal(message.parts) for message in messages_of_turns(two)
    ]
    assert (
        hash_conversation("me", messages_of_turns(one)).prompt_hash == hash_conversation("me", messages_of_turns(two)).prompt_hash
    ) == same


def test_similar_answers_count_as_edits() -> None:
    answered = normal([TextPart("The package.json file contains five dependencies, all of them up to date.")])
    assert alike(answered, normal([TextPart("The package.json file contains 5 dependencies, all of them up to date!")]))
    assert alike(answered, answered[:30])
    assert not alike(answered, answered[:3])
    assert not alike(answered, normal([TextPart("Hello! How can I help you today?")]))
    assert not alike(answered, b"")


def test_reasoning_tags_in_the_text_do_not_change_the_hash() -> None:
    plain = [user("a"), assistant("b")]
    assert hash_conversation("", plain) == hash_conversation("", [user("a"), assistant("<think>\nhm\n</think>\n\nb")])


def test_session_names_are_read_from_a_request() -> None:
    request = ask(user("x"))
    assert session_hints("me", request, {}, {"x-session-id": "abc"}).name == "abc"
    assert session_hints("me", request, {"session_id": "abc"}, {}).name == "abc"
    assert session_hints("me", request, {"conversation": {"id": "c1"}}, {}).name == "conversation:c1"
    assert session_hints("me", request, {"conversation": "c1"}, {}).name == "conversation:c1"
    assert session_hints("me", request, {"threadId": "t1"}, {}).name == "thread:t1"
    inside = "user_0a_account_1b_session_6b4b2d5e-1f0a-4c3e-9f38-0123456789ab"
    found = session_hints("me", ask(user("x"), metadata={"user_id": inside}), {}, {})
    assert found.name == "session:6b4b2d5e-1f0a-4c3e-9f38-0123456789ab"
    in_json = '{"device_id":"0a","account_uuid":"","session_id":"6b4b2d5e-1f0a-4c3e-9f38-0123456789ab"}'
    assert session_hints("me", ask(user("x"), metadata={"user_id": in_json}), {}, {}).name == found.name
    assert session_hints("me", ask(user("x"), user=inside), {}, {}).name == found.name
    assert session_hints("me", request, {}, {"x-some-agent-session-id": "abc"}).name == "abc"
    assert session_hints("me", request, {}, {"x-some-agent-session-id": "abc", "x-session-affinity": "other"}).name == "other"
    continued = session_hints("me", ask(user("x"), previous_response_id="resp_1"), {}, {})
    assert (continued.name, continued.response_id) == ("", "resp_1")
    assert session_hints("me", request, {"conversation": 3, "threadId": None}, {}).name == ""


@asynchronous
async def test_a_stateless_client_stays_in_its_session(url: str) -> None:
    """The client resends everything, edited; the second half of the conversation comes after a restart."""
    store = await Store.open(StoreSettings(url=url))
    messages: list[Message] = []
    sessions = set()
    for number in range(8):
        if number == 4:
            await store.close()
            store = await Store.open(StoreSettings(url=url))
        messages.append(user(f"question {number}"))
        turn = await take(store, ask(*echoed(messages, number)), answer(thought("hm", "sig"), f"answer {number}"))
        sessions.add(turn.session.id)
        messages.append(assistant(f"answer {number}"))
    assert len(sessions) == 1
    strange = await store.find_session(SessionHints(caller="somebody else"), ask(*messages, user("and?")))
    assert strange.new
    await store.close()


@asynchronous
async def test_an_edited_answer_is_found_by_what_was_asked(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    answered = "The file contains five dependencies, and all of them are up to date as of today."
    turn = await take(store, ask(user("hi")), answer(answered))
    edited = ask(user("hi"), assistant(answered.replace("five", "5") + " (edited)"), user("thanks"))
    foreign = ask(user("hi"), assistant("Hello! What can I do for you this fine morning?"), user("thanks"))
    for again in (False, True):
        if again:
            await store.close()
            store = await Store.open(StoreSettings(url=url))
        assert (await store.find_session(SessionHints(), edited)).id == turn.session.id
        assert (await store.find_session(SessionHints(), foreign)).new
        assert (await store.find_session(SessionHints(), ask(user("hi")))).new
        assert (await store.find_session(SessionHints(caller="other"), edited)).new
    await store.close()


@asynchronous
async def test_two_conversations_with_the_same_beginning_stay_separate(url: str) -> None:
    for restart in (False, True):
        store = await Store.open(StoreSettings(url=url))
        caller = f"caller {restart}"
        opened = [await take(store, ask(user("hi")), answer("Hello!"), caller=caller) for _ in range(2)]
        assert opened[0].session.id != opened[1].session.id
        if restart:
            await store.close()
            store = await Store.open(StoreSettings(url=url))
        second = ask(user("hi"), assistant("Hello!"))
        went_on = []
        for number in range(2):
            turn = await take(store, ask(*second.messages, user(f"I am {number}")), answer(f"Hello {number}"), caller=caller)
            went_on.append(turn.session.id)
            if restart:
                await store.writer.flush()
        assert {*went_on} == {turn.session.id for turn in opened}
        await store.close()


@asynchronous
async def test_going_back_is_a_branch_of_the_same_session(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    first = await take(store, ask(user("one")), answer("eins"))
    await take(store, ask(user("one"), assistant("eins"), user("two")), answer("zwei"))
    again = await store.find_session(SessionHints(), ask(user("one"), assistant("eins"), user("two, differently")))
    assert (again.id, again.previous) == (first.session.id, first.id)
    await store.close()


@asynchronous
async def test_explicit_names_belong_to_their_caller(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    mine = await take(store, ask(user("x")), answer("y", ident="resp_1"), caller="me", name="thread:1")
    yours = await take(store, ask(user("x")), answer("y", ident="resp_1"), caller="you", name="thread:1")
    assert mine.session.id != yours.session.id
    for again in (False, True):
        if again:
            await store.close()
            store = await Store.open(StoreSettings(url=url))
        found = await store.find_session(SessionHints(caller="me", name="thread:1"), ask(user("other words")))
        assert (found.id, found.new) == (mine.session.id, False)
        by_id = await store.find_session(SessionHints(caller="me", name=mine.session.id), ask(user("z")))
        assert (by_id.id, by_id.new) == (mine.session.id, False)
        stolen = await store.find_session(SessionHints(caller="me", name=yours.session.id), ask(user("z")))
        assert (stolen.id != yours.session.id, stolen.new) == (True, True)
        for caller, turn in (("me", mine), ("you", yours)):
            continued = await store.find_session(SessionHints(caller=caller, response_id="resp_1"), ask(user("z")))
            assert (continued.id, continued.previous) == (turn.session.id, turn.id)
            assert await store.history(continued) == [user("x"), assistant("y")]
        assert (await store.find_session(SessionHints(caller="me", response_id="resp_2"), ask(user("z")))).new
    await store.close()


@asynchronous
async def test_the_longest_history_is_continued_wherever_it_is(url: str) -> None:
    """An older conversation is in the database, and a newer one with the same beginning is in memory; or many newer ones are."""
    store = await Store.open(StoreSettings(url=url))
    await take(store, ask(user("hi")), answer("Hello"))
    deep = await take(store, ask(user("hi"), assistant("Hello"), user("which bank?")), answer("The left one"))
    await store.close()
    store = await Store.open(StoreSettings(url=url))
    history = [user("hi"), assistant("Hello"), user("which bank?"), assistant("The left one"), user("why?")]
    for others in (1, 25):
        for _ in range(others):
            await take(store, ask(user("hi")), answer("Hello"))
        assert (await store.find_session(SessionHints(), ask(*history))).previous == deep.id
    await store.close()
    store = await Store.open(StoreSettings(url=url))
    assert (await store.find_session(SessionHints(), ask(*history))).previous == deep.id
    await store.close()


@asynchronous
async def test_three_conversations_with_the_same_beginning_stay_separate(url: str) -> None:
    store = await Store.open(StoreSettings(url=url))
    alike_turns = [await take(store, ask(user("hi")), answer("Hello")) for _ in range(3)]
    found = [await store.find_session(SessionHints(), ask(user("hi"), assistant("Hello"), user(str(n)))) for n in range(3)]
    assert {session.id for session in found} == {turn.session.id for turn in alike_turns}
    await store.close()


@asynchronous
async def test_an_answer_that_another_process_is_about_to_write(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lookup waits for it as long as the machine takes to write it."""
    monkeypatch.setattr(sessions, "OTHER_PROCESS_SECONDS", WAIT_SECONDS)
    one, two = [await Store.open(StoreSettings(url=url)) for _ in range(2)]
    await one.process.recover()
    turn = await begin(two, ask(user("x")), name="thread:1")
    loose = await begin(two, ask(user("y")))
    await two.writer.flush()
    asyncio.get_running_loop().call_later(0.1, turn.finish, Finished(ending="end", response=answer("eins"), upstream="one"))
    asyncio.get_running_loop().call_later(0.1, loose.finish, Finished(ending="end", response=answer("zwei"), upstream="one"))
    following, unnamed = await asyncio.gather(
        one.find_session(SessionHints(name="thread:1"), ask(user("x"), assistant("eins"), user("and?"))),
        one.find_session(SessionHints(), ask(user("y"), assistant("zwei"), user("and?"))),
    )
    assert (following.previous, unnamed.previous) == (turn.id, loose.id)
    await one.close()
    await two.close()


@asynchronous
async def test_history_that_came_while_the_process_stood_still_is_found(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit and the answer of the database are due in the same turn of the event loop."""
    monkeypatch.setattr(tasks, "GRACE_SECONDS", WAIT_SECONDS)
    store = await Store.open(StoreSettings(url=url))
    signed = answer(thought("Hm.", "signed"), "y", ident="resp_1")
    turn = await take(store, ask(user("x")), signed, name="s")
    await store.close()
    store = await Store.open(StoreSettings(url=url))
    fetch, stalls = store.database.fetch, list[float]()

    async def late(question: Any, **values: Any) -> Sequence[Any]:
        asyncio.get_running_loop().call_soon(time.sleep, stalls.pop() if stalls else 0.0)
        return await fetch(question, **values)

    monkeypatch.setattr(store.database, "fetch", late)
    monkeypatch.setattr(sessions, "FIND_SECONDS", 0.1)
    for hints in (SessionHints(name="s"), SessionHints(response_id="resp_1")):
        stalls[:] = [0.3]
        session = await store.find_session(hints, ask(user("x"), assistant("y"), user("z")))
        assert (session.id, session.new) == (turn.session.id, False)
    stalls[:] = [0.3]
    assert len(await store.sessions.answers(session)) == 1
    assert store.sessions.missed == 0
    await store.close()


@asynchronous
async def test_the_last_turn_of_a_conversation(url: str) -> None:
    """The running turn, or else the last one with an answer: a client without an answer repeats the request."""
    store = await Store.open(StoreSettings(url=url))
    first = await take(store, ask(user("x")), answer("eins"), name="conversation:c")
    assert await store.last_turn(first.session) == (first.id, True)
    failed = await begin(store, ask(user("y")), name="conversation:c")
    assert await store.last_turn(first.session) == (failed.id, False)
    failed.finish(Finished(ending="error", response=Response(error=StreamError("x", "it broke"))))
    assert await store.last_turn(first.session) == (first.id, True)
    await store.close()


@pytest.mark.parametrize(
    "echo",
    [
        [call("c1")],
        [call("other id")],
        [TextPart("A summary of it, in other words"), call("c1")],
        [call("c2", "write"), call("c1")],
    ],
)
def test_an_answer_is_recognized_by_its_calls(echo: list[Part]) -> None:
    answered: list[Part] = [TextPart("Let me look at the file that you named, and at nothing else. " * 3), call("c1")]
    if len(echo) == 2 and isinstance(echo[0], ToolCallPart):
        answered.append(call("c2", "write"))
    assert alike(normal(answered), normal(echo))
    assert not alike(normal(answered), normal([call("c1", "write")]))


def test_reasoning_parts_do_not_change_the_hash() -> None:
    assert normal([ReasoningPart("x"), TextPart(" a b\n")]) == b"ab"
